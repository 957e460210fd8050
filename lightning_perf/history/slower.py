"""Find the times of a run that are longer than in earlier runs of the same training."""

import math
from collections.abc import Collection, Iterable, Sequence
from statistics import fmean, median
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
"""Parts of alpha. Phases share theirs: where nothing but one of them grew, it exceeds their noise by far."""

_REST, _MIN_OTHERS, _AGREEING = "rest", 2, 0.5
"""A phase grew itself if, compared with the median of two or more others, it grew by half as much as compared with all
of them together."""

_LARGEST = math.log(1000)
"""Largest log factor that is reported as detectable."""


class Slower(NamedTuple):
    """A time that is longer than in earlier runs.

    Attributes:
        name: As in ``Comparison.times``.
        factor: How many times as long it is, without what is explained.
        explained: How many times as long it is because the machine is slower, or because all other phases are.
        phase: The phase whose growth exceeds that of all others; empty if the time as a whole was compared.
    """

    name: str
    factor: float
    explained: float
    phase: str = ""


def slower_times(base: Sequence[Session], session: Session, alpha: float) -> list[Slower]:
    """Return the times that are longer than in earlier runs: of a step, because of a phase, of an epoch.

    ``base`` are earlier runs, oldest first. ``alpha`` is the probability of any time in the result if nothing changed.
    What a slower machine explains is not included, where runs show how fast it was. The other phases always show it,
    so that a change of one phase is found on a machine whose speed changes more than the training.
    """
    known, phases = _comparable(base, session), _phases(base, session)
    parts = parts_of_alpha(known, phases)
    by = {name: excess(*series) for name, series in (known | phases).items()}
    limits = {name: threshold(*series, alpha * parts[name]) for name, series in (known | phases).items()}
    is_longer = {name: by[name] > max(math.log1p(BAND), limits[name]) for name in by}
    found = [Slower(name, math.exp(by[name]), math.exp(explained(*known[name]))) for name in known if is_longer[name]]
    grown = [name for name in phases if is_longer[name] and _grew_itself(base, session, name)]
    if grown and not is_longer["step"] and by["step"] > 0:
        phase = max(grown, key=lambda name: by[name])
        others = explained(*known["step"]) + by["step"] - by[phase]
        found.insert(0, Slower("step", math.exp(by[phase]), math.exp(others), phase))
    return found


def like_runs(base: Sequence[Session], session: Session) -> list[Session]:
    """Return the earlier runs to compare a run with: those that timed the machine, if the last and half of all did."""
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
    *earlier, new = _fixed_s([*base[-LAST_RUNS:], session])
    known = [math.log(each) for each in earlier if each is not None]
    return math.exp(math.log(new) - fmean(known)) if new and known and len(known) == len(earlier) else None


def detectable_factor(base: Sequence[Session], session: Session, alpha: float) -> float | None:
    """Return the least factor between steps that ``slower_times`` finds; None if runs cannot be compared."""
    known = _comparable(base, session)
    if "step" not in known:
        return None
    part = parts_of_alpha(known, _phases(base, session))["step"]
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
    for name, all_series in (("step", _steps(sessions)), ("wall", _walls(sessions))):
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


def _phases(base: Sequence[Session], session: Session) -> dict[str, tuple[list[TimeSeries], TimeSeries]]:
    """Return, for each phase that is long enough to slow a step down, the time of a step ÷ that of all other phases."""
    steady, all_groups = session.steady, _groups([*base, session])
    found = {}
    for name, phase in {} if steady is None else steady.phases.items():
        if name not in STEP_PHASES or phase.share <= BAND:
            continue
        *earlier, new = [_ratios(groups, name) for groups in all_groups]
        known = [one for one in earlier if one is not None]
        if new is not None and len(known) >= MIN_RUNS:
            found[name] = (known, new)
    return found


def _grew_itself(base: Sequence[Session], session: Session, name: str) -> bool:
    """Return whether a phase grew compared with most others, not only because one of these became shorter.

    The fixed piece of Python counts as one of them.
    """
    *earlier, new = [_phase_s(one, name) for one in (*base[-LAST_RUNS:], session)]
    grew = {
        each: math.log(new[each]) - fmean(math.log(run_s[each]) for run_s in earlier)
        for each in new
        if all(run_s.get(each, 0.0) > 0 for run_s in (new, *earlier))
    }
    most_others = [by for each, by in grew.items() if each not in (name, _REST)]
    if name not in grew or len(most_others) < _MIN_OTHERS:
        return name not in grew
    return grew[name] - median(most_others) > _AGREEING * (grew[name] - grew[_REST])


def _phase_s(session: Session, name: str) -> dict[str, float]:
    """Return seconds per step of long phases, of all but ``name`` (``_REST``), and of the fixed piece of Python."""
    steady = session.steady
    if steady is None:
        return {}
    phases = {each: phase for each, phase in steady.phases.items() if each in STEP_PHASES}
    step_s = {each: phase.total_s / steady.n_steps for each, phase in phases.items()}
    long_s = {each: step_s[each] for each, phase in phases.items() if phase.share > BAND or each == name}
    rest_s = sum(step_s.values()) - step_s.get(name, 0.0)
    return long_s | {_REST: rest_s, "fixed piece": steady.fixed_python_s or 0.0}


def _steps(sessions: Sequence[Session]) -> list[TimeSeries | None]:
    """Return the time per step of groups of blocks; None for runs without blocks."""
    return [_typical(groups) for groups in _groups(sessions)]


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


def _walls(sessions: Sequence[Session]) -> list[TimeSeries | None]:
    walls = [epoch_walls(one) for one in sessions]
    return [TimeSeries(each, 1.0) if len(each) >= MIN_EPOCHS else None for each in walls]


def _units_per_step(sessions: Sequence[Session]) -> list[int]:
    """Return samples per step if batch sizes differ, in order to compare times per sample; otherwise ones."""
    sizes = [samples_per_step(one) for one in sessions]
    is_changed = None not in sizes and len(set(sizes)) > 1
    return [size if size and is_changed else 1 for size in sizes]
