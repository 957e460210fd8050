"""How often does PerfDoctor name the true cause, and keep its promises? Trainings with known faults, and healthy ones.

    python benchmarks/clinic/run.py                     every case, speedups of the half "score" measured
    python benchmarks/clinic/run.py --half score        those that no threshold was tuned on
    python benchmarks/clinic/run.py --fast              the subset that the tests run: diagnoses only
    python benchmarks/clinic/run.py --cases slow_transform,cnn --show
    python benchmarks/clinic/run.py --caps none,avx2,avx512_core,one-thread --write
    python benchmarks/clinic/run.py --healthy-only --caps avx2
    python benchmarks/clinic/run.py --fabric            ten cases with a Trainer and as Fabric loops
    python benchmarks/clinic/run.py --device            cases that need a CUDA device, on a page of their own
    python benchmarks/clinic/run.py --timed FILE        diagnose again, with the speedups that FILE holds
    python benchmarks/clinic/run.py --sessions FOLDER   keep the sessions; diagnose those kept there with today's rules
    python benchmarks/clinic/run.py --half score --traceml --write      TraceML's results, on a separate page

Each case is trained once with PerfDoctor, then without it with its fault and without, in turns: the measured speedup is
the ratio of the medians of their blocks. Runs are alone on the machine, diagnosed ones too: they predict what is timed,
and neighbors share caches. A healthy case is diagnosed ``--healthy-rounds`` times; where a finding
accuses it, or is a right answer other than the expected one, the fix that this finding recommends is applied and timed
the same way.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import caps
import fabric_loop
import msgspec
import orders
import page
import recorded_traces
import results
import sessions
import traceml
from case import HERE, ON_DEVICE, Case, read_all
from results import Section, Sections
from runs import Ended, Order, end_with_parent, preload, run_all
from score import Outcome, outcome_of, score

from lightning_perf import load
from lightning_perf.rules.engine import diagnose

IDLE_LOAD = 0.5
"""Load average of one minute above which something else runs on the machine."""

LEAST_ROUNDS = 2
"""Rounds in which the fix of an accusation is timed: one could not tell a small gain from drift."""


def parsed_arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--half", choices=("tune", "score"), help="only this half of the cases")
    parser.add_argument("--fast", action="store_true", help="only the subset of the tests, without measuring speedups")
    parser.add_argument("--healthy-only", action="store_true", help="only healthy cases")
    parser.add_argument("--device", action="store_true", help="the cases that need a CUDA device, on all cores")
    parser.add_argument("--cases", default="", metavar="NAME,…", help="only these")
    parser.add_argument("--caps", default="none", metavar="NAME,…", help=f"of {', '.join(caps.CAPS)} (default: none)")
    parser.add_argument(
        "--gains", choices=("all", "score", "none"), default="score", help="half whose speedups are measured"
    )
    parser.add_argument("--healthy-rounds", type=int, default=1, help="times that each healthy case is diagnosed")
    parser.add_argument("--rounds", type=int, default=1, help="times that each case is timed with and without its fix")
    parser.add_argument("--cores", type=int, default=2, help="cores in use (default: 2)")
    parser.add_argument("--at-once", type=int, default=1, help="diagnosed runs at once (default: 1, as timed runs)")
    parser.add_argument("--timed", type=Path, metavar="FILE", help="take measured speedups from these saved results")
    parser.add_argument(
        "--sessions",
        type=Path,
        metavar="FOLDER",
        help="keep sessions there; diagnose those that it holds, without runs",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results by cap, as saved beside the page")
    parser.add_argument("--show", action="store_true", help="print the evidence of each finding")
    parser.add_argument("--traceml", action="store_true", help="ask TraceML instead, in an environment of its own")
    parser.add_argument("--traceml-venv", type=Path, metavar="FOLDER", help="that environment, where it exists already")
    parser.add_argument("--fabric", action="store_true", help="diagnose ten cases with a Trainer and as Fabric loops")
    parser.add_argument("--write", action="store_true", help=f"save results and page in {page.FOLDER.name}/")
    parser.add_argument("--under", nargs=2, metavar=("CAP", "FILE"), help=argparse.SUPPRESS)  # in a cap's own process
    arguments = parser.parse_args()
    try:
        caps.parsed(arguments.caps)
    except ValueError as error:
        parser.error(f"--caps: {error}")
    return arguments


def chosen(arguments: argparse.Namespace) -> list[Case]:
    """Return the requested cases."""
    cases = read_all(ON_DEVICE if arguments.device else HERE)
    if arguments.device:
        cases = [case._replace(n_cores=arguments.cores) for case in cases]
    names = [name for name in arguments.cases.split(",") if name]
    unknown = set(names) - {case.name for case in cases}
    if unknown:
        raise SystemExit(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(c.name for c in cases)}")
    return [
        case
        for case in cases
        if (not names or case.name in names)
        and arguments.half in (None, case.half)
        and (case.is_fast or not arguments.fast)
        and (case.kind == "healthy" or not arguments.healthy_only)
    ]


def is_timed(case: Case, arguments: argparse.Namespace) -> bool:
    """Return whether the speedup of a case's own fix is measured; it decides whether some cases are faults at all."""
    if not case.has_fix or arguments.fast or arguments.gains == "none":
        return False
    return bool(case.needs) or arguments.gains in ("all", case.half)


def run_section(arguments: argparse.Namespace, cap: str) -> tuple[Section, bool]:
    """Run the requested cases in this process.

    Args:
        arguments: The command line's.
        cap: Name of the cap that this process is under.

    Returns:
        The results, and whether every run came to its end.
    """
    started_s = time.monotonic()
    preload()
    cases = chosen(arguments)
    left_out = tuple(case.name for case in cases if case.needs and not is_timed(case, arguments))
    cases = [case for case in cases if case.name not in left_out]

    def run(what: str, wanted: Sequence[Order], n_at_once: int) -> list[Ended]:
        before_s = time.monotonic()
        ended = run_all(wanted, arguments.cores, n_at_once, lambda end: show(end, arguments.show))
        minutes = (time.monotonic() - before_s) / 60
        print(f"== {cap}: {len(wanted)} {what} in {minutes:.1f} minutes", file=sys.stderr, flush=True)
        return ended

    wanted = orders.diagnoses(cases, arguments.healthy_rounds)
    kept = arguments.sessions and arguments.sessions / cap
    diagnosed = kept_or_run(wanted, kept, lambda lacking: run("runs diagnosed", lacking, arguments.at_once))
    known = results.read(arguments.timed)[cap].outcomes if arguments.timed else ()
    names = {one.case for one in known if one.measured is not None}
    unknown = [case for case in cases if is_timed(case, arguments) and case.name not in names]
    timed = run("runs timed", orders.timings(unknown, arguments.rounds, diagnosed), 1)
    outcomes = with_measured(outcomes_of(cases, diagnosed, timed, []), known)
    is_measured = not arguments.fast and arguments.gains != "none"
    accused = {
        one.case
        for one in outcomes
        for said in (*one.accusations, one.stand_in)
        if said is not None and said.code not in {fix.code for fix in one.applied}
    }
    is_applied = {(one.case, fix.code) for one in outcomes for fix in one.applied}
    accused |= {
        end.order.case.name
        for end in diagnosed
        if end.session is not None
        for finding in end.session.findings
        if orders.cures_otherwise(finding, end) and (end.order.case.name, finding.code) not in is_applied
    }
    if is_measured and accused:
        of_accused = [end for end in diagnosed if end.order.case.name in accused]
        fixed = run(
            "runs with recommended fixes timed", orders.fixes(of_accused, max(LEAST_ROUNDS, arguments.rounds)), 1
        )
        outcomes = with_measured(outcomes_of(cases, diagnosed, timed, fixed), known)
    is_part = bool(arguments.cases or arguments.fast or arguments.half or arguments.healthy_only)
    has_others = not is_part and not arguments.device and cap == results.REFERENCE
    section = Section(
        cap=cap,
        command=command_of(arguments),
        minutes=(time.monotonic() - started_s) / 60,
        machine=page.machine_text(arguments.device),
        versions=page.versions_text(),
        is_whole=is_measured and not is_part,
        outcomes=tuple(outcomes),
        left_out=left_out,
        recorded=tuple(recorded_traces.diagnosed()) if has_others else (),
        made=tuple(sessions.diagnosed()) if has_others else (),
    )
    return section, not any(end.error for end in (*diagnosed, *timed))


def kept_or_run(
    wanted: Sequence[Order], folder: Path | None, run: Callable[[Sequence[Order]], list[Ended]]
) -> list[Ended]:
    """Diagnose the sessions of these runs that a folder keeps with today's rules; run the others, and keep theirs.

    A run may have said other speedups than the diagnosis of its session: it keeps earlier advice that still holds.
    """
    if folder is None:
        return run(wanted)
    folder.mkdir(parents=True, exist_ok=True)
    n_before: Counter[str] = Counter()
    places: list[Path] = []
    for order in wanted:
        places.append(folder / f"{order.case.name}-{n_before[order.case.name]}.json")
        n_before[order.case.name] += 1
    by_order = {
        id(end.order): end for end in run([o for o, place in zip(wanted, places, strict=True) if not place.exists()])
    }
    ended: list[Ended] = []
    for order, place in zip(wanted, places, strict=True):
        end = by_order.get(id(order))
        if end is None:
            end = Ended(order, diagnose(load(place)), None, "", 0.0)
        elif end.session is not None:
            end.session.save(place)
        ended.append(end)
    return ended


def outcomes_of(
    cases: Sequence[Case], diagnosed: Sequence[Ended], timed: Sequence[Ended], fixed: Sequence[Ended]
) -> list[Outcome]:
    """Return the outcome of each diagnosed run, in the order of the cases."""
    return [
        outcome_of(case, end, orders.of_case(case, timed), orders.of_case(case, fixed))
        for case in cases
        for end in orders.of_case(case, diagnosed)
    ]


def with_measured(outcomes: Sequence[Outcome], known: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes with the speedups that an earlier run measured on this machine, where it did."""
    by_case = {one.case: one for one in known}
    return [
        msgspec.structs.replace(
            one,
            kind=by_case[one.case].kind,
            measured=one.measured or by_case[one.case].measured,
            applied=(*by_case[one.case].applied, *one.applied),
        )
        if one.case in by_case
        else one
        for one in outcomes
    ]


def show(end: Ended, shows_evidence: bool) -> None:
    """Print one line per run to standard error as it ends."""
    order = end.order
    fix = f" with {','.join(order.treatments)}" if order.treatments else " without its fault"
    what = "diagnosed" if order.mode == "run" else f"timed{fix if order.is_fixed else ''}"
    if end.session is not None:
        steady = end.session.steady
        step = (
            f"{steady.n_steps} steps of {steady.step_s.p50 * 1e3:.1f} ms" if steady is not None else "no steady steps"
        )
        text = f"{end.session.verdict.text if end.session.verdict else ''} [{step}]"
    else:
        text = end.error or (end.result.missing.get("block_means_s", "") if end.result is not None else "")
    print(f"{order.case.name} {what} in {end.wall_s:.1f} s: {text}", file=sys.stderr, flush=True)
    if shows_evidence and end.session is not None:
        for finding in end.session.findings:
            gain = f"{finding.gain.low:.3f} to {finding.gain.high:.3f}" if finding.gain else "–"
            print(f"    {finding.severity} {finding.code} {finding.confidence} speedup {gain}: {finding.summary}",
                  file=sys.stderr)  # fmt: skip
        for name, phase in end.session.steady.phases.items() if end.session.steady else ():
            print(f"    {name}: {phase.share:.1%}", file=sys.stderr)


def command_of(arguments: argparse.Namespace) -> str:
    """Return the command line's arguments that say what was run."""
    words = sys.argv[1:]
    return " ".join(words[: words.index("--under")] if arguments.under else words)


def run_caps(arguments: argparse.Namespace) -> tuple[Sections, bool]:
    """Run the requested cases once under each cap, each time in a new process.

    Returns:
        The results by cap, and whether all of them came to their end.
    """
    sections: Sections = {}
    is_complete = True
    load_1min = os.getloadavg()[0]
    if load_1min > IDLE_LOAD:
        print(f"the machine is busy (load {load_1min:.1f}); measured speedups are not to be trusted", file=sys.stderr)
    for cap in caps.parsed(arguments.caps):
        code, content = caps.run_under(cap, Path(__file__), [*sys.argv[1:], "--under", cap])
        is_complete = is_complete and code == 0
        if content:
            sections[cap] = msgspec.structs.replace(results.decoded(content), load=load_1min)
        else:
            print(f"no results under the cap {cap}: its process ended with {code}", file=sys.stderr)
    return sections, is_complete


def ask_traceml(arguments: argparse.Namespace) -> int:
    """Diagnose the requested cases with TraceML and print its page."""
    venv = traceml.environment(arguments.traceml_venv)
    if venv is None:
        return 1
    said = traceml.diagnosed(chosen(arguments), venv)
    text = page.beside_text_of(said, versions=traceml.versions_in(venv), command=command_of(arguments))
    print(text)
    if arguments.write:
        page.BESIDE.write_text(text, encoding="utf-8")
    return 0


def beside_fabric(arguments: argparse.Namespace) -> int:
    """Diagnose cases with a Trainer and as Fabric loops, and print both ranks of the true cause."""
    preload()
    cases = [case for case in chosen(arguments) if case.name in fabric_loop.CASES or arguments.cases]
    wanted = [Order(case, "run", with_fabric=with_fabric) for case in cases for with_fabric in (False, True)]
    ended = run_all(wanted, arguments.cores, arguments.at_once, lambda end: show(end, arguments.show))
    outcomes = {(end.order.case.name, end.order.with_fabric): outcome_of(end.order.case, end, [], []) for end in ended}
    print("| case | expected | Trainer: rank of the cause | Fabric loop |\n|:--|:--|--:|--:|")
    for case in cases:
        ranks = (outcomes[case.name, with_fabric].rank or "not named" for with_fabric in (False, True))
        print(f"| {case.name} | {', '.join(case.expect)} | {' | '.join(map(str, ranks))} |")
    for name, with_fabric in (("Trainer", False), ("Fabric loop", True)):
        result = score([one for (_, kind), one in outcomes.items() if kind is with_fabric])
        print(f"{name}: first {result.first}, among three {result.among_three}, line {result.line}")
    return 1 if any(end.error for end in ended) else 0


def main() -> int:
    """Run what was requested; return 0 if every case could be run and saved."""
    arguments = parsed_arguments()
    if arguments.traceml:
        return ask_traceml(arguments)
    if arguments.fabric:
        return beside_fabric(arguments)
    if arguments.under:
        end_with_parent()
        cap, file = arguments.under
        section, is_complete = run_section(arguments, cap)
        Path(file).write_bytes(results.encoded(section))
        return 0 if is_complete else 1
    chosen(arguments)  # refuses unknown names before any process starts
    sections, is_complete = run_caps(arguments)
    pages = page.ON_DEVICE if arguments.device else page.CLINIC
    print(page.text_of(sections, pages))
    if arguments.json:
        arguments.json.write_bytes(results.encoded(sections))
    names = {case.name for case in read_all(ON_DEVICE if arguments.device else HERE)}
    refusals = page.save(sections, names, pages) if arguments.write else []
    for refusal in refusals:
        print(f"not saved: {refusal}", file=sys.stderr)
    return 0 if is_complete and not refusals else 1


if __name__ == "__main__":
    sys.exit(main())
