"""The description of a hang, as lines of text."""

from collections import Counter
from collections.abc import Iterator

from lightning_perf.records import Hang, RankState
from lightning_perf.reports.wording import count, cut, line, phase_name, seconds, share

_WIDTH = 160
_MAX_LISTED = 8


def hang_text(hang: Hang, step: str = "step") -> str:
    """Return what hangs where, what workers and other ranks do, and where the stacks are; ``step`` names a step."""
    return "".join(f"{cut(text, _WIDTH)}\n" for text in _lines(hang, step))


def _lines(hang: Hang, step: str) -> Iterator[str]:
    usual = f"; a {step} usually takes {seconds(hang.median_step_s)}" if hang.median_step_s is not None else ""
    yield (
        f"PerfDoctor: nothing has moved for {seconds(hang.quiet_s)} in {phase_name(hang.phase)} "
        f"after {count(hang.n_steps, step)}{usual}"
    )
    if hang.where:
        yield f"  line     {line(hang.where, 200)}{f': {line(hang.code, 200)}' if hang.code else ''}"
    used = f"training thread uses {share(hang.cpu_fraction)} of a core" if hang.cpu_fraction is not None else ""
    if hang.call or used:
        yield f"  call     {'; '.join(each for each in (line(hang.call, 80), used) if each)}"
    for worker in hang.workers[:_MAX_LISTED]:
        place = f"in {worker.waits_in}" if worker.waits_in else "", f"at {worker.where}" if worker.where else ""
        yield f"  worker   process {worker.pid} {line(' '.join(filter(None, (worker.state, *place))), 200)}"
    # Of many ranks, those that are elsewhere than most.
    n_at = Counter(map(_place, hang.ranks))
    ranks = sorted(hang.ranks, key=lambda one: (n_at[_place(one)], one.rank))
    for rank in sorted(ranks[:_MAX_LISTED], key=lambda one: one.rank):
        at = f" at {line(rank.where, 200)}" if rank.where else ""
        yield f"  rank {rank.rank:<3} {phase_name(rank.phase)} after {count(rank.n_steps, step)}{at}"
    if hang.file:
        yield f"  stacks   {line(hang.file, 200)}"
    yield "  The run goes on. DoctorOptions(hang_after_s=None) switches this off."


def _place(rank: RankState) -> tuple[int, str, str]:
    return rank.n_steps, rank.phase, rank.where
