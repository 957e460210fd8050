"""Measure one rank, and share its summary with the other ranks."""

import platform
from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch.nn.parallel import DistributedDataParallel

from lightning_perf import seams
from lightning_perf.probes.base import Probe, RunContext
from lightning_perf.probes.clock import NEVER
from lightning_perf.probes.loader.first_batches import FirstBatchesProbe
from lightning_perf.probes.memory.host_memory import peak_rss_bytes
from lightning_perf.probes.timeline.loop import BROADCASTING, REDUCING, LoopTimer
from lightning_perf.records import (
    MAX_FOUND,
    Epoch,
    Finding,
    NamedTime,
    Ranks,
    RankSummary,
    StageTimes,
    combine_ranks,
    costly_line,
)

from .backward import BackwardWatch, MarkedBroadcast, backward_watch
from .exchange import open_exchange

EPOCH_LIMIT_S = 2.0
"""Seconds that rank 0 waits for late ranks at the end of an epoch: with synchronized batches, only a rank with a
problem is later."""

RUN_LIMIT_S = 10.0
"""The same at the end of the run."""


class RankProbe(Probe):
    """Summary of one of several ranks, shared with the others. Every rank makes one in the Trainer's ``setup``."""

    name = field = "ranks"

    def __init__(self, trainer: Any) -> None:
        self.ranks: Ranks | None = None
        self._why_unknown = ""  # the reason without ``_watch``
        self._watch: BackwardWatch | None = None
        self._first_batches: FirstBatchesProbe | None = None
        self._undos = seams.Undos()
        self._is_closed = False
        self._exchanges_in_forward = False
        self._trainer = trainer
        self._exchange = open_exchange(trainer)

    def loops_ready(self, run: RunContext) -> None:
        """Start once the model of a fit is wrapped for its strategy."""
        if run.stage != "fit":
            return
        loop = run.loop
        self._first_batches = run.probes.find(FirstBatchesProbe)
        self._watch, self._why_unknown = backward_watch(self._trainer, loop.timeline, loop.make_event())
        # All other strategies may wait for other ranks in forward.
        self._exchanges_in_forward = not isinstance(self._trainer.strategy.model, DistributedDataParallel)
        if self._watch is not None and self._watch.is_on_device:
            seams.tap_sigterm_broadcast(self._trainer, MarkedBroadcast(self._watch), self._undos)

    @property
    def next_step(self) -> int:
        """Index of the next step that this probe must observe: each, so that ranks sample the same ones, or none."""
        return 0 if self._watch is not None and not self._is_closed else NEVER

    def step_begins(self, batch: Any) -> None:
        if self._watch is not None:
            self._watch.batch_begins()

    def before_backward(self) -> None:
        if self._watch is not None:
            self._watch.before_backward()

    def after_backward(self) -> None:
        if self._watch is not None:
            self._watch.after_backward()

    def record(self) -> Ranks | None:
        return self.ranks

    def reasons(self) -> dict[str, str]:
        if self.ranks is None:
            return {"ranks": "ranks are compared at the end of a training epoch, and none was reached"}
        return {"ranks.summaries.waiting_s": self._why_unknown} if self._watch is None else {}

    def close(self) -> None:
        self._is_closed = True
        if self._watch is not None:
            self._watch.stop()
        self._undos.close()

    abandon = close

    def summary(self, loop: LoopTimer, found: Sequence[Finding] = ()) -> RankSummary | None:
        """Return this rank's summary, with the findings of its last diagnosis."""
        main = loop.main
        summary = rank_summary(
            self._trainer.global_rank,
            main.stage_times(),
            loop.named(),
            main.epochs_so_far(),
            self._watch,
            self._exchanges_in_forward,
        )
        names = {f"{finding.code} {finding.name}": finding for finding in found[:MAX_FOUND]}
        lines = {name: line for name, finding in names.items() if (line := costly_line(finding))}
        if summary is None:
            return None
        first = self._first_batches.digest() if self._first_batches is not None else None
        return msgspec.structs.replace(summary, found=tuple(names), found_lines=lines, first_batches=first)

    def end_alone(self, loop: LoopTimer, found: Sequence[Finding] = ()) -> None:
        """Keep this rank's summary without an exchange: after an error, other ranks may have ended."""
        own = self.summary(loop, found)
        if own is None:
            return
        known = self.ranks.summaries if self.ranks is not None else ()
        missing = self.ranks.missing if self.ranks is not None else ()
        self.ranks = combine_ranks((*known, own), self._trainer.world_size, missing)

    def share(self, loop: LoopTimer | None, is_last: bool, found: Sequence[Finding] = ()) -> None:
        """Combine all ranks in ``ranks``. A rank whose own probes failed must take part too, with ``loop`` None."""
        failure: Exception | None = None
        summary = None
        try:
            summary = self.summary(loop, found) if loop is not None else None
        except Exception as error:  # noqa: BLE001 - raised again after the exchange, in which others wait for this rank
            failure = error
        if self._exchange is not None:
            self.ranks = self._exchange.share(summary, RUN_LIMIT_S if is_last else EPOCH_LIMIT_S)
        elif summary is not None:
            self.ranks = combine_ranks((summary,), self._trainer.world_size)
        if failure is not None:
            raise failure


_HOST_KINDS = frozenset({"callback", "progress_bar", "checkpoint_callback", "module_hook", "logger"})


def rank_summary(
    rank: int,
    steady: StageTimes | None,
    named: Sequence[NamedTime],
    epochs: Sequence[Epoch],
    watch: BackwardWatch | None,
    exchanges_in_forward: bool = False,
) -> RankSummary | None:
    """Return this rank's summary; None before it measured a steady step.

    ``watch`` measures what it waits for in backward; None if unknown. If the strategy also waits for other ranks in
    forward (sharded parameters, tensor parallelism), its own work in forward and optimizer is unknown.
    """
    if steady is None or steady.n_steps == 0:
        return None

    n_steps = steady.n_span_steps

    def mean_s(*phases: str) -> float:
        return sum(steady.phases[name].total_s for name in phases if name in steady.phases) / n_steps

    def median_s(*phases: str) -> float:
        return sum(steady.phases[name].p50_s or 0.0 for name in phases if name in steady.phases)

    # In these calls the host waits for other ranks outside backward. Unlike phases of steps, named times include time
    # between epochs, and so are limited to the phases.
    loop_s = mean_s("scheduler", "callbacks", "logging", "other")
    outside = sum(one.share for one in named if one.kind == "loop" and one.name in (REDUCING, BROADCASTING))
    outside_s = min(outside * steady.span_s / n_steps, loop_s)
    data_s, host_s = mean_s("data_wait", "transfer"), loop_s - outside_s
    own_backward_s = watch.own_s() if watch is not None else None
    waiting_s = watch.waiting_s() if watch is not None and watch.is_on_device else None
    compute_s: float | None
    if waiting_s is not None:
        # The host's waits do not show the device's work, which is the remaining time.
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
    parts = {"data": data_s, "compute": compute_s, "host": host_s}
    parts_s = {part: seconds for part, seconds in parts.items() if seconds is not None}
    if waiting_s is not None:  # phases include a step ended by an error, perhaps of another rank
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
        slowest_s=slowest.share * steady.span_s / n_steps if slowest is not None else 0.0,
        n_batches=latest.n_steps if latest is not None else None,
        n_samples=latest.samples if latest is not None else None,
        n_unused=watch.n_unused if watch is not None else None,
        peak_bytes=_peak_bytes(),
    )


def _peak_bytes() -> int | None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return int(torch.cuda.max_memory_allocated())
    return peak_rss_bytes()
