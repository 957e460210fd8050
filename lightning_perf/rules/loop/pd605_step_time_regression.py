"""PD605: steps take longer from some point of the run on."""

import statistics
from collections.abc import Sequence

import msgspec

from lightning_perf.records import Block, Finding, Session
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.machine_signals import changes_at, has_lost_cores
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import COMPUTE_PHASES, is_cpu_run, steady_of
from lightning_perf.rules.thresholds import (
    EVEN_PART,
    GROWTH_ALIKE_PART,
    GROWTH_MIN,
    GROWTH_MIN_OWN,
    GROWTH_MIN_WEIGHT,
)
from lightning_perf.rules.user_lines import growing_line
from lightning_perf.rules.wording import duration, percent, place_of
from lightning_perf.stats.changepoint import MIN_SEGMENT, find_change

LOOP = "other"


@rule("PD605", "step-time-regression", line_of=())
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    blocks = steady.timeline
    if len(blocks) < 2 * MIN_SEGMENT:
        raise Skip(f"{len(blocks)} points in the timeline; at least {2 * MIN_SEGMENT} are needed")
    change = find_change([block.step_s for block in blocks])
    if change is None or change.after < (1 + GROWTH_MIN) * change.before:
        return None
    device = steady.device
    if device is not None and device.step_s.std < EVEN_PART * (change.after - change.before):
        raise Skip("the device's own steps did not change as much: at first, the host ran ahead of it")
    before, after = blocks[: change.index], blocks[change.index :]
    names = sorted({name for block in blocks for name in block.phases})
    growth = {name: _median(after, name) - _median(before, name) for name in names}
    phase = max(names, key=lambda name: growth[name], default="")
    n_after = sum(block.n_steps for block in after)
    is_uniform = _is_uniform(before, after, change.after / change.before if change.before > 0 else 1.0)
    # If computing takes longer on a CPU while the training gets fewer cores, other programs are the cause.
    is_machine = phase in COMPUTE_PHASES and is_cpu_run(session) and has_lost_cores(session, after[0].start_s)
    line = growing_line(session, phase) if not is_uniform else None
    place = f"; {place_of(line)} takes a growing part of it" if line is not None else ""
    grew = "all phases grew" if is_uniform else f"{phase.replace('_', ' ') or 'no phase'} grew most"
    where = place_of(line) if line is not None else phase.replace("_", " ") or "the step"
    finding = timed_finding(
        steady,
        summary=(
            f"From step {after[0].first_step} on, a step takes {duration(change.after)} instead of "
            f"{duration(change.before)}; {grew}{place}."
            + (" Training had fewer cores from then on." if is_machine else "")
        ),
        evidence=(
            fact(
                "step time after ÷ before",
                change.after / change.before if change.before > 0 else "before is 0",
                "ratio" if change.before > 0 else "",
                1 + GROWTH_MIN,
                n_after,
            ),
            fact("first slow step", after[0].first_step),
            fact(f"growth of {phase} per step", growth[phase], "s") if phase else None,
            *changes_at(session, after[0].start_s),
        ),
        prescriptions=fix(
            (
                "check what else ran on the machine from then on, and whether batches grew"
                if is_uniform or is_machine
                else f"find what grows or starts at step {after[0].first_step} in {where}"
            ),
            "hours",
        ),
        claims={name: seconds * n_after for name, seconds in growth.items()},
        basis=f"at most the earlier step time in all later steps ({percent(1 - change.before / change.after)} less)",
        confidence="medium",
    )
    # If the machine is the cause, no change of the training helps.
    return (
        msgspec.structs.replace(finding, severity="info", gain=None, claims={}) if is_uniform or is_machine else finding
    )


def _is_uniform(before: Sequence[Block], after: Sequence[Block], growth_ratio: float) -> bool:
    """Return whether all relevant phases (at least two) grew about as much as the step, as on a slower machine."""
    step_s = statistics.median(block.step_s for block in before)
    former = {name: _median(before, name) for name in {name for block in before for name in block.phases}}
    heavy = {name: seconds for name, seconds in former.items() if seconds > 0 and seconds >= GROWTH_MIN_WEIGHT * step_s}
    wanted = 1 + GROWTH_ALIKE_PART * (growth_ratio - 1)
    loop_s = former.get(LOOP, 0.0)
    if growth_ratio >= GROWTH_MIN_OWN and loop_s > 0 and _median(after, LOOP) < wanted * loop_s:
        return False
    return len(heavy) > 1 and all(_median(after, name) >= wanted * seconds for name, seconds in heavy.items())


def _median(blocks: Sequence[Block], phase: str) -> float:
    return statistics.median(block.phases.get(phase, 0.0) for block in blocks)
