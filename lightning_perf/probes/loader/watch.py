"""Decide whether and how to measure the training loader of a run that waits for it."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from lightning_perf.probes import plain
from lightning_perf.probes.base import Probe, RunContext
from lightning_perf.probes.settings.machine import local_world_size
from lightning_perf.probes.telemetry.probe import TelemetryProbe
from lightning_perf.records import Fetch, LoaderProbe, Session, StageTimes

from .copying import why_not_automatic
from .prober import BATCHES_LIMIT_S, LoaderProber

_SUSPICIOUS_WAIT_SHARE = 0.02  # of the time; below this no recommendation for the loader is worth a probe
_PROBED_WAIT_SHARE = 0.05  # of the time; above this the loader is a bottleneck worth a long probe (as for rule PD101)
_PROBE_COST_SHARE = 0.05  # of the run's time so far: limit of waiting for the times of a few batches

SHORT_WAIT_SHARE = 0.20
"""Share of the time waiting for data above which the loader is measured unless ``probe_data=False``."""
SHORT_SHARE = 0.01
"""Share of the run's time that a short probe may take."""
SHORT_LEAST_S, SHORT_MOST_S = 0.5, 5.0
"""A shorter probe measures nothing, so shorter runs are not probed; a longer one is hardly more precise."""


class LoaderWatch(Probe):
    """Measurement, in a child process, of a training loader that costs time, or only of a few of its batches.

    ``probe_data`` is ``"auto"`` for a short probe at the end of the run, True for a long one at the end of the first
    epoch that waits, or False to only time a few batches.

    Attributes:
        probe: The record; None before it is measured, and if it is not.
    """

    name = "loader"
    after = ("steps", "settings", "telemetry")

    def __init__(self, run: RunContext) -> None:
        self.trainer = run.trainer
        self.loop = run.loop
        self.probe: LoaderProbe | None = None
        self._run, self._wants_probe = run, run.probe_data
        self._telemetry = run.probes.find(TelemetryProbe)
        self._batches: LoaderProber | None = None
        self._prober: LoaderProber | None = None
        self._reason = ""

    def before_report(self, is_last: bool) -> None:
        """Start the measurements that the waits so far call for; at the end of a run, wait for the result."""
        self._reason = self._why_not_now()
        if self._reason:
            return
        if self._wants_probe is True:
            self._probe(_PROBED_WAIT_SHARE)
        elif self._wants_probe == "auto" and is_last and self._can_probe_shortly():
            self._probe(SHORT_WAIT_SHARE, SHORT_SHARE * self.loop.wall_ns() / 1e9)
        if self._wants_probe is not True and self.probe is None:
            self._time_batches(is_last)

    def part(self, session: Session) -> Mapping[str, Any]:
        """Return the record, and the steady state with the cost of a batch without workers."""
        steady = session.steady
        if steady is not None and steady.fetch is not None:
            steady = msgspec.structs.replace(steady, fetch=self._completed(steady.fetch))
        return {"loader_probe": self.probe, "steady": steady}

    def reasons(self) -> Mapping[str, str]:
        return {} if self.probe is not None else {"loader_probe": self._why_no_probe()}

    def _completed(self, fetch: Fetch) -> Fetch:
        """Return the times of fetching with the cost of a batch without workers, or why that is unknown."""
        reason = ""
        for probe, basis in (
            (self._batches and self._batches.poll(), "batches made in a child process without workers"),
            (self.probe, "the loader without workers, in a child process"),
        ):
            alone = probe.point_at(0) if probe else None
            if alone is not None:
                return msgspec.structs.replace(fetch, in_process_batch_s=alone.batch_s, in_process_basis=basis)
            reason = f"not measured: {probe.reason}" if probe else reason
        return msgspec.structs.replace(fetch, in_process_basis=reason) if reason else fetch

    def _why_no_probe(self) -> str:
        """Return why there is no record."""
        if self._wants_probe is False:
            return "probe_data=False"
        loaders = [s for s in self._run.settings.loaders if s.stage == "train"]
        if len(loaders) == 1 and loaders[0].num_workers is None:
            return loaders[0].refusal or "the number of workers is not known"
        if self._reason:
            return self._reason
        if len(loaders) > 1:
            return (
                f"{len(loaders)} training loaders are combined: only `lightning-perf data` probes several and names "
                "the costliest"
            )
        if self._wants_probe == "auto":
            return f"fit did not wait for data over {SHORT_WAIT_SHARE:.0%} of the time, or has not ended"
        return f"no epoch ended that waited for its data for more than {_PROBED_WAIT_SHARE:.0%} of the time"

    def close(self) -> None:
        try:
            if self._batches is not None:
                self._batches.close()
        finally:
            if self._prober is not None:
                self._prober.close()
                self.probe = self._prober.poll()

    def _time_batches(self, is_last: bool) -> None:
        if self._batches is None:
            # Without workers, the loader's own fetches show the cost of a batch.
            loader = self._suspicious_loader(_SUSPICIOUS_WAIT_SHARE, needs_workers=True)
            if loader is None:
                return
            self._batches = LoaderProber(BATCHES_LIMIT_S, extent="batches")
            self._batches.start(loader)
        self._batches.wait(min(1.0, _PROBE_COST_SHARE * self.loop.wall_ns() / 1e9) if is_last else 0.0)

    def _why_not_now(self) -> str:
        """Return why nothing can be measured now; empty if it can."""
        if self.trainer.received_sigterm or self.trainer.interrupted:
            return "the run was asked to end"
        return "" if self.trainer.is_global_zero else "rank 0 probes"

    def _can_probe_shortly(self) -> bool:
        """Return whether the run was long enough for a probe of 1 % of its time to measure something."""
        trainer = self.trainer
        if trainer.fast_dev_run:
            return False
        if trainer.should_stop and not any(map(has_stopped, trainer.early_stopping_callbacks)):
            self._reason = "the training was stopped, perhaps because its process has to end"
            return False
        wall_s = self.loop.wall_ns() / 1e9
        if SHORT_SHARE * wall_s < SHORT_LEAST_S:
            self._reason = (
                f"{wall_s:.0f} s of training are too short for a probe of {SHORT_SHARE:.0%} of them; "
                "PerfDoctor(probe_data=True) measures the loader anyway"
            )
            return False
        return True

    def _probe(self, share: float, short_s: float | None = None) -> None:
        """Probe the loader and wait for the record, unless it was probed or waits for data take less than ``share``.

        ``short_s`` is the time for a short probe; None for a long one.
        """
        if self.probe is not None:
            return
        loader = self._suspicious_loader(share)
        if loader is None:
            return
        ranks = local_world_size(self.trainer)
        steady = self.loop.main.stage_times()
        load = None if steady is None else self._load(steady)
        if short_s is None:
            prober = LoaderProber(local_world_size=ranks, load=load)
        else:
            self._reason = why_not_automatic(loader) or ""
            if self._reason:
                return
            prober = LoaderProber(min(short_s, SHORT_MOST_S), local_world_size=ranks, load=load, extent="short")
        self._prober = prober
        leave_out: Callable[[bool], None] = self._telemetry.leave_out if self._telemetry is not None else lambda _: None
        leave_out(True)  # the probe's workers are not the training's
        try:
            self.probe = prober.start(loader) or prober.wait(is_over=lambda: self.trainer.received_sigterm)
        finally:
            leave_out(False)

    def _load(self, steady: StageTimes) -> tuple[float, int]:
        """Return the seconds per step that the training computes, and its number of threads."""
        wait_s = steady.phases["data_wait"].total_s if "data_wait" in steady.phases else 0.0
        compute_s = max(0.0, steady.step_s.mean - wait_s / steady.n_span_steps)
        most = float(self._run.settings.torch.n_threads or 1)
        if self.trainer.strategy.root_device.type != "cpu":
            most = 1.0  # the thread that launches kernels and waits for them
        host = None if self._telemetry is None else self._telemetry.record().host
        if host is None or host.process_cpu_cores is None or compute_s <= 0:
            return compute_s, max(1, round(most))
        loader = next(each for each in self._run.settings.loaders if each.stage == "train")
        loading_s = 0.0 if loader.num_workers else steady.step_s.mean - compute_s
        loading_s *= 1.0 - (host.fetch_blocked_fraction or 0.0)
        busy = (host.process_cpu_cores.mean * steady.step_s.mean - loading_s) / compute_s
        return compute_s, max(1, round(min(most, busy)))

    def _suspicious_loader(self, share: float, needs_workers: bool = False) -> Any:
        """Return the training loader if data waits and epoch starts take more than ``share`` of the time; else None."""
        loaders = [s for s in self._run.settings.loaders if s.stage == "train"]
        if len(loaders) != 1 or loaders[0].num_workers is None or (needs_workers and not loaders[0].num_workers):
            return None
        steady = self.loop.main.stage_times()  # takes a while, which is fine at the end of an epoch
        if steady is None:
            return None
        shares = [steady.phases[name].share for name in ("data_wait", "epoch_boundary") if name in steady.phases]
        if sum(shares) <= share:
            return None
        return _only_loader(self.trainer.train_dataloader)


def has_stopped(callback: Any) -> bool:
    """Return whether an ``EarlyStopping`` ended the training; its ``stopped_epoch`` is 0 in the first epoch, too."""
    epoch, n_waits, patience = (plain.stored(callback, name) for name in ("stopped_epoch", "wait_count", "patience"))
    return bool(epoch or (n_waits and n_waits >= patience))


def _only_loader(loaders: Any) -> Any:
    """Return the loader itself if the Trainer was given a collection with one loader."""
    while (items := plain.items_of(loaders)) is not None and len(items) == 1:
        loaders = items[0][1]
    return loaders
