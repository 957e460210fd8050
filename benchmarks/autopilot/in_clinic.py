"""The autopilot in the clinic's trainings: is the right change kept, how fast does it get, do healthy ones lose time?

Each case that a live treatment fixes runs longer than in the clinic, with ``PerfDoctor(autopilot="numerics")``, and
beside that in runs of twice its usual length without PerfDoctor, as `lightning-perf trial` times its arms: without the
treatment, with it from the start, with it, without it. All have as many cores as the clinic gives the case.

- *Offline*: time per step without the treatment ÷ with it, the geometric mean of both pairs: medians of blocks, or of
  whole epochs for loader arguments.
- *Right*: kept where the median of the offline speedups is over 1.02, and undone or refused otherwise. *Trying*: the
  run ended before the decision, which is not right.
- *Measured in the run*: what the autopilot says of kept treatments. Where workers do not persist, it has their starts.
- *Realized*: time per step of the run without PerfDoctor and treatment ÷ that of the run with the autopilot after its
  last decision, medians of whole epochs. *Share*: of the offline speedup.

A healthy case runs only with the autopilot. *Lost* is the time by which steps with treatments took longer than those
without, as a share of the run.

Aims: 95 % right, a share of 90 %; no healthy run that loses more than 1 %, and nothing kept in one that gains less.
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "clinic"))

from case import Case, read_all
from page import machine_text, versions_text
from runs import Ended, Order, preload, run_all

from lightning_perf.autopilot import Autopilot
from lightning_perf.records import LEAST_GAIN
from lightning_perf.treatments.specs import parse

CURES = {
    "anomaly_detection": "anomaly-off",
    "anomaly_detection_small_ops": "anomaly-off",
    "anomaly_detection_by_torch": "anomaly-off",
    "adam_tensor_by_tensor": "fused-optimizer",
    "adamw_of_a_large_table": "fused-optimizer",
    "one_thread": "threads=2",
    "too_many_threads": "threads=2",
    "too_many_threads_small_ops": "threads=1",
    "progress_bar_every_step": "progress-refresh=20",
    "many_metrics_logged": "log-every-n=50",
    "logged_for_step_and_epoch": "log-every-n=50",
    "logger_behind_a_network": "log-every-n=50",
    "remote_storage": "loader-workers=2",
    "files_with_latency": "loader-workers=4",
    "samples_without_workers": "loader-workers=2",
    "slow_collate": "loader-workers=1",
    "slow_transform": "loader-workers=1",
    "workers_restarted": "loader-persistent",
    "worker_restarted_slowly": "loader-persistent",
    "workers_for_tiny_data": "loader-workers=0",
    "worker_for_cheap_samples": "loader-workers=0",
}
"""Cases of the clinic, and the live treatment that is tried in each: one that cures it or a part of its fault, and in
``slow_*``, which have one core, one that may not."""

BY_FIX = {"anomaly_detection_by_torch"}  # sets it after the Trainer's flag, so only its script can undo that

HEADING = "\n## In the clinic's trainings\n\n"

RUN_S, LEAST_TIMES = 35.0, 4
"""What a run with the autopilot should take as it starts, and least number of times as many epochs as in the clinic. It
ends sooner where a treatment is kept."""

OFFLINE_TIMES, HEALTHY_TIMES = 2, 4
MOST_LOST, N_HEALTHY = 0.01, 40

_offered: list[str] = []  # in forks of this process: offered whether or not a finding recommends it


def offer_always() -> None:
    """Let the autopilot try what is in `_offered` from its first diagnosis on."""
    inner = Autopilot.offer

    def offer(self: Any, session: Any) -> None:
        for text in _offered:
            spec = parse(text)
            unit = self._unit_of(spec)
            if unit is not None and spec.treatment.id not in self._known:
                self._known.add(spec.treatment.id)
                self._waiting.append((text, "PD000", unit))
        inner(self, session)

    Autopilot.offer = offer  # type: ignore[method-assign]


def longer(case: Case, n_times: float, folder: Path) -> Case:
    """Return the case with so many times as many epochs."""
    text, n_found = re.subn(
        r"max_epochs=(\d+)", lambda found: f"max_epochs={math.ceil(int(found[1]) * n_times)}", case.script.read_text()
    )
    if n_found != 1:
        raise ValueError(f"{case.script} sets max_epochs {n_found} times, expected once")
    script = folder / case.script.name
    script.write_text(text)
    return case._replace(script=script)


def run(order: Order) -> Ended:
    return run_all([order], n_cores=2, n_at_once=1, show=lambda _: None)[0]


def timed(case: Case, treatment: str = "") -> Ended:
    treatments = (treatment,) if treatment and case.name not in BY_FIX else ()
    with tempfile.TemporaryDirectory() as folder:
        long_case = longer(case, OFFLINE_TIMES, Path(folder))
        return run(Order(long_case, "trial", bool(treatment), treatment if treatments else "", treatments))


def piloted(case: Case, n_times: float, treatment: str = "") -> dict[str, Any]:
    """Return what the autopilot did in a run of so many times as many epochs."""
    _offered[:] = [treatment] if treatment else []
    with tempfile.TemporaryDirectory() as folder:
        long_case = longer(case, n_times, Path(folder))
        ended = run(Order(long_case, "run", doctor={"autopilot": "numerics", "schedule": None, "probe_data": False}))
    session = ended.session
    pilot = session.autopilot if session is not None else None
    if session is None or pilot is None:
        return {"error": ended.error or "no autopilot"}
    tries = [
        {
            "treatment": one.treatment,
            "status": one.status,
            "n_pairs": one.n_pairs,
            "speedup": one.speedup and [one.speedup.value, one.speedup.low, one.speedup.high],
            "lost_s": one.lost_s,
            "steps": [one.first_step, one.last_step],
            "reason": one.reason,
        }
        for one in pilot.tries
    ]
    found = {"tries": tries, "waiting": pilot.waiting, "lost_s": pilot.lost_s, "budget_s": pilot.budget_s}
    epochs = [[one.n_steps, round(one.wall_s, 4), one.step_p50_s] for one in session.epochs]
    return {**found, "wall_s": ended.wall_s, "epochs": epochs}


def step_s(ended: Ended, is_whole: bool) -> float | None:
    """Return the time per step of a timed run, the median of blocks, or of whole epochs."""
    result = ended.result
    if result is None or result.status != "ok":
        return None
    blocks = result.wall_block_means_s if is_whole else result.block_means_s
    return statistics.median(blocks) if blocks else result.usual_step_s


def mean_step_s(runs: list[Ended], is_whole: bool) -> float | None:
    """Return the geometric mean of `step_s`; None if a run has none."""
    times = [step_s(ended, is_whole) for ended in runs]
    return statistics.geometric_mean(times) if all(times) else None


def after_decisions_s(found: dict[str, Any]) -> float | None:
    """Return the time per step of whole epochs after the last decision: the median; None where none follows."""
    last_step, first, epochs = max((one["steps"][1] for one in found.get("tries", ())), default=0), 0, []
    for n_steps, wall_s, _ in found.get("epochs", ()):
        epochs += [wall_s / n_steps] if first > last_step else []
        first += n_steps
    return statistics.median(epochs) if epochs else None


def cured(case: Case) -> dict[str, Any]:
    """Run a case with the autopilot, then without it: without its treatment, with it, with it, without it."""
    cure, load = CURES[case.name], os.getloadavg()[0]
    arms = {False: [timed(case)], True: []}
    result = arms[False][0].result
    train_s = result.train_s / OFFLINE_TIMES if result is not None else 0.0
    found = piloted(case, max(LEAST_TIMES, RUN_S / train_s) if train_s else LEAST_TIMES, cure)
    tries = [one for one in found.get("tries", ()) if one["treatment"].partition("=")[0] == cure.partition("=")[0]]
    treatment = tries[0]["treatment"] if tries else cure
    arms[True] += [timed(case, treatment), timed(case, treatment)]
    arms[False].append(timed(case))
    base_s, treated_s = (mean_step_s(arms[is_treated], treatment.startswith("loader-")) for is_treated in (False, True))
    whole_s, after_s = mean_step_s(arms[False], True), after_decisions_s(found)
    return {
        "kind": "cure",
        "cure": treatment,
        "offline": base_s / treated_s if base_s and treated_s else None,
        "realized": whole_s / after_s if whole_s and after_s else None,
        "load": load,
        "errors": [ended.error for ended in (*arms[False], *arms[True]) if ended.error],
        **found,
    }


def healthy(case: Case) -> dict[str, Any]:
    """Run a healthy case once with the autopilot."""
    return {"kind": "healthy", "load": os.getloadavg()[0], **piloted(case, HEALTHY_TIMES)}


def wanted(n_rounds: int, names: set[str]) -> Iterator[tuple[Case, int]]:
    """Yield the runs in order: every case once, then again."""
    cases = [case for case in read_all() if not names or case.name in names]
    cures = [case for name in CURES for case in cases if case.name == name]
    healthy_cases = [case for case in cases if case.kind == "healthy"]
    for round_ in range(n_rounds):
        yield from ((case, round_) for case in cures)
    for n in range(N_HEALTHY if healthy_cases else 0):
        yield healthy_cases[n % len(healthy_cases)], n // len(healthy_cases)


def add_to(file: Path, n_rounds: int, names: set[str]) -> None:
    """Make the runs that the file lacks, and append a line to it after each."""
    done = {(one["case"], one["round"]) for one in lines_of(file)}
    preload()
    offer_always()
    for case, round_ in wanted(n_rounds, names):
        if (case.name, round_) in done:
            continue
        found = healthy(case) if case.kind == "healthy" else cured(case)
        line = json.dumps({"case": case.name, "round": round_, **found})
        with file.open("a") as out:
            out.write(line + "\n")
        print(line, flush=True)


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def decided(line: dict[str, Any]) -> dict[str, Any] | None:
    """Return what was decided about the cure; None if it was not tried."""
    return next((one for one in line.get("tries", ()) if one["treatment"] == line["cure"]), None)


def section(lines: list[dict[str, Any]]) -> str:
    """Return the part of the page about these runs."""
    loads = [line["load"] for line in lines] or [0.0]
    is_busy = statistics.median(loads) > (os.cpu_count() or 1) / 2  # before a run, nothing of ours computes
    heads = ["case", "treatment", "decisions", "right", "measured in the run", "realized", "offline", "share"]
    table = [heads, [":--"] * 3 + ["--:"] * 5, *cure_rows(lines)]
    rows = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
    about = (__doc__ or "").partition("\n\n")[2]
    return (
        f"{HEADING}{about}\nWritten by `python benchmarks/autopilot/run.py --clinic FILE --write` on "
        f"{machine_text()}; {versions_text()}. Load average before a run: {statistics.median(loads):.1f} "
        f"({min(loads):.1f}–{max(loads):.1f})."
        f"{' Other programs kept the machine busy, so figures of single cases are rough.' if is_busy else ''}"
        f"\n\n{rows}\n\nHealthy: {healthy_text(lines)}\n"
    )


def cure_rows(lines: list[dict[str, Any]]) -> list[list[str]]:
    """Return a row per case: decisions, and realized beside offline speedups."""
    rows, rights, shares = [], [], []
    every = [line for line in lines if line["kind"] == "cure"]
    for name in dict.fromkeys(line["case"] for line in every):
        of_case = [line for line in every if line["case"] == name]
        offline = [line["offline"] for line in of_case if line["offline"]]
        should_keep = bool(offline) and statistics.median(offline) > LEAST_GAIN
        found = [
            next((one for one in line.get("tries", ()) if one["treatment"] == line["cure"]), {}) for line in of_case
        ]
        right = [one.get("status") in (("kept",) if should_keep else ("undone", "refused")) for one in found]
        kept = [(one, line) for one, line in zip(found, of_case, strict=True) if one.get("status") == "kept"]
        in_run = [one["speedup"][0] for one, _ in kept]
        realized = [line["realized"] for _, line in kept if line.get("realized")]
        gained = realized or in_run
        share = statistics.median(gained) / statistics.median(offline) if gained and offline else None
        rights += right
        shares += [share] if share is not None and should_keep else []
        told = Counter(one.get("status", "not tried") for one in found)
        rows.append([
            f"`{name}`", of_case[-1]["cure"], ", ".join(f"{n} {status}" for status, n in told.items()),
            f"{sum(right)} of {len(right)}", _spread(in_run), _spread(realized), _spread(offline), _percent(share),
        ])  # fmt: skip
    total = f"{sum(rights)} of {len(rights)} = {_percent(statistics.fmean(rights) if rights else None)}"
    of_shares = f"{_percent(statistics.median(shares))}, least {_percent(min(shares))}" if shares else ""
    return [*rows, ["all", "", "", total, "", "", "", of_shares]]


def healthy_text(lines: list[dict[str, Any]]) -> str:
    """Return what the autopilot did in healthy trainings."""
    every = [line for line in lines if line["kind"] == "healthy" and "tries" in line]
    lost = [line["lost_s"] / line["wall_s"] for line in every] or [0.0]
    kept = [(line["case"], one) for line in every for one in line["tries"] if one["status"] == "kept"]
    which = ", ".join(f"{one['treatment']} in `{name}` {one['speedup'][0]:.2f}x" for name, one in kept)
    n_cases, n_tried = len({line["case"] for line in every}), sum(len(line["tries"]) for line in every)
    return (
        f"{len(every)} runs of {n_cases} cases, treatments tried: {n_tried}. Runs that lost more than "
        f"{MOST_LOST:.0%}: {sum(each > MOST_LOST for each in lost)}; most lost {max(lost):.2%}, median "
        f"{statistics.median(lost):.2%}. Kept: {len(kept)}{f' ({which})' if kept else ''}."
    )


def _percent(share: float | None) -> str:
    return f"{100 * share:.0f} %" if share is not None else ""


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f}x ({min(values):.2f}–{max(values):.2f})" if values else ""
