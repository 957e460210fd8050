"""Asks what batches cost, once a run waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from lightning_perf.probes import plain
from lightning_perf.probes.machine import local_world_size
from lightning_perf.records import Fetch, LoaderProbe, Settings

from .in_process import InProcessCost
from .prober import LoaderProber

if TYPE_CHECKING:
    from lightning_perf.probes.loop import LoopProbe

_SUSPICIOUS_WAIT_SHARE = 0.02  # below this no advice on the loader could gain anything worth a probe
_PROBED_WAIT_SHARE = 0.05  # of the time: above it the loader is a bottleneck worth taking apart (as for rule PD101)
_PROBE_COST_SHARE = 0.05  # of the run's time so far, the most that waiting for the loader's probe may take

BESIDE_FROM_S = 200.0
"""A training that goes on for less is probed at its end: a probe of up to 20 s beside it would make much of what is
measured of its steps, which share their cores with it."""


class LoaderWatch:
    """Times a few batches of a suspicious training loader, or takes it apart; in a child process either way.

    Args:
        trainer: The Trainer.
        loop: Tells how long the run waits.
        wants_probe: Whether the loader is taken apart; else only a few batches are timed.
        set_telemetry_aside: Told when processes of the probe begin and cease to run beside the training's own.

    Attributes:
        probe: What taking the loader apart has found; None before, and where it is not done.
    """

    def __init__(
        self, trainer: Any, loop: LoopProbe, wants_probe: bool, set_telemetry_aside: Callable[[bool], None]
    ) -> None:
        self.trainer = trainer
        self.loop = loop
        self.probe: LoaderProbe | None = None
        self._wants_probe = wants_probe
        self._set_telemetry_aside = set_telemetry_aside
        self._in_process: InProcessCost | None = None
        self._in_process_result: float | str | None = None
        self._prober: LoaderProber | None = None

    def epoch_ended(self, settings: Settings, is_last: bool) -> None:
        """Asks, if there is reason to, or listens for an answer.

        Args:
            settings: Of the run, with its loaders.
            is_last: Whether the run is over: an answer is then waited for.
        """
        if self._wants_probe:
            self._take_apart(settings, is_last)
        elif self._in_process_result is None:
            self._time_in_process(settings, is_last)

    def completed(self, fetch: Fetch | None) -> Fetch | None:
        """The times of fetching, with what a batch costs in a process without workers, as far as that is known."""
        if fetch is None:
            return None
        batch_s, basis = None, None
        if isinstance(self._in_process_result, float):
            batch_s, basis = self._in_process_result, "batches made in a child process without workers"
        elif self.probe is not None:
            alone = next((point for point in self.probe.curve if point.num_workers == 0), None)
            batch_s = None if alone is None else alone.batch_s
            basis = "the loader without workers, in a child process"
            if alone is None:
                basis = f"not measured: {self.probe.reason}"
        elif isinstance(self._in_process_result, str):
            return msgspec.structs.replace(fetch, in_process_basis=self._in_process_result)
        if basis is None:
            return fetch
        return msgspec.structs.replace(fetch, in_process_batch_s=batch_s, in_process_basis=basis)

    def why_no_probe(self, settings: Settings) -> str:
        """Why the loader was not taken apart."""
        if not self._wants_probe:
            return "probe_data=False"
        if self._prober is not None:
            return "the probe runs"
        if not self.trainer.is_global_zero:
            return "rank 0 probes"
        loaders = [s for s in settings.loaders if s.stage == "train"]
        if len(loaders) > 1:
            return (
                f"{len(loaders)} training loaders are combined: only `lightning-perf data` probes several and tells "
                "the costliest"
            )
        return f"no epoch ended that waited for its data for more than {_PROBED_WAIT_SHARE:.0%} of the time"

    def close(self) -> None:
        """Ends what runs; calling it twice does no harm."""
        try:
            if self._in_process is not None:
                self._in_process.close()
        finally:
            if self._prober is not None:
                self._prober.close()
                self.probe = self._prober.poll()

    def _time_in_process(self, settings: Settings, is_last: bool) -> None:
        if self._in_process is None:
            # Without workers the loader's own fetches are that cost.
            loader = self._suspicious_loader(settings, _SUSPICIOUS_WAIT_SHARE, needs_workers=True)
            if loader is None:
                return
            self._in_process = InProcessCost()
            refusal = self._in_process.start(loader)
            if refusal is not None:
                self._in_process_result = refusal
                return
        patience_s = min(1.0, _PROBE_COST_SHARE * self.loop.wall_ns() / 1e9) if is_last else 0.0
        until = time.monotonic() + patience_s
        while (result := self._in_process.poll()) is None and time.monotonic() < until:
            time.sleep(0.01)
        self._in_process_result = result

    def _take_apart(self, settings: Settings, is_last: bool) -> None:
        """Takes the loader apart beside the training; at the end of the run it is waited for, until its own limit."""
        if self.probe is not None or not self.trainer.is_global_zero:
            return
        if self._prober is None:
            if not is_last and self._is_over_soon():
                return  # better nothing beside it
            loader = self._suspicious_loader(settings, _PROBED_WAIT_SHARE)
            if loader is None:
                return
            self._prober = LoaderProber(is_beside_training=not is_last, local_world_size=local_world_size(self.trainer))
            self.probe = self._prober.start(loader)
            self._set_telemetry_aside(self.probe is None)  # the probe's workers are not the training's
        if self.probe is None:
            self.probe = self._prober.wait() if is_last else self._prober.poll()
            self._set_telemetry_aside(self.probe is None)

    def _is_over_soon(self) -> bool:
        trainer, loop = self.trainer, self.loop
        epochs, steps = trainer.max_epochs, trainer.max_steps
        is_last = epochs is not None and 0 <= epochs <= trainer.current_epoch + 1
        if is_last or trainer.should_stop or 0 <= steps <= trainer.global_step:
            return True
        step_ns = loop.main.recent_median_ns()
        has_end = (epochs is not None and epochs >= 0) or steps >= 0
        if step_ns is None or not has_end:
            return False
        return loop.expected_wall_s(step_ns) - loop.wall_ns() / 1e9 < BESIDE_FROM_S

    def _suspicious_loader(self, settings: Settings, share: float, needs_workers: bool = False) -> Any:
        """The training loader if the run waits for it, or for its start, for more than a share of its time; or None."""
        loaders = [s for s in settings.loaders if s.stage == "train"]
        if len(loaders) != 1 or loaders[0].num_workers is None or (needs_workers and not loaders[0].num_workers):
            return None
        steady = self.loop.main.stage_times()  # what costs something, at the end of each epoch
        if steady is None:
            return None
        shares = [steady.phases[name].share for name in ("data_wait", "epoch_boundary") if name in steady.phases]
        if sum(shares) <= share:
            return None
        return _only_loader(self.trainer.train_dataloader)


def _only_loader(loaders: Any) -> Any:
    """The loader itself, where a Trainer was given a collection of one."""
    while (items := plain.items_of(loaders)) is not None and len(items) == 1:
        loaders = items[0][1]
    return loaders
