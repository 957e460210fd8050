"""What one rank has to tell the first one."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence

from lightning_perf.probes.host_memory import peak_rss_bytes
from lightning_perf.probes.loop import BROADCASTING, REDUCING
from lightning_perf.records import Epoch, NamedTime, RankSummary, StageTimes

from .backward import BackwardWatch

_HOST_KINDS = frozenset({"callback", "progress_bar", "checkpoint_callback", "module_hook", "logger"})


def rank_summary(
    rank: int,
    steady: StageTimes | None,
    named: Sequence[NamedTime],
    epochs: Sequence[Epoch],
    watch: BackwardWatch | None,
    exchanges_in_forward: bool = False,
) -> RankSummary | None:
    """What this rank has to tell; None before it measured a steady step.

    Args:
        rank: Its global rank.
        steady: Its steady steps.
        named: What took its time, by name.
        epochs: Those that it trained.
        watch: What it waits for in backward; None where that cannot be told.
        exchanges_in_forward: Whether other ranks are waited for in the middle of forward too (sharded parameters,
            tensor parallelism): forward and optimizer are then no part of its own work that could be told apart.
    """
    if steady is None or steady.n_steps == 0:
        return None

    def mean_s(*phases: str) -> float:
        return sum(steady.phases[name].total_s for name in phases if name in steady.phases) / steady.n_steps

    def median_s(*phases: str) -> float:
        return sum(steady.phases[name].p50_s or 0.0 for name in phases if name in steady.phases)

    # There the host waits for the other ranks too, outside backward. Names are counted between epochs as well, steps
    # are not: no more than what the step has of it.
    loop_s = mean_s("scheduler", "callbacks", "logging", "other")
    outside = sum(one.share for one in named if one.kind == "loop" and one.name in (REDUCING, BROADCASTING))
    outside_s = min(outside * steady.span_s / steady.n_steps, loop_s)
    data_s, host_s = mean_s("data_wait", "transfer"), loop_s - outside_s
    own_backward_s = watch.own_s() if watch is not None else None
    waiting_s = watch.waiting_s() if watch is not None and watch.is_on_device else None
    compute_s: float | None
    if waiting_s is not None:
        # Where the host waits for the device says nothing of what the device does then: its work is what is left.
        waiting_s = min(waiting_s, max(0.0, steady.step_s.mean - data_s - host_s))
        compute_s = max(0.0, steady.step_s.mean - data_s - host_s - waiting_s)
        own_p50_s = max(0.0, steady.step_s.p50 - waiting_s)
    elif exchanges_in_forward:
        compute_s = None
        own_p50_s = median_s("data_wait", "transfer", "callbacks", "logging")
    else:
        backward_s = min(own_backward_s or 0.0, mean_s("backward"))
        compute_s = mean_s("forward", "optimizer") + backward_s
        own_p50_s = median_s("data_wait", "transfer", "forward", "optimizer", "callbacks", "logging") + backward_s
        waiting_s = None if own_backward_s is None else mean_s("backward") - backward_s + outside_s
    told = {"data": data_s, "compute": compute_s, "host": host_s}
    parts_s = {part: seconds for part, seconds in told.items() if seconds is not None}
    if waiting_s is not None:  # phases also hold the step that an error cut short, perhaps for want of another rank
        waiting_s = min(waiting_s, max(0.0, steady.step_s.mean - sum(parts_s.values())))
    hosts = [one for one in named if one.kind in _HOST_KINDS and one.phase in ("callbacks", "logging")]
    slowest = max(hosts, key=lambda one: one.share, default=None)
    latest = next((one for one in reversed(epochs) if one.n_steps), None)
    wait = steady.phases.get("data_wait")
    return RankSummary(
        rank=rank,
        node=platform.node(),
        n_steps=steady.n_steps,
        step_s=steady.step_s.mean,
        own_s=sum(parts_s.values()),
        own_p50_s=own_p50_s,
        waiting_s=waiting_s,
        waiting_n=watch.n if watch is not None else 0,
        parts_s=parts_s,
        wait_share=wait.share if wait is not None else 0.0,
        slowest_name=f"{slowest.name}.{slowest.hook}" if slowest is not None else None,
        slowest_s=slowest.share * steady.span_s / steady.n_steps if slowest is not None else 0.0,
        n_batches=latest.n_steps if latest is not None else None,
        n_samples=latest.samples if latest is not None else None,
        n_unused=watch.n_unused if watch is not None else None,
        peak_bytes=_peak_bytes(),
    )


def _peak_bytes() -> int | None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    return peak_rss_bytes()
