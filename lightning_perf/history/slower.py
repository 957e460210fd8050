"""Find the times of a run that are longer than in earlier runs of the same training."""

import math
from collections.abc import Collection, Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from lightning_perf.records import STEP_PHASES, Block, Session
from lightning_perf.stats.comparison import BAND, MIN_EPOCHS, epoch_walls, samples_per_step, whole_blocks
from lightning_perf.stats.next_run import (
    LAST_RUNS,
    MIN_RUNS,
    MIN_RUNS_TO_FIT,
    TimeSeries,
    detectable,
    excess,
    explained,
    threshold,
)

_BLOCKS = 16
"""Fewest parts of a run that its level is based on: most of them must be without rare slow steps."""

_BLOCK_STEPS = 8
"""Steps per part, if a run has enough: few parts have more than the one slow step that is left out."""

_SLOW = 3.0
"""A step is slow if it takes this many times as long as the others, as in ``SlowStep``."""

_WEIGHTS, _PHASES_WEIGHT = {"step": 6.0, "wall": 2.0}, 2.0
"""Weights by which alpha is divided; all phases together have ``_PHASES_WEIGHT``. Phases vary little in proportion to
each other."""

_MIN_RELATIVE_TO_EACH, _MIN_OF_STEP = 1 / 3, 1 / 4
"""Fractions of a phase's growth relative to all other phases together. The phase must have grown by more than the first
relative to each single phase, and the step must be longer by more than the second. Otherwise another phase may have
become shorter, or a wait may have moved between phases."""

_FIXED_PIECE, _MIN_OTHERS = "fixed piece", 2
"""A phase is compared one by one with at least two others, because a single one may have become shorter. One of them
may be the Python benchmark that ``probes/machine_speed`` times in each run."""

_LARGEST = math.log(1000)
"""Largest log factor that is reported as detectable."""


class Slower(NamedTuple):
    """A time that is longer than in earlier runs.

    Attributes:
        name: As in ``Comparison.times``.
        factor: How many times as long it is, without what is explained.
        explained: How many times as long it is because the machine is slower, or because the other phases are.
        phase: The phase that grew more than all others; empty if the time as a whole was compared.
        has_slower_rest: Whether ``explained`` is how many times as long the other phases are.
    """

    name: str
    factor: float
    explained: float
    phase: str = ""
    has_slower_rest: bool = False


def slower_times(base: Sequence[Session], session: Session, alpha: float) -> list[Slower]:
    """Return the times that are longer than in earlier runs: of a step, of an epoch, of a step because of a phase.

    ``base`` are earlier runs, oldest first. ``alpha`` is the probability of any time in the result if nothing changed.
    What a slower machine explains is not included, where runs show how fast it was. The other phases always show it,
    so that a change of one phase is found on a machine whose speed changes more than the training.
    """
    whole, phases = _comparable(base, session), _phase_ratios(base, session)
    series, parts = whole | phases, parts_of_alpha(whole, phases)
    excesses = {name: excess(*each) for name, each in series.items()}
    is_longer = {
        name: excesses[name] > max(math.log1p(BAND), threshold(*each, alpha * parts[name]))
        for name, each in series.items()
    }
    found = [
        Slower(name, math.exp(excesses[name]), math.exp(explained(*each)))
        for name, each in whole.items()
        if is_longer[name]
    ]
    grown = [name for name in phases if is_longer[name] and _outgrew_every_other(base, session, name)]
    if grown and not is_longer["step"]:
        phase = max(grown, key=lambda name: excesses[name])
        by = min(excesses["step"], excesses[phase])
        if by > max(math.log1p(BAND), _MIN_OF_STEP * excesses[phase]):
            others = explained(*whole["step"]) + excesses["step"] - by
            found.append(Slower("step", math.exp(by), math.exp(others), phase, by < excesses["step"]))
    return found


def like_runs(base: Sequence[Session], session: Session) -> list[Session]:
    """Return the earlier runs to compare a run with.

    These are the runs that timed the machine if this run, the last ``LAST_RUNS`` and at least half of all did, but at
    least ``MIN_RUNS_TO_FIT``; otherwise all.
    """
    *earlier, new = _fixed_s([*base, session])
    timed = [one for one, fixed_s in zip(base, earlier, strict=True) if fixed_s is not None]
    has_enough = None not in (new, *earlier[-LAST_RUNS:]) and len(timed) >= max(MIN_RUNS_TO_FIT, len(base) / 2)
    return timed if has_enough else list(base)


def explained_factor(base: Sequence[Session], session: Session, figure: str) -> float:
    """Return how many times as long the figure is because the machine is slower; 1 if earlier runs do not show it."""
    known = _comparable(base, session)
    return math.exp(explained(*known[figure])) if figure in known else 1.0


def machine_factor(base: Sequence[Session], session: Session) -> float | None:
    """Return how many times as long the fixed piece of Python takes as in the last runs; None if not all timed it."""
    all_s = _fixed_s([*base[-LAST_RUNS:], session])
    known_s = [each for each in all_s if each is not None]
    return math.exp(_log_growth(known_s)) if len(all_s) == len(known_s) > 1 else None


def detectable_factor(base: Sequence[Session], session: Session, alpha: float) -> float | None:
    """Return the least factor between steps that ``slower_times`` finds; None if runs cannot be compared."""
    known = _comparable(base, session)
    if "step" not in known:
        return None
    part = parts_of_alpha(known, _phase_ratios(base, session))["step"]
    return math.exp(min(_LARGEST, max(math.log1p(BAND), detectable(*known["step"], alpha * part))))


def parts_of_alpha(known: Iterable[str], phases: Collection[str]) -> dict[str, float]:
    """Return the part of alpha that each of the compared times has."""
    weights = {name: _WEIGHTS[name] for name in known} | {name: _PHASES_WEIGHT / len(phases) for name in phases}
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


def _comparable(base: Sequence[Session], session: Session) -> dict[str, tuple[list[TimeSeries], TimeSeries]]:
    """Return the earlier runs and the new one, for each figure that enough of them have."""
    sessions = [*base, session]
    units = _units_per_step(sessions)
    known = {}
    for name, all_series in (("step", map(_typical, _groups(sessions))), ("wall", map(_walls, sessions))):
        runs = [
            one and one._replace(step_s=[step_s / n for step_s in one.step_s], fixed_s=fixed_s)
            for one, n, fixed_s in zip(all_series, units, _fixed_s(sessions), strict=True)
        ]
        new, earlier = runs[-1], [one for one in runs[:-1] if one is not None]
        if new is not None and len(earlier) >= MIN_RUNS:
            known[name] = (earlier, new)
    return known


def _fixed_s(sessions: Sequence[Session]) -> list[float | None]:
    """Return the time of the fixed piece of Python in each run; None in another Python than the last run's."""
    python = sessions[-1].machine.python
    return [one.steady.fixed_python_s if one.steady and one.machine.python == python else None for one in sessions]


def _phase_ratios(base: Sequence[Session], session: Session) -> dict[str, tuple[list[TimeSeries], TimeSeries]]:
    """Return, for each phase that is long enough to slow a step down, the time of a step ÷ that of all other phases."""
    all_groups, found = _groups([*base, session]), {}
    for name in _long_phase_s(session):
        *earlier, new = [_ratios(groups, name) for groups in all_groups]
        known = [one for one in earlier if one is not None]
        if new is not None and len(known) >= MIN_RUNS:
            found[name] = (known, new)
    return found


def _outgrew_every_other(base: Sequence[Session], session: Session, name: str) -> bool:
    """Return whether a phase grew relative to each other long phase and to the fixed piece of Python.

    If only the sum of the others shrank, or grew less, one of these may have changed and not this phase.
    """
    sessions = [*base[-LAST_RUNS:], session]
    all_fixed_s = _fixed_s(sessions) if len(set(_units_per_step(sessions))) == 1 else [None] * len(sessions)
    runs_s = [
        _long_phase_s(one) | ({_FIXED_PIECE: fixed_s} if fixed_s else {})
        for one, fixed_s in zip(sessions, all_fixed_s, strict=True)
    ]
    if not any(name in run_s for run_s in runs_s[:-1]):
        return True
    growth = {each: _log_growth([run_s[each] for run_s in runs_s]) for each in set.intersection(*map(set, runs_s))}
    others = [each for each in growth if each != name]
    if name not in growth or len(others) < _MIN_OTHERS:
        return False
    rest_s = [sum(each_s for each, each_s in run_s.items() if each not in (name, _FIXED_PIECE)) for run_s in runs_s]
    return growth[name] - max(growth[each] for each in others) > _MIN_RELATIVE_TO_EACH * (
        growth[name] - _log_growth(rest_s)
    )


def _log_growth(runs_s: Sequence[float]) -> float:
    """Return by how much the last logarithm exceeds the mean of the others."""
    *earlier, new = map(math.log, runs_s)
    return new - fmean(earlier)


def _long_phase_s(session: Session) -> dict[str, float]:
    """Return seconds per step of phases that are long enough to slow a step down."""
    steady = session.steady
    if steady is None:
        return {}
    return {
        name: phase.total_s / steady.n_span_steps
        for name, phase in steady.phases.items()
        if name in STEP_PHASES and phase.share > BAND
    }


def _groups(sessions: Sequence[Session]) -> list[list[Sequence[Block]]]:
    """Return blocks in groups of about as many steps in each run, on which the level of skewed steps depends."""
    blocks = [whole_blocks(one.steady) if one.steady is not None else () for one in sessions]
    known = [each for each in blocks if each]
    size = min(
        max([_BLOCK_STEPS, *(each[0].n_steps for each in known)]),
        min((sum(block.n_steps for block in each) // _BLOCKS for each in known), default=1),
    )
    return [_grouped(each, size) for each in blocks]


def _grouped(blocks: Sequence[Block], group_steps: int) -> list[Sequence[Block]]:
    """Return groups of at least so many steps; none if a block took no time."""
    if not blocks or min(block.step_s for block in blocks) <= 0:
        return []
    n = max(1, -(-group_steps // blocks[0].n_steps))
    return [blocks[i : i + n] for i in range(0, len(blocks) - n + 1, n)]


def _typical(groups: list[Sequence[Block]]) -> TimeSeries | None:
    """Return means of the steps of each group, without its slowest step if that is slow; None without any.

    One step in a hundred that takes five times as long would add more to the variance than all others.
    """
    if not groups:
        return None
    steps = len(groups[0]) * groups[0][0].n_steps
    return TimeSeries([_typical_step_s(group, steps) for group in groups], steps)


def _ratios(groups: list[Sequence[Block]], name: str) -> TimeSeries | None:
    """Return the time of each group ÷ that of its other phases; None without any, or if one has no other."""
    times_s = [(sum(one.step_s for one in group), sum(one.phases.get(name, 0.0) for one in group)) for group in groups]
    if not times_s or min(whole_s - phase_s for whole_s, phase_s in times_s) <= 0:
        return None
    return TimeSeries(
        [whole_s / (whole_s - phase_s) for whole_s, phase_s in times_s], len(groups[0]) * groups[0][0].n_steps
    )


def _typical_step_s(group: Sequence[Block], steps: int) -> float:
    whole_s = steps / len(group) * sum(block.step_s for block in group)
    slowest_s = max(block.max_step_s for block in group)
    others_s = (whole_s - slowest_s) / max(1, steps - 1)
    # Times are rounded, so the difference to a very long step may be 0.
    return others_s if 0 < others_s < slowest_s / _SLOW else whole_s / steps


def _walls(session: Session) -> TimeSeries | None:
    walls = epoch_walls(session)
    return TimeSeries(walls, 1.0) if len(walls) >= MIN_EPOCHS else None


def _units_per_step(sessions: Sequence[Session]) -> list[int]:
    """Return samples per step if batch sizes differ, in order to compare times per sample; otherwise ones."""
    sizes = [samples_per_step(one) for one in sessions]
    is_changed = None not in sizes and len(set(sizes)) > 1
    return [size if size and is_changed else 1 for size in sizes]
