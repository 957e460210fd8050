"""Run all probes of one run and assemble its ``Session``."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

from lightning_perf import __version__
from lightning_perf.records import (
    Epoch,
    HostProfile,
    HostTelemetry,
    Hypothesis,
    Machine,
    Memory,
    ModelProfile,
    Overhead,
    Run,
    Session,
    Settings,
    StageTimes,
    Telemetry,
    TraceRecord,
)
from lightning_perf.stats.datasheets import datasheet_of
from lightning_perf.stats.roofline import assessed

from . import ceilings as ceilings_probe
from . import plain
from .arithmetic import ArithmeticProbe
from .clock import device_clock, now_ns
from .compiler import CompilerProbe
from .energy import Rates
from .host_lines import LineSampler, current_phase
from .loader import LoaderWatch
from .looks import ROUNDS, StepLooks
from .loop import LoopProbe
from .loss_scaler import ScalerProbe
from .machine import local_world_size, read_machine
from .memory import MemoryProbe
from .model import ZeroGradWatch
from .module_times import ModuleTime, with_times
from .pauses import GarbagePauses
from .recording import WindowOptions
from .replay import ReplayProbe
from .settings import read_settings, read_step_logging
from .spans import OWN, Timeline, span_cost_ns
from .startup import startup_parts
from .telemetry import TelemetryProbe, open_telemetry, with_cost
from .window import WindowProbe

Status = Literal["running", "finished", "interrupted", "failed"]

BUDGET_US = 20.0
"""What measuring may cost a step, beyond what Lightning charges for any callback."""

_EVALUATION_BATCHES_LOOKED_AT = 3
_DEAR_STEP_SHARE = 0.02  # of the median step: measuring that costs more than this and its budget is cut down


class Recorder:
    """The probes of one run. Made in the Trainer's ``setup`` for one ``stage``.

    The ``wants_*`` arguments select probes. ``on_fail`` gets the name of a probe and its error; that probe is then off.
    """

    def __init__(
        self,
        trainer: Any,
        pl_module: Any,
        owner: Any,
        stage: str,
        *,
        wants_memory: bool,
        wants_memory_history: bool = False,
        wants_arithmetic: bool = False,
        wants_ceilings: bool = True,
        wants_replay: bool = True,
        wants_device_clock: bool,
        wants_data_probe: bool | Literal["auto"] = False,
        module_depth: int = 1,
        wants_host_lines: bool = True,
        on_fail: Callable[[str, Exception], None],
        rates: Rates | None = None,
        clock: Callable[[], int] = now_ns,
    ) -> None:
        self.trainer = trainer
        self.pl_module = pl_module
        self.stage = stage
        self.missing: dict[str, str] = {}
        self.windows: WindowProbe | None = None
        self.settings = Settings()
        self.machine = Machine(os=sys.platform, python=sys.version.split()[0])
        try:
            device = trainer.strategy.root_device
            self.machine = read_machine(local_world_size=local_world_size(trainer), device=device)
        except Exception as error:  # noqa: BLE001 - reported; the steps can be measured without it
            on_fail("machine", error)
        self._on_fail = on_fail
        self._clock = clock
        self._wants_memory = wants_memory
        self._wants_arithmetic = wants_arithmetic
        self._wants_ceilings = wants_ceilings
        self._wants_memory_history = wants_memory_history
        self._module_depth = module_depth
        self.memory: MemoryProbe | None = None
        self.arithmetic: ArithmeticProbe | None = None
        self.replay: ReplayProbe | None = None
        self._wants_replay = wants_replay
        self._id = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{stage}-{uuid.uuid4().hex[:8]}"
        self._started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._started_s = time.monotonic()
        self._first_global_step = trainer.global_step
        self._evaluation_batches_seen = 0
        self._evaluation_has_graph: bool | None = None
        self.zero_grad_watch: ZeroGradWatch | None = None
        self._saw_anomaly_detection = False  # by torch's own function, in a hook that runs after ours
        self._span_cost_ns = span_cost_ns(lambda: Timeline(clock, lambda _: None))
        events = None
        if wants_device_clock:
            try:
                events, reason = device_clock(trainer.strategy.root_device, partial(on_fail, "device"))
            except Exception as error:  # noqa: BLE001 - reported; the host's clock is enough
                on_fail("device", error)
                reason = "reading the device's clock failed"
            if events is None:
                self.missing["steady.device"] = reason
        else:
            self.missing["steady.device"] = "device_stats=False"
        self.loop = LoopProbe(
            trainer, pl_module, owner, stage, clock, lambda error: on_fail("steps", error), device_clock=events
        )
        self._loader = LoaderWatch(trainer, self.loop, wants_data_probe, self._set_telemetry_aside, self._host)
        self.looks: StepLooks | None = None
        self.compiler: CompilerProbe | None = None
        self.scaler: ScalerProbe | None = None
        self.pauses = GarbagePauses(clock, is_counted=self._is_trainings_time, phase=lambda: current_phase(self.loop))
        self.host_lines: LineSampler | None = None
        if not wants_host_lines:
            self.missing["host_profile"] = "host_lines=False"
        self._rates = rates or Rates()
        self.telemetry: TelemetryProbe | None = None
        if not wants_device_clock:
            self.missing["telemetry"] = "device_stats=False"

    # -- the run's events ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Install the probes."""
        self.loop.install()
        if self._wants_memory:
            self._start_memory()
        self.pauses.start()
        if self._wants_arithmetic and self.stage == "fit":
            self._start_arithmetic()
        if self.stage == "fit":
            self._start_looking()
        if "host_profile" not in self.missing:
            self._tried("host_lines", self._start_host_lines)

    def _start_host_lines(self) -> None:
        self.host_lines = LineSampler(self.loop, lambda: self.pauses.automatic_ns)
        self.host_lines.start()

    def _start_looking(self) -> None:
        """Start the probes of sampled steps and of the compiler."""
        loop = self.loop
        try:
            self.compiler = CompilerProbe(self._clock, loop.main.leave_out, step=lambda: loop.main.n_steps)
            self.compiler.begin()
            if not self._module_depth:
                self.missing["sync_calls"] = "module_depth=0"
                return
            self.looks = StepLooks(
                self.pl_module,
                self.trainer.strategy.root_device,
                loop,
                self._clock,
                partial(self._on_fail, "looks"),
                depth=self._module_depth,
                make_event=None if loop.main.device_clock is None else loop.main.device_clock.make_event,
            )
        except Exception as error:  # noqa: BLE001 - reported; the steps can be measured without it
            self._on_fail("looks", error)

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
        try:
            self.memory = MemoryProbe(
                self.trainer, self.pl_module, self.loop, self._clock, fail, wants_history=self._wants_memory_history
            )
        except Exception as error:  # noqa: BLE001 - reported; the steps can be measured without it
            fail(error)

    def _start_arithmetic(self) -> None:
        try:
            self.arithmetic = ArithmeticProbe(
                self.trainer,
                self.pl_module,
                self.loop,
                self._clock,
                depth=max(1, self._module_depth),
                wants_ceilings=self._wants_ceilings,
            )
            if self._wants_replay:
                clock = self.loop.main.device_clock
                self.replay = ReplayProbe(self.trainer, self._clock, None if clock is None else clock.make_event)
        except Exception as error:  # noqa: BLE001 - reported; the steps can be measured without it
            self._on_fail("arithmetic", error)

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
        with ExitStack() as stop:  # each of them, whatever the others raise; the last one first
            stop.callback(self._loader.close)
            stop.callback(self.pauses.stop)
            if self.host_lines is not None:
                stop.callback(self.host_lines.stop)
            for probe in (self.compiler, self.scaler, self.looks):
                if probe is not None:
                    stop.callback(probe.close)
            if self.memory is not None:
                stop.callback(self.memory.close)
            if self.arithmetic is not None:
                stop.callback(self.arithmetic.close)
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
        self._first_global_step = self.trainer.global_step
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
            self._tried("gradients", self.zero_grad_watch.after_step, optimizer)

    def train_epoch_ended(self) -> None:
        """Read what is recorded once per epoch."""
        self._saw_anomaly_detection = self._saw_anomaly_detection or torch.is_anomaly_enabled()
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
        if self._evaluation_batches_seen < _EVALUATION_BATCHES_LOOKED_AT and not self.trainer.sanity_checking:
            self._evaluation_batches_seen += 1
            self._evaluation_has_graph = bool(self._evaluation_has_graph) or _has_graph(outputs)

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
            self._loader.epoch_ended(self.settings, is_last)

    def answer(self, hypotheses: tuple[Hypothesis, ...]) -> None:
        """Measure what rules ask by replaying operators of the sampled step. Call it in pauses of the training only."""
        if self.replay is not None and self.arithmetic is not None:
            self.replay.answer(hypotheses, self.arithmetic.log, self.loop.wall_ns() / 1e9)

    def _host(self) -> HostTelemetry | None:
        return self.telemetry.record().host if self.telemetry is not None else None

    def _set_telemetry_aside(self, is_aside: bool) -> None:
        if self.telemetry is not None:
            self.telemetry.set_aside(is_aside)

    def _keep_to_budget(self) -> None:
        step_ns = self.loop.main.recent_median_ns()
        per_step_us = self._overhead(self.loop.wall_ns() / 1e9).per_step_us
        is_dear = step_ns is not None and per_step_us > max(BUDGET_US, _DEAR_STEP_SHARE * step_ns / 1e3)
        if is_dear and not self.loop.backed_off:
            self.loop.back_off()

    # -- the session ------------------------------------------------------------------------------------------------

    def session(self, status: Status = "running", error: BaseException | None = None) -> Session:
        """Return the session so far."""
        loop = self.loop
        settings = self._settings()  # it takes back reasons why something was missing
        missing = {**self.missing, **loop.missing}
        steady = self._completed(loop.main.stage_times(), missing)
        if steady is None:
            missing.setdefault("steady", f"{loop.main.n_steps} steps: too few to tell warm-up from steady state")
        validation = loop.validation.stage_times() if self.stage == "fit" else None
        epochs = loop.main.epochs_so_far() if self.stage == "fit" else ()
        if self._loader.probe is None:
            missing.setdefault("loader_probe", self._loader.why_no_probe(self.settings))
        replayed = self.replay.record() if self.replay is not None else None
        missing.update(self.replay.missing if self.replay is not None else {"replay": "replay=False"})
        wall_s = self._wall_s()  # after all that is within it
        return Session(
            run=self._run(status, error, wall_s, steady),
            machine=self.machine,
            settings=settings,
            epochs=epochs,
            steady=steady,
            validation=validation,
            memory=self._memory(missing),
            windows=tuple(self.windows.windows) if self.windows is not None else (),
            overhead=self._overhead(wall_s),
            missing=missing,
            telemetry=self._telemetry(missing, wall_s, epochs),
            loader_probe=self._loader.probe,
            host_profile=self._host_profile(missing, steady),
            collections=self._tried("collections", self.pauses.record, self._stepping_s()),
            replay=replayed,
            **self._looked_at(missing, steady),
        )

    def _host_profile(self, missing: dict[str, str], steady: StageTimes | None) -> HostProfile | None:
        profile, sampler = None, self.host_lines
        if sampler is not None:
            profile = self._tried("host_lines", sampler.record, steady)
            missing.update(sampler.missing)
            if sampler.error is not None:
                self._on_fail("host_lines", sampler.error)
        if profile is None:
            missing.setdefault("host_profile", "the run was too short to sample its lines, or sampling failed")
        return profile

    def _looked_at(self, missing: dict[str, str], steady: StageTimes | None) -> dict[str, Any]:
        """Return the session fields from sampled steps, the compiler and the loss scaler."""
        looks, compiler, scaler = self.looks, self.compiler, self.scaler
        calls = self._tried("looks", looks.sync_calls) if looks is not None else None
        times = self._tried("looks", looks.module_times) if looks is not None else None
        fields: dict[str, Any] = {
            "sync_calls": calls,
            "compiler": self._told("compiler", compiler),
            "loss_scaler": self._told("loss_scaler", scaler),
        }
        fields["model_profile"] = self._tried("arithmetic", self._model_profile, missing, steady, times)
        if looks is not None:
            missing.update(looks.missing)
        too_few = f"no step was looked at: the first one is step {ROUNDS[0] + 1} of a fit"
        if calls is None:
            missing.setdefault("sync_calls", too_few)
        if fields["compiler"] is None:
            missing.setdefault("compiler", "nothing was compiled")
        if fields["loss_scaler"] is None:
            missing.setdefault("loss_scaler", "this training has no loss scaler")
        return fields

    def _model_profile(
        self, missing: dict[str, str], steady: StageTimes | None, times: dict[str, ModuleTime] | None
    ) -> ModelProfile | None:
        """Return the counted operations, assessed against the device's ceilings and the steady step."""
        profile, ceilings = None, None
        if self.arithmetic is not None:
            profile, ceilings = self.arithmetic.record()
            missing.update(self.arithmetic.missing)
        elif self.stage == "fit":
            missing.setdefault("model_profile", "arithmetic=False, or counting failed; see probes_off")
        if times is not None:
            profile = with_times(profile, self.pl_module, self.trainer.strategy.root_device, times)
        if profile is None:
            return None
        chip = next((datasheet_of(device.name) for device in self.machine.devices), None)
        timed = () if steady is None else (steady.step_s, steady.n_steps, True)
        found = assessed(profile, ceilings, chip, *timed)
        if ceilings is not None and found.ceilings is None:  # not to be believed: the next run measures anew
            missing["model_profile.ceilings"] = found.missing["ceilings"]
            ceilings_probe.forget(self.trainer.strategy.root_device)
        return found

    def bare_session(self, status: Status, error: BaseException | None) -> Session:
        """Return a session without measurements."""
        return Session(
            run=Run(
                id=self._id, stage=self.stage, status=status, started_at=self._started_at, wall_s=self._elapsed_s()
            ),
            machine=self.machine,
            settings=self.settings,
            missing={**self.missing, "steady": "the session could not be put together; see probes_off"},
        )

    def _is_trainings_time(self) -> bool:
        """Return whether the first step is over and no hook of PerfDoctor is running."""
        return self.loop.first_step_end_ns is not None and self.loop.timeline.current.phase != OWN

    def _stepping_s(self) -> float:
        """Return seconds since the end of the first step."""
        first_ns = self.loop.first_step_end_ns
        return 0.0 if first_ns is None else (self.loop.timeline.charge() - first_ns) / 1e9

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def _wall_s(self) -> float:
        """Return the wall time by the clock of the phases, so that they add up to it."""
        return self._elapsed_s() if self.loop.timeline.is_frozen else self.loop.wall_ns() / 1e9

    def _completed(self, steady: StageTimes | None, missing: dict[str, str]) -> StageTimes | None:
        if steady is None:
            return None
        device = self.loop.main.device_times()
        if device is None:
            missing.setdefault("steady.device", "no step was resolved on the device yet")
        return msgspec.structs.replace(
            steady,
            named=self.loop.named(),
            fetch=self._loader.completed(steady.fetch),
            device=device,
            gc_s=self.pauses.total_ns / 1e9,
        )

    def _run(self, status: Status, error: BaseException | None, wall_s: float, steady: StageTimes | None) -> Run:
        loop, trainer = self.loop, self.trainer
        first_end = loop.first_step_end_ns
        return Run(
            id=self._id,
            stage=self.stage,
            status=status,
            started_at=self._started_at,
            wall_s=wall_s,
            n_steps=loop.main.n_steps,
            n_epochs=loop.main.n_epochs() if self.stage == "fit" else 0,
            n_optimizer_steps=trainer.global_step - self._first_global_step if self.stage == "fit" else None,
            time_to_first_step_s=None if first_end is None else (first_end - loop.timeline.start_ns) / 1e9,
            startup=startup_parts(loop.startup_ns, loop.sanity_ns, loop.main.first_step_ns, steady),
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            error=None if error is None else type(error).__name__,
            lightning_perf=__version__,
        )

    def _settings(self) -> Settings:
        """Return the settings, completed by what only steps could show."""
        replace = msgspec.structs.replace
        settings = self.settings
        prog_bar_metrics, sync_dist_on_step = read_step_logging(self.trainer)
        if prog_bar_metrics is not None:
            for name in ("prog_bar_metrics", "sync_dist_on_step"):
                self.missing.pop(f"settings.trainer.{name}", None)
        trainer = replace(settings.trainer, prog_bar_metrics=prog_bar_metrics, sync_dist_on_step=sync_dist_on_step)
        if self._saw_anomaly_detection:
            trainer = replace(trainer, is_anomaly_detection_on=True)
        model = settings.model
        if model is not None:
            model = replace(model, eval_outputs_have_graph=self._evaluation_has_graph)
            if self.zero_grad_watch is not None and len(model.optimizers) == len(self.trainer.optimizers):
                optimizers = zip(model.optimizers, self.trainer.optimizers, strict=True)
                watched = (replace(record, **self.zero_grad_watch.summary(one)) for record, one in optimizers)
                model = replace(model, optimizers=tuple(watched))
        return replace(settings, trainer=trainer, model=model)

    def _told(self, name: str, probe: Any) -> Any:
        """Return a probe's record; report an error that it kept."""
        if getattr(probe, "error", None) is not None:
            self._on_fail(name, probe.error)
        return self._tried(name, probe.record) if probe is not None else None

    def _tried(self, name: str, tell: Callable[..., Any], *arguments: Any) -> Any:
        """Call a probe; on error, report the failure and return None."""
        try:
            return tell(*arguments)
        except Exception as error:  # noqa: BLE001 - reported
            self._on_fail(name, error)
            return None

    def _memory(self, missing: dict[str, str]) -> Memory:
        if self.memory is None:
            why = "reading memory failed; see probes_off" if self._wants_memory else "memory=False"
            missing.setdefault("memory", why)
            return Memory()
        try:
            memory = self.memory.record()
        except Exception as error:  # noqa: BLE001 - reported, and memory is not read again
            self.memory.is_off = True
            self._on_fail("memory", error)
            return Memory()
        missing.update(self.memory.missing)
        return memory

    def _telemetry(self, missing: dict[str, str], wall_s: float, epochs: tuple[Epoch, ...]) -> Telemetry | None:
        record = None
        if self.telemetry is not None:
            if self.telemetry.error is not None:
                self._on_fail("telemetry", self.telemetry.error)
            missing.update(self.telemetry.all_missing())
            record = self.telemetry.record()
        epoch_s = sum(epoch.wall_s for epoch in epochs) / len(epochs) if epochs else None
        return with_cost(record, self._rates, wall_s, epoch_s)

    def _overhead(self, wall_s: float) -> Overhead:
        loop = self.loop
        stepping_ns, reporting_ns = loop.own_ns()
        n_batches = loop.main.n_steps + loop.validation.n_steps
        spans_ns = loop.n_spans() * self._span_cost_ns
        # The median, lest a step in which the system ran something else be charged to the hook that it hit.
        per_step_ns = loop.main.own_median_ns() + spans_ns / max(1, n_batches)
        if self.memory is not None:  # read in few steps, which the median does not show
            per_step_ns += self.memory.sampling_ns / max(1, loop.main.n_steps)
            reporting_ns += self.memory.outside_ns
        if self.looks is not None:
            reporting_ns += self.looks.outside_ns
        if self.arithmetic is not None:
            reporting_ns += self.arithmetic.own_ns
        if self.host_lines is not None:
            reporting_ns += self.host_lines.cost_ns
        return Overhead(
            per_step_us=per_step_ns / 1e3,
            reporting_s=reporting_ns / 1e9,
            share=(stepping_ns + reporting_ns + spans_ns) / 1e9 / wall_s if wall_s > 0 else 0.0,
            budget_us=BUDGET_US,
            backed_off=tuple(self.loop.backed_off),
        )


def _has_graph(outputs: Any) -> bool:
    return any(
        plain.field(tensor, "grad_fn") is not None for tensor in plain.tensors_in(outputs, depth=3, in_objects=False)
    )
