"""Run all probes of one run and assemble its ``Session``."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import torch

from lightning_perf import __version__
from lightning_perf.records import (
    HostTelemetry,
    Hypothesis,
    Machine,
    Overhead,
    Run,
    Session,
    Settings,
    TraceRecord,
)

from . import plain
from .ceilings import CeilingsProbe
from .clock import DeviceEvent, device_clock, now_ns
from .compiler import CompilerProbe
from .energy import Rates
from .host_lines import LineSampler, current_phase
from .loader import LoaderWatch
from .loop import LoopProbe
from .loss_scaler import ScalerProbe
from .machine import local_world_size, read_machine
from .memory import MemoryProbe
from .model import ZeroGradWatch
from .pauses import GarbagePauses
from .profiler_recording import WindowOptions
from .replay import ReplayProbe
from .sampled_steps import SampledSteps
from .session_builder import SessionBuilder, Status
from .settings import read_settings
from .spans import OWN, span_cost_ns
from .telemetry import TelemetryProbe, open_telemetry
from .window import WindowProbe

if TYPE_CHECKING:
    from lightning_perf.options import DoctorOptions

BUDGET_US = 20.0
"""Cost per step that measuring may have, beyond what Lightning charges for any callback."""

_CHECKED_EVALUATION_BATCHES = 3
_EXPENSIVE_SHARE = 0.02  # of the median step: back off if measuring costs more than this and the budget


class Recorder:
    """The probes of one run. Made in the Trainer's ``setup`` for one ``stage``.

    Args:
        trainer: The Trainer.
        pl_module: Its module.
        owner: The callback that measures; its own time is kept apart.
        stage: ``fit``, ``validate``, ``test`` or ``predict``.
        options: Select probes.
        probe_data: Whether the training loader is measured in a child process.
        rates: The user's rates for energy and time.
        on_fail: Called with the name of a probe and its error; that probe is then off.
        clock: The host's clock.
    """

    def __init__(
        self,
        trainer: Any,
        pl_module: Any,
        owner: Any,
        stage: str,
        options: DoctorOptions,
        *,
        probe_data: bool | Literal["auto"],
        rates: Rates,
        on_fail: Callable[[str, Exception], None],
        clock: Callable[[], int] = now_ns,
    ) -> None:
        self.trainer = trainer
        self.pl_module = pl_module
        self.stage = stage
        self.rates = rates
        self.missing: dict[str, str] = {}
        self.windows: WindowProbe | None = None
        self.settings = Settings()
        self._on_fail = on_fail
        reading = self.tried(
            "machine", lambda: read_machine(local_world_size(trainer), device=trainer.strategy.root_device)
        )
        self.machine = reading or Machine(os=sys.platform, python=sys.version.split()[0])
        self._options, self._clock = options, clock
        self.memory: MemoryProbe | None = None
        self.ceilings: CeilingsProbe | None = None
        self.replay: ReplayProbe | None = None
        self._started_s = time.monotonic()
        self.run = Run(
            id=f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{stage}-{uuid.uuid4().hex[:8]}",
            stage=stage,
            status="running",
            started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            wall_s=0.0,
            lightning_perf=__version__,
        )
        self.first_global_step = trainer.global_step
        self._evaluation_batches_seen = 0
        self.evaluation_has_graph: bool | None = None
        self.zero_grad_watch: ZeroGradWatch | None = None
        self.saw_anomaly_detection = False  # by torch's own function, in a hook that runs after ours
        self._span_cost_ns = span_cost_ns(clock)
        events = None
        if options.device_stats:
            found = self.tried("device", lambda: device_clock(trainer.strategy.root_device, partial(on_fail, "device")))
            events, reason = found or (None, "reading the device's clock failed")
            if events is None:
                self.missing["steady.device"] = reason
        else:
            self.missing["steady.device"] = self.missing["telemetry"] = "device_stats=False"
        self.loop = LoopProbe(trainer, pl_module, owner, stage, clock, partial(on_fail, "steps"), device_clock=events)
        self.loader = LoaderWatch(trainer, self.loop, probe_data, self._set_telemetry_aside, self._host)
        self.sampled_steps: SampledSteps | None = None
        self.compiler: CompilerProbe | None = None
        self.scaler: ScalerProbe | None = None
        self.pauses = GarbagePauses(clock, is_counted=self._is_training_time, phase=lambda: current_phase(self.loop))
        self.host_lines: LineSampler | None = None
        if not options.host_lines:
            self.missing["host_profile"] = "host_lines=False"
        self.telemetry: TelemetryProbe | None = None

    # -- the run's events ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Install the probes."""
        self.loop.install()
        if self._options.memory:
            self.tried("memory", self._start_memory)
        else:
            self.missing["memory"] = "memory=False"
        self.pauses.start()
        if self.stage == "fit":
            self.tried("compiler", self._start_compiler)
            self.tried("sampled_steps", self._start_sampled_steps)
        if "host_profile" not in self.missing:
            self.tried("host_lines", self._start_host_lines)

    def _start_host_lines(self) -> None:
        self.host_lines = LineSampler(self.loop, self.pauses.automatic_so_far_ns)
        self.host_lines.start()

    def _start_compiler(self) -> None:
        main = self.loop.main
        self.compiler = CompilerProbe(self._clock, main.leave_out, step=lambda: main.n_steps)
        self.compiler.begin()

    def _start_sampled_steps(self) -> None:
        options = self._options
        if not options.module_depth:
            self.missing["sync_calls"] = "module_depth=0"
        self.sampled_steps = SampledSteps(
            self.trainer,
            self.pl_module,
            self.loop,
            self._clock,
            self._on_fail,
            depth=options.module_depth,
            counts_operations=options.arithmetic,
            make_event=self._make_event(),
        )
        if options.arithmetic:
            self.ceilings = CeilingsProbe(self.trainer, lambda: self.loop.wall_ns() / 1e9, options.ceilings)
            if options.replay:
                self.replay = ReplayProbe(self.trainer, self._clock, self._make_event())

    def _make_event(self) -> Callable[[], DeviceEvent] | None:
        clock = self.loop.main.device_clock
        return None if clock is None else clock.make_event

    def start_telemetry(self) -> None:
        """Start sampling device and host; does nothing with ``device_stats=False``."""
        if "telemetry" in self.missing:
            return
        loop = self.loop
        self.telemetry = open_telemetry(
            self.trainer.strategy.root_device,
            now_ns=self._clock,
            start_ns=loop.timeline.start_ns,
            step=lambda: loop.main.n_steps,
        )
        self.telemetry.start()
        loop.fetch_watch = self.telemetry.fetch_watch

    def _start_memory(self) -> None:
        fail = partial(self._on_fail, "memory")
        wants_history = self._options.memory_snapshot
        self.memory = MemoryProbe(
            self.trainer, self.pl_module, self.loop, self._clock, fail, wants_history=wants_history
        )

    def open_windows(
        self, options: WindowOptions, folder: Path, is_worth_keeping: Callable[[TraceRecord], bool]
    ) -> None:
        """Allow profiler windows, if the options select this rank and stage."""
        rank = self.trainer.global_rank
        if self.stage in options.stages and (options.ranks == "all" or rank in options.ranks):
            device = self.trainer.strategy.root_device
            no_files = partial(self._on_fail, "traces")
            self.windows = WindowProbe(options, self.loop, device, rank, folder, is_worth_keeping, no_files)

    def stop(self, error: BaseException | None = None) -> None:
        """Restore everything. Can be called again, and then completes a call that an interrupt ended."""
        with ExitStack() as stop:  # calls all of them, last first, whatever they raise
            stop.callback(self.loader.close)
            stop.callback(self.pauses.stop)
            if self.host_lines is not None:
                stop.callback(self.host_lines.stop)
            for probe in (self.compiler, self.scaler, self.sampled_steps, self.memory):
                if probe is not None:
                    stop.callback(probe.close)
            stop.callback(self.loop.uninstall)
            if self.windows is not None:
                stop.callback(self.windows.close, error)
            if self.telemetry is not None:
                self.loop.fetch_watch = None
                stop.callback(self.telemetry.stop)

    def give_up(self) -> None:
        """Restore everything after measuring failed; keep what was measured."""
        self.missing["steady"] = "measuring failed; see probes_off"
        self.stop()
        self.loop.freeze()

    def loops_ready(self) -> None:
        """Read settings: loaders, model and optimizers exist, and the checkpoint is loaded."""
        self.first_global_step = self.trainer.global_step
        self.settings, missing = read_settings(self.trainer, self.pl_module)
        self.missing.update(missing)
        if self.stage == "fit":
            self.zero_grad_watch = ZeroGradWatch()
            self.loop.optimizers_ready(self._optimizer_stepped)
            self.scaler = ScalerProbe(self.trainer)
            self.scaler.start()
            if self.compiler is not None:
                self.compiler.begin()
            dataset = plain.stored(self.trainer.train_dataloader, "dataset")
            if self.telemetry is not None and dataset is not None:
                self.telemetry.dataset_known(dataset)

    def _optimizer_stepped(self, optimizer: Any) -> None:
        """Handle an ``optimizer.step`` of manual optimization."""
        if self.zero_grad_watch is not None:
            self.tried("gradients", self.zero_grad_watch.after_step, optimizer)

    def train_epoch_ended(self) -> None:
        """Read what is recorded once per epoch."""
        self.saw_anomaly_detection = self.saw_anomaly_detection or torch.is_anomaly_enabled()
        if self.scaler is not None:
            self.scaler.read_scale()
        if self.telemetry is not None:
            epochs = self.loop.main.epochs_so_far()
            self.telemetry.epoch_ended(epochs[-1].samples if epochs else None)

    def evaluation_begins(self, batch: Any) -> None:
        """Handle the start of a validation, test or prediction batch."""
        if self.stage == "fit":
            self.loop.validation_begins(batch)
        else:
            self.loop.batch_begins(batch)

    def evaluation_ends(self, outputs: Any) -> None:
        """Handle the end of such a batch; check whether the first ones kept an autograd graph."""
        if self.stage == "fit":
            self.loop.validation.batch_ends()
        else:
            self.loop.batch_ends()
        if self._evaluation_batches_seen < _CHECKED_EVALUATION_BATCHES and not self.trainer.sanity_checking:
            self._evaluation_batches_seen += 1
            tensors = plain.tensors_in(outputs, depth=3, in_objects=False)
            has_graph = any(plain.field(tensor, "grad_fn") is not None for tensor in tensors)
            self.evaluation_has_graph = bool(self.evaluation_has_graph) or has_graph

    def evaluation_epoch_ends(self) -> None:
        """Handle the end of the last such batch."""
        if self.stage == "fit":
            self.loop.validation_epoch_ends()
        else:
            self.loop.epoch_ends()

    def epoch_ended(self, is_last: bool) -> None:
        """Reduce instrumentation when its overhead exceeds the budget; probe the loader when there is reason to."""
        self._keep_to_budget()
        if self.stage == "fit":
            self.loader.epoch_ended(self.settings, is_last)

    def training_ended(self) -> None:
        """Measure the device's ceilings if a step's operations are known, and if that is cheap for this run."""
        if self.ceilings is not None and self.sampled_steps is not None and self.sampled_steps.profile is not None:
            self.ceilings.run_ends()

    def answer(self, hypotheses: tuple[Hypothesis, ...]) -> None:
        """Measure what rules ask by replaying operators of the sampled step. Call it in pauses of the training only."""
        if self.replay is not None and self.sampled_steps is not None:
            self.replay.answer(hypotheses, self.sampled_steps.call_log, self.loop.wall_ns() / 1e9)

    def _host(self) -> HostTelemetry | None:
        return self.telemetry.record().host if self.telemetry is not None else None

    def _set_telemetry_aside(self, is_aside: bool) -> None:
        if self.telemetry is not None:
            self.telemetry.set_aside(is_aside)

    def _keep_to_budget(self) -> None:
        step_ns = self.loop.main.recent_median_ns()
        per_step_us = self.overhead(self.loop.wall_ns() / 1e9).per_step_us
        is_expensive = step_ns is not None and per_step_us > max(BUDGET_US, _EXPENSIVE_SHARE * step_ns / 1e3)
        if is_expensive and not self.loop.backed_off:
            self.loop.back_off()

    # -- the session ------------------------------------------------------------------------------------------------

    def session(self, status: Status = "running", error: BaseException | None = None) -> Session:
        """Return the session so far."""
        return SessionBuilder(self).build(status, error)

    def bare_session(self, status: Status, error: BaseException | None) -> Session:
        """Return a session without measurements."""
        return Session(
            run=msgspec.structs.replace(self.run, status=status, wall_s=self._elapsed_s()),
            machine=self.machine,
            settings=self.settings,
            missing={**self.missing, "steady": "the session could not be put together; see probes_off"},
        )

    def tried(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a probe; on error, report the failure and return None."""
        try:
            return function(*arguments)
        except Exception as error:  # noqa: BLE001 - reported
            self._on_fail(name, error)
            return None

    def report_kept_error(self, name: str, probe: Any) -> None:
        """Report the error that a probe kept because it must not raise where it came."""
        if getattr(probe, "error", None) is not None:
            self._on_fail(name, probe.error)

    def wall_s(self) -> float:
        """Return the wall time by the clock of the phases, so that they add up to it."""
        return self._elapsed_s() if self.loop.timeline.is_frozen else self.loop.wall_ns() / 1e9

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def _is_training_time(self) -> bool:
        """Return whether the first step is over and no hook of PerfDoctor is running."""
        return self.loop.first_step_end_ns is not None and self.loop.timeline.current.phase != OWN

    def overhead(self, wall_s: float) -> Overhead:
        """Return what measuring costs."""
        loop = self.loop
        stepping_ns, reporting_ns = loop.own_ns()
        n_batches = loop.main.n_steps + loop.validation.n_steps
        spans_ns = loop.n_spans() * self._span_cost_ns
        # The median, to ignore steps in which another program ran during a hook.
        per_step_ns = loop.main.own_median_ns() + spans_ns / max(1, n_batches)
        if self.memory is not None:  # read in few steps, so not in the median
            per_step_ns += self.memory.sampling_ns / max(1, loop.main.n_steps)
            reporting_ns += self.memory.outside_ns
        if self.sampled_steps is not None:
            reporting_ns += self.sampled_steps.cost_ns
        if self.host_lines is not None:
            reporting_ns += self.host_lines.cost_ns
        return Overhead(
            per_step_us=per_step_ns / 1e3,
            reporting_s=reporting_ns / 1e9,
            share=(stepping_ns + reporting_ns + spans_ns) / 1e9 / wall_s if wall_s > 0 else 0.0,
            budget_us=BUDGET_US,
            backed_off=tuple(self.loop.backed_off),
        )
