"""Compare two sessions, or two groups of them."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median, mode
from typing import Any

import msgspec
import numpy as np

from lightning_perf.errors import SessionError
from lightning_perf.records import (
    PHASES,
    SEVERITIES,
    STEP_PHASES,
    Block,
    Change,
    ComparedRun,
    Comparison,
    Difference,
    FigureChange,
    Finding,
    FindingChange,
    Interval,
    Session,
    StageTimes,
    TimeChange,
    TrialChange,
)

from .single_runs import MIN_POINTS, MIN_RUNS_PER_SIDE, USUAL_NOISE, Level, level, ratio_of

BAND = 0.02
"""Relative change that counts as none, as for findings."""

RULED_OUT = 0.10
"""Change that ``no_change`` rules out; single runs differ by some per cent, so less can rarely be ruled out."""

MIN_SHARE = 0.01
"""Phases with a smaller share on both sides get no interval."""

MIN_EPOCHS = 3
"""Whole epochs after the first that the spread of epochs needs."""

_FIRST_WAITS_KEPT = 64  # Fetch.first_s

Source = tuple[str, Session]
"""The file of a session (empty without one), and the session."""


def compare_sessions(base: Sequence[Source], new: Sequence[Source]) -> Comparison:
    """Compare two sides; each has one or more runs of the same training.

    Raises:
        SessionError: A side is empty, a run is on both sides, or their stages differ.
    """
    _check(base, new)
    before, after = [session for _, session in base], [session for _, session in new]
    sizes = samples_per_step(before[0]), samples_per_step(after[0])
    is_per_sample = None not in sizes and sizes[0] != sizes[1]
    scales = (1.0 / (sizes[0] or 1), 1.0 / (sizes[1] or 1)) if is_per_sample else (1.0, 1.0)
    noise, noise_basis = _run_noise(before + after)
    if min(len(base), len(new)) >= MIN_RUNS_PER_SIDE:
        noise_basis = f"not used: measured from the {len(base)} and {len(new)} runs themselves"
    return Comparison(
        base=tuple(_run(source, session) for source, session in base),
        new=tuple(_run(source, session) for source, session in new),
        stage=before[0].run.stage,
        per="sample" if is_per_sample else "step",
        times=_times((before, after), scales, noise),
        figures=tuple(_figures(before, after)),
        findings=tuple(_findings(before, after)),
        settings=tuple(_differences("settings", *_compared_settings(before[0], after[0]))),
        environment=tuple(_environment(before[0], after[0])),
        trials=tuple(_trials(before, after)),
        run_noise_fraction=noise,
        run_noise_basis=noise_basis,
        band_fraction=BAND,
        ruled_out_fraction=RULED_OUT,
        cautions=tuple(_cautions(before, after, is_per_sample)),
    )


Sides = tuple[Sequence[Session], Sequence[Session]]
LevelOf = Callable[[StageTimes, Session], Level | str]
"""Returns the time per step of a run, or why it is unknown."""


def _times(sides: Sides, scales: tuple[float, float], noise: float) -> tuple[TimeChange, ...]:
    """Return the changes of step and wall time, and of phases, the largest first."""
    names = [name for name in PHASES if any(_share(s, name) >= MIN_SHARE for side in sides for s in side)]
    known: dict[str, LevelOf] = {"step": _step_level, "wall": _wall_level}
    known |= {name: partial(_phase_level, name) for name in names}
    step, wall, *phases = (_time_change(name, level_of, sides, scales, noise) for name, level_of in known.items())
    phases.sort(key=lambda one: -abs((one.new_s or 0.0) - (one.base_s or 0.0)))
    return (step, wall, *phases)


def _time_change(name: str, level_of: LevelOf, sides: Sides, scales: tuple[float, float], noise: float) -> TimeChange:
    known: list[list[Level]] = []
    values: list[float | None] = []
    reasons: list[str] = []
    for label, side, scale in zip(("base", "new"), sides, scales, strict=True):
        levels = []
        for session in side:
            found = level_of(session.steady, session) if session.steady is not None else "it has no steady steps"
            if isinstance(found, str):
                reasons.append(f"{label}: {found}")
            else:
                levels.append(found._replace(log=found.log + math.log(scale)))
        known.append(levels)
        if len(levels) < len(side) and name in PHASES and all(session.steady is not None for session in side):
            values.append(sum(math.exp(one.log) for one in levels) / len(side))  # runs without the phase count as 0
        else:
            values.append(math.exp(float(np.mean([one.log for one in levels]))) if levels else None)
    is_whole = all(len(levels) == len(side) for levels, side in zip(known, sides, strict=True))
    ratio = ratio_of(known[0], known[1], noise) if is_whole else None
    if ratio is None and not reasons:
        reasons.append(_TOO_SHORT.get(name, f"an interval needs {MIN_RUNS_PER_SIDE} runs per side"))
    base_s, new_s = values
    reason = "; ".join(dict.fromkeys(reasons))
    return TimeChange(name=name, base_s=base_s, new_s=new_s, ratio=ratio, change=_classify(ratio), reason=reason)


_OR_RUNS = f"or {MIN_RUNS_PER_SIDE} runs per side"
_TOO_SHORT = {
    "step": f"too few steady steps: an interval needs {MIN_POINTS} points of the timeline, {_OR_RUNS}",
    "wall": f"too few epochs: an interval needs {MIN_EPOCHS} after the first, {_OR_RUNS}",
    **dict.fromkeys(STEP_PHASES, f"too few steps with this phase: an interval needs more of them, {_OR_RUNS}"),
}


def _classify(ratio: Interval | None) -> Change:
    if ratio is None:
        return "inconclusive"
    if ratio.low > 1 + BAND:
        return "slower"
    if ratio.high < 1 / (1 + BAND):
        return "faster"
    is_ruled_out = ratio.high < 1 + RULED_OUT and ratio.low > 1 / (1 + RULED_OUT)
    return "no_change" if is_ruled_out else "inconclusive"


def typical_step_s(session: Session) -> float | None:
    """Return the seconds per step that a comparison uses; None without steady steps."""
    found = _step_level(session.steady, session) if session.steady is not None else ""
    return None if isinstance(found, str) else math.exp(found.log)


def _step_level(steady: StageTimes, session: Session) -> Level | str:
    series = [block.step_s for block in whole_blocks(steady)]
    if series and min(series) > 0:
        return level(series)
    return Level(math.log(steady.step_s.p50), None, 0) if steady.step_s.p50 > 0 else "its steps took no time"


def _wall_level(steady: StageTimes, session: Session) -> Level | str:
    """Return the wall time per step of whole epochs, without the first, which includes the startup."""
    walls = np.log(epoch_walls(session))
    if len(walls) >= MIN_EPOCHS:
        # Epochs are long enough to be independent.
        return Level(float(walls.mean()), float(walls.var(ddof=1)) / len(walls), len(walls))
    n_steps = steady.n_steps + _first_steps(steady, session)
    if steady.span_s <= 0 or n_steps == 0:
        return "its steps took no time"
    return Level(math.log(steady.span_s / n_steps), None, 0)


def epoch_walls(session: Session) -> list[float]:
    """Return the wall seconds per step of whole epochs of equal length, without the first."""
    epochs = [epoch for epoch in session.epochs[1:] if epoch.n_steps and epoch.wall_s > 0]
    usual = mode(epoch.n_steps for epoch in epochs) if epochs else 0
    return [epoch.wall_s / epoch.n_steps for epoch in epochs if epoch.n_steps == usual]


def _phase_level(name: str, steady: StageTimes, session: Session) -> Level | str:
    series = [block.phases.get(name, 0.0) for block in whole_blocks(steady)]
    if name in STEP_PHASES and series and min(series) > 0:
        return level(series)
    phase = steady.phases.get(name)
    n_steps = steady.n_steps + _first_steps(steady, session)
    if phase is None or phase.total_s <= 0 or n_steps == 0:
        return "it did not occur"
    return Level(math.log(phase.total_s / n_steps), None, 0)


def whole_blocks(steady: StageTimes) -> Sequence[Block]:
    """Return the timeline without a shorter last block, which would have the same weight."""
    blocks = steady.timeline
    return blocks[:-1] if len(blocks) > 1 and blocks[-1].n_steps < blocks[0].n_steps else blocks


def _first_steps(steady: StageTimes, session: Session) -> int:
    """Return the number of first steps of epochs, which are part of the span but not of ``n_steps``."""
    has_single_batches = bool(session.epochs) and all(one.n_steps == 1 for one in session.epochs)  # all are in n_steps
    if steady.n_first_steps or has_single_batches:
        return steady.n_first_steps
    # Older sessions have no such number.
    seen = len(steady.fetch.first_s) if steady.fetch is not None else 0
    return max(seen, session.run.n_epochs - 1) if seen >= _FIRST_WAITS_KEPT else seen


def _share(session: Session, name: str) -> float:
    phase = session.steady.phases.get(name) if session.steady is not None else None
    return 0.0 if phase is None else phase.share


def samples_per_step(session: Session) -> int | None:
    """Return the samples per step of all loaders and ranks; None if a batch size is unknown.

    Other stages than fit go through their loaders one after the other: None if these have several batch sizes.
    """
    stage = {"fit": "train", "validate": "val"}.get(session.run.stage, session.run.stage)
    sizes = [loader.batch_size for loader in session.settings.loaders if loader.stage == stage]
    known = [size for size in sizes if size is not None]
    if not known or len(known) < len(sizes) or (stage != "train" and len({*known}) > 1):
        return None
    return (sum(known) if stage == "train" else known[0]) * session.run.world_size


def _run_noise(sessions: Sequence[Session]) -> tuple[float, str]:
    """Return the relative difference of two runs of this training, and its source."""
    measured = [trial.noise_band for session in sessions for trial in session.trials if trial.aa is not None]
    if measured:
        return max(measured), "the A/A pair of a trial of this training"
    return USUAL_NOISE, "usual on one quiet machine, not measured here: pass three runs per side to measure it"


def _check(base: Sequence[Source], new: Sequence[Source]) -> None:
    if not base or not new:
        raise SessionError("expected at least one session on each side; received none on one of them")
    ids = [session.run.id for _, session in (*base, *new)]
    twice = next((one for one in ids if ids.count(one) > 1), None)
    if twice is not None:
        sources = [source for source, session in (*base, *new) if session.run.id == twice]
        where = ", ".join(sources) if all(sources) else "two of the sessions"
        raise SessionError(f"{where} are the same run ({twice}); expected different runs")
    stages = {session.run.stage for _, session in (*base, *new)}
    if len(stages) > 1:
        raise SessionError(f"the sessions are of different stages ({', '.join(sorted(stages))}); expected one stage")


def _run(source: str, session: Session) -> ComparedRun:
    devices = session.machine.devices
    return ComparedRun(
        source=source,
        id=session.run.id,
        started_at=session.run.started_at,
        n_steps=session.steady.n_steps if session.steady is not None else 0,
        device=devices[0].name if devices else session.machine.cpu_model,
    )


def _figures(before: Sequence[Session], after: Sequence[Session]) -> Iterator[FigureChange]:
    devices = dict.fromkeys(one.device for session in (*before, *after) for one in session.memory.devices)
    figures: list[tuple[str, str, Callable[[Session], float | None]]] = [
        ("samples per second", "",
         lambda s: s.steady.samples_per_s * s.run.world_size if s.steady and s.steady.samples_per_s else None),
        ("step p95", "s", lambda s: s.steady.step_s.p95 if s.steady else None),
        ("step p99", "s", lambda s: s.steady.step_s.p99 if s.steady else None),
        ("device waiting for data", "fraction",
         lambda s: s.steady.device.starved_share if s.steady and s.steady.device else None),
        ("time to the first step", "s", lambda s: s.run.time_to_first_step_s),
        ("host peak", "bytes", lambda s: s.memory.host_peak_rss_bytes),
        *[(f"{device} peak allocated", "bytes", _device_peak(device, "peak_allocated_bytes")) for device in devices],
        *[(f"{device} peak reserved", "bytes", _device_peak(device, "peak_reserved_bytes")) for device in devices],
        ("PerfDoctor's overhead per step", "us", lambda s: s.overhead.per_step_us if s.overhead else None),
    ]  # fmt: skip
    for name, unit, figure in figures:
        base, new = _median(map(figure, before)), _median(map(figure, after))
        if base is not None or new is not None:
            yield FigureChange(name=name, unit=unit, base=base, new=new)


def _device_peak(device: str, field: str) -> Callable[[Session], float | None]:
    return lambda session: next((getattr(one, field) for one in session.memory.devices if one.device == device), None)


def _median(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _findings(before: Sequence[Session], after: Sequence[Session]) -> Iterator[FindingChange]:
    """Yield findings that appeared, then those that disappeared, then the rest; each group worst first."""
    base, new = _frequent_findings(before), _frequent_findings(after)
    latest = base | new

    def rank(code: str) -> tuple[int, int, str]:
        group = 0 if code not in base else 1 if code not in new else 2
        return group, SEVERITIES.index(latest[code].severity), code

    for code in sorted(latest, key=rank):
        absent_from = before if code not in base else after if code not in new else None
        yield FindingChange(
            code=code,
            name=latest[code].name,
            base=base[code].severity if code in base else None,
            new=new[code].severity if code in new else None,
            summary=latest[code].summary,
            unchecked="" if absent_from is None else _unchecked(absent_from[0], code),
        )


def _frequent_findings(side: Sequence[Session]) -> dict[str, Finding]:
    """Return the findings of at least half of a side's runs, as in the first of these runs."""
    found: dict[str, list[Finding]] = {}
    for session in side:
        for code, finding in {one.code: one for one in reversed(session.findings)}.items():
            found.setdefault(code, []).append(finding)
    return {code: findings[0] for code, findings in found.items() if 2 * len(findings) >= len(side)}


def _unchecked(session: Session, code: str) -> str:
    """Return why a rule gave no answer; empty if it passed."""
    outcome = next((one for one in session.outcomes if one.code == code), None)
    if outcome is None:
        return "its lightning-perf did not have this rule" if session.outcomes else "no rule was run on it"
    return outcome.reason or outcome.status if outcome.status in ("skipped", "ignored", "failed") else ""


def _environment(before: Session, after: Session) -> Iterator[Difference]:
    yield from _differences("machine", before.machine, after.machine)
    for name in ("world_size", "lightning_perf"):
        yield from _differences(f"run.{name}", getattr(before.run, name), getattr(after.run, name))


def _compared_settings(before: Session, after: Session) -> list[Any]:
    """Return the settings of two runs; a loader that only one of them has is one value."""
    sides = [msgspec.to_builtins(each.settings) for each in (before, after)]
    n = min(len(side["loaders"]) for side in sides)
    for side in sides:
        (side["model"] or {}).pop("optimizers_site", None)  # a place in the code
        others = [f"{each['stage']} {each['dataset_class'] or 'loader'}" for each in side["loaders"][n:]]
        side["loaders"] = [*side["loaders"][:n], *others]
    return sides


def _differences(name: str, base: Any, new: Any) -> Iterator[Difference]:
    """Yield values that differ, by their path."""
    before, after = (dict(leaves(name, msgspec.to_builtins(side))) for side in (base, new))
    for path in dict.fromkeys((*before, *after)):
        if before.get(path) != after.get(path):
            yield Difference(name=path, base=before.get(path), new=after.get(path))


def leaves(path: str, value: Any) -> Iterator[tuple[str, str | None]]:
    """Yield the values of a nested document as text, by their path."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from leaves(f"{path}.{key}", one)
    elif isinstance(value, (list, tuple)) and any(isinstance(one, dict) for one in value):
        for i, one in enumerate(value):
            yield from leaves(f"{path}[{i}]", one)
    elif isinstance(value, (list, tuple)):
        yield path, ", ".join(map(str, value)) or None
    else:
        yield path, None if value is None else str(value)


def _trials(before: Sequence[Session], after: Sequence[Session]) -> Iterator[TrialChange]:
    base, new = (  # by id, from the last trial that measured them
        {arm.id: arm for session in side for trial in session.trials for arm in trial.arms if arm.treatments}
        for side in (before, after)
    )
    for arm in dict.fromkeys((*base, *new)):
        first, second = base.get(arm), new.get(arm)
        yield TrialChange(
            arm=arm,
            base=first.speedup if first else None,
            new=second.speedup if second else None,
            base_verdict=first.verdict if first else None,
            new_verdict=second.verdict if second else None,
        )


def _cautions(before: Sequence[Session], after: Sequence[Session], is_per_sample: bool) -> Iterator[str]:
    base, new = before[0], after[0]
    if [device.name for device in base.machine.devices] != [device.name for device in new.machine.devices] or (
        base.machine.cpu_model != new.machine.cpu_model or base.machine.usable_cores != new.machine.usable_cores
    ):
        yield "the machines differ, so the figures compare machines as much as trainings"
    elif base.machine.hostname != new.machine.hostname:
        yield "the runs were made on different hosts, which can differ by more than two runs on one host"
    if is_per_sample:
        yield "batches differ in size, so times are per sample"
    for label, side in (("base", before), ("new", after)):
        if any(session.run.status != "finished" for session in side):
            yield f"{label} did not finish ({', '.join(sorted({session.run.status for session in side}))})"
        if any(session.steady is not None and session.steady.is_steady is False for session in side):
            yield f"{label} was not steady: its first and second half differ by more than 10 %"
        if any(one.status == "applied" for session in side for one in session.applied):
            yield f"treatments were applied while {label} ran: its figures include the time before and after"
        if any(next(_differences("", side[0].settings, session.settings), None) for session in side[1:]):
            yield f"the runs of {label} have different settings"
