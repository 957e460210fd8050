"""How often does the doctor name the true cause? Trainings with known faults, and healthy ones beside them.

    python benchmarks/clinic/run.py                     every case, each fix measured (half an hour)
    python benchmarks/clinic/run.py --half score        those that no threshold was tuned on
    python benchmarks/clinic/run.py --fast              the subset that the tests run: diagnoses only
    python benchmarks/clinic/run.py --cases slow_transform,cnn --show
    python benchmarks/clinic/run.py --write             and into docs/benchmarks/clinic.md
    python benchmarks/clinic/run.py --half score --traceml --write      what TraceML says of them, on a page of its own

Each case is trained once with PerfDoctor, then without it as it is and mended, in turns: the measured gain is the ratio
of the medians of their blocks. Healthy ones are diagnosed ``--healthy-rounds`` times.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import page
import sessions
import traceml
import traces
from case import Case, read_all
from score import Outcome, outcome_of
from surgery import Ended, Order, has_fast_bf16, measure_ceilings, preload, run_all


def parsed_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--half", choices=("tune", "score"), help="only this half of the cases")
    parser.add_argument("--fast", action="store_true", help="only the subset of the tests, without measuring gains")
    parser.add_argument("--cases", default="", metavar="NAME,…", help="only these")
    parser.add_argument(
        "--gains", choices=("all", "score", "none"), default="all", help="of which half gains are timed (default: all)"
    )
    parser.add_argument("--healthy-rounds", type=int, default=1, help="times that each healthy one is diagnosed")
    parser.add_argument("--rounds", type=int, default=1, help="times that each case is timed, as it is and mended")
    parser.add_argument("--cores", type=int, default=2, help="cores in use (default: 2)")
    parser.add_argument(
        "--at-once", type=int, default=1, help="runs beside one another (default: 1, to time them well)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what each diagnosed run said")
    parser.add_argument("--show", action="store_true", help="print the evidence of each finding")
    parser.add_argument("--traceml", action="store_true", help="ask TraceML instead, in an environment of its own")
    parser.add_argument(
        "--traceml-venv", type=Path, metavar="FOLDER", help="that environment, where it is there already"
    )
    parser.add_argument("--write", action="store_true", help=f"write the page in {page.FOLDER.name}/")
    return parser.parse_args()


def chosen(arguments: argparse.Namespace) -> list[Case]:
    """The cases asked for."""
    cases = read_all()
    names = [name for name in arguments.cases.split(",") if name]
    unknown = set(names) - {case.name for case in cases}
    if unknown:
        raise SystemExit(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(c.name for c in cases)}")
    if names:
        cases = [case for case in cases if case.name in names]
    if arguments.half:
        cases = [case for case in cases if case.half == arguments.half]
    return [case for case in cases if case.is_fast] if arguments.fast else cases


def orders_for(cases: Sequence[Case], arguments: argparse.Namespace) -> list[Order]:
    """The runs; those on one core first, so that several fit beside one another."""
    orders: list[Order] = []
    for case in sorted(cases, key=lambda case: case.n_cores):
        orders += [Order(case, "run")] * (arguments.healthy_rounds if case.kind == "healthy" else 1)
        if case.has_fix and not arguments.fast and arguments.gains in ("all", case.half):
            for number in range(arguments.rounds):
                turns = (False, True) if number % 2 == 0 else (True, False)
                orders += [Order(case, "trial", is_mended) for is_mended in turns]
    return orders


def outcomes_of(cases: Sequence[Case], ended: Sequence[Ended]) -> list[Outcome]:
    """By case, in the order of the cases."""
    outcomes: list[Outcome] = []
    for case in cases:
        of_case = [end for end in ended if end.order.case.name == case.name]
        timed = [end for end in of_case if end.order.mode == "trial"]
        outcomes += [outcome_of(case, end, timed) for end in of_case if end.order.mode == "run"]
    return outcomes


def tell(end: Ended, shows_evidence: bool) -> None:
    """One line a run, on standard error, as it ends."""
    order = end.order
    what = "diagnosed" if order.mode == "run" else "mended" if order.is_mended else "timed"
    if end.session is not None:
        steady = end.session.steady
        step = (
            f"{steady.n_steps} steps of {steady.step_s.p50 * 1e3:.1f} ms" if steady is not None else "no steady steps"
        )
        text = f"{end.session.verdict.text if end.session.verdict else ''} [{step}]"
    else:
        text = end.error
    print(f"{order.case.name} {what} in {end.wall_s:.1f} s: {text}", file=sys.stderr, flush=True)
    if shows_evidence and end.session is not None:
        for finding in end.session.findings:
            gain = f"{finding.gain.low:.3f} to {finding.gain.high:.3f}" if finding.gain else "–"
            print(f"    {finding.severity} {finding.code} {finding.confidence} gain {gain}: {finding.summary}",
                  file=sys.stderr)  # fmt: skip
        for fact in end.session.steady.phases.items() if end.session.steady else ():
            print(f"    {fact[0]}: {fact[1].share:.1%}", file=sys.stderr)


def as_json(one: Outcome) -> dict[str, Any]:
    """What a test reads."""
    return {
        "case": one.case.name,
        "kind": one.case.kind,
        "rank": one.rank,
        "second_rank": one.second_rank,
        "said": [[finding.code, finding.severity, finding.confidence] for finding in one.said],
        "error": one.error,
    }


def publish(text: str, file: Path, is_written: bool) -> None:
    """A page, on the screen and where it belongs."""
    print(text)
    if is_written:
        file.write_text(text, encoding="utf-8")


def main() -> int:
    """Runs what was asked for; 0 where every case could be run."""
    arguments = parsed_arguments()
    cases = chosen(arguments)
    command = " ".join(sys.argv[1:])
    if arguments.traceml:
        venv = traceml.environment(arguments.traceml_venv)
        if venv is None:
            return 1
        text = page.beside_text_of(traceml.diagnosed(cases, venv), versions=traceml.versions_in(venv), command=command)
        publish(text, page.BESIDE, arguments.write)
        return 0
    preload()
    started_s = time.monotonic()
    for n_threads in (1, 2):
        measure_ceilings(n_threads)
    left_out = [] if has_fast_bf16() else [case.name for case in cases if case.needs == "fast-bf16"]
    cases = [case for case in cases if case.name not in left_out]
    ended = run_all(
        orders_for(cases, arguments), arguments.cores, arguments.at_once, lambda end: tell(end, arguments.show)
    )
    outcomes = outcomes_of(cases, ended)
    is_part = bool(arguments.cases or arguments.fast)
    recorded, made = ([], []) if is_part else (traces.diagnosed(), sessions.diagnosed())
    wall_s = time.monotonic() - started_s
    publish(
        page.text_of(outcomes, recorded, made, left_out, wall_s=wall_s, command=command), page.PAGE, arguments.write
    )
    if arguments.json:
        arguments.json.write_text(json.dumps([as_json(one) for one in outcomes], indent=1), encoding="utf-8")
    return 1 if any(end.error for end in ended) else 0


if __name__ == "__main__":
    sys.exit(main())
