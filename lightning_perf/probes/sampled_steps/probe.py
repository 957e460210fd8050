"""Trace single steps: operations, module times, synchronizing calls, and the device's own synchronization warnings.

Sampled steps are excluded from all statistics. Operations are counted in one early step. Each later round samples one
step per kind of tracer, or two if that is cheap; rounds become rarer.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import torch

from lightning_perf.probes.base import Probe, RunContext
from lightning_perf.probes.clock import NEVER
from lightning_perf.probes.model import call_watch
from lightning_perf.probes.model.call_watch import CallWatch
from lightning_perf.probes.model.fake_pass import try_profile
from lightning_perf.probes.model.flops import ArithmeticCounter
from lightning_perf.probes.model.module_times import ModuleTime, ModuleTimes, mean_times, with_times
from lightning_perf.probes.model.passes import PassCounter
from lightning_perf.probes.model.summary import parameters_of, unwrap
from lightning_perf.probes.plain import batch_size, is_plain_tensor, search_limit, tensors_in
from lightning_perf.probes.replay.broadcasts import broadcast_sum
from lightning_perf.probes.replay.calls import PLAIN_TYPES, CallLog, flat
from lightning_perf.probes.replay.cheaper import cheaper_operator
from lightning_perf.probes.replay.repeated_rows import in_both, repeated_rows
from lightning_perf.probes.replay.rewrites import output_layer_of
from lightning_perf.probes.replay.zero_operands import zero_operand
from lightning_perf.probes.settings.compiler import is_any_compiled
from lightning_perf.probes.settings.machine import device_name
from lightning_perf.records import ModelProfile, RepeatedRows, Session, SyncCalls
from lightning_perf.seams import is_overridden, monitored_metrics

from .code_lines import SourceLine
from .device_warnings import DeviceWarnings, sync_debug_of
from .gradients import unowned_parameters
from .known_results import ResultTracker
from .loss_targets import TargetCounter
from .operator_records import sync_calls
from .operator_tracer import OperatorTracer, entry_cost_ns
from .tracing import StepTracer, can_trace_compiled, current_mode

COUNTED_STEP = 10
"""Index of the step whose operations are counted: the first steps allocate and tune, and very short runs are not
slowed down."""

_COUNTING_ATTEMPTS = 3
_BATCH_HOOKS = ("on_before_batch_transfer", "on_after_batch_transfer", "transfer_batch_to_device")

ROUNDS = (20, 220, 2020)
"""Steps before each round: the first after the batches that allocate and tune, then ten times less often."""

_PLAN = ("modules", "operators")
MAX_SHARE = 0.01
"""Overhead limit, as a share of the time since the first step, above which a round takes no second samples: they would
cost too much in a fit of a few dozen steps."""

_FIELDS = {
    "arithmetic": ("model_profile", ""),
    "modules": ("model_profile.modules", "timing modules failed: "),
    "operators": ("sync_calls", "tracing a step's operators failed: "),
    "device": ("sync_calls.device", ""),
}
"""Session field of each kind of tracer, and the beginning of the reason if it is missing."""


class SampledSteps(Probe):
    """The sampled steps of one run. Modules are timed down to ``module_depth``; 0 only counts operations."""

    name = "sampled_steps"
    field, reason = "sync_calls", f"no step was sampled: the first one is step {ROUNDS[0] + 1} of a fit"
    stages = ("fit",)
    after = ("memory", "windows")  # they take precedence where both would sample a step

    def __init__(self, run: RunContext) -> None:
        self.profile: ModelProfile | None = None
        """Profile of the step whose operations were counted; None before it."""
        self.call_log: CallLog | None = None
        """Operators of that step."""
        self._trainer, self._module, self._loop = run.trainer, run.pl_module, run.loop
        self._now_ns, self._probes, self._make_event = run.now_ns, run.probes, run.loop.make_event()
        self._watch: CallWatch | None = None  # of a step that is counted later
        self._targets: TargetCounter | None = None  # of a counted step, until they are read
        self._results: ResultTracker | None = None  # of two counted steps
        self._unconfirmed: ResultTracker | None = None  # of the first of them
        self._repeated: RepeatedRows | None = None  # not confirmed either
        self._passes: PassCounter | None = None
        self._device: torch.device = run.trainer.strategy.root_device
        self._debug = sync_debug_of(self._device)
        self._depth = run.options.module_depth
        self._attempts_left = _COUNTING_ATTEMPTS if run.options.arithmetic else 0
        if not self._depth:
            run.missing["sync_calls"] = "module_depth=0"
        self._rounds = list(ROUNDS) if self._depth else []
        self._plan: list[tuple[str, bool]] = []  # kinds, and whether this round sampled them before
        self._next_round = self._rounds.pop(0) if self._rounds else NEVER
        self._rounds_cost_ns = 0
        self._off: set[str] = set()
        self._entry_ns: float | None = None
        self._kind = ""
        self._n_samples: int | None = None
        self._step = 0
        self._open: StepTracer | None = None
        self._unclosed: list[StepTracer] = []
        self._operators: list[OperatorTracer] = []
        self._modules: list[dict[str, ModuleTime]] = []
        self._unresolved: list[ModuleTimes] = []
        self._warned: dict[SourceLine, int] | None = None

    @property
    def next_step(self) -> int:
        if self._unclosed:
            return 0
        return min(COUNTED_STEP, self._next_round) if self._attempts_left else self._next_round

    def step_begins(self, batch: Any = None) -> None:
        if self._loop.main.n_steps >= self.next_step:
            self._guarded(self._begin, batch)

    def step_ends(self) -> None:
        """Find what is used and cheaper operators while the step's outputs exist: callbacks and hooks may read them."""
        counter, is_first = self._open, self._unconfirmed is None
        if isinstance(counter, ArithmeticCounter) and counter.results is not None:
            begin = self._now_ns()
            counter.results.note_kept()
            if is_first and counter.has_backward and not counter.failure:
                self._guarded(cheaper_operator, counter.log)
            self.step_cost_ns += self._now_ns() - begin

    def enters(self, name: str) -> None:
        if self._open is not None:
            self._guarded(self._open.enters, name)

    def leaves(self, name: str) -> None:
        if self._open is not None:
            self._guarded(self._open.leaves, name)

    def record_ends(self) -> None:
        """Handle the end of the sampled step's time."""
        if self._open is not None:
            self._guarded(self._end, self._open)

    def _begin(self, batch: Any) -> None:
        loop = self._loop
        if loop.timeline.phase_listener is not None or loop.is_profiling:
            return  # another probe samples this step: take the next one
        self._unclosed = [tracer for tracer in self._unclosed if not tracer.close()]
        self._step = loop.main.n_steps
        if self._unclosed or not (kind := self._next_kind()) or kind in self._off:
            return
        self._kind = kind
        tracer = self._tracer(kind, batch)
        if tracer is None:
            return
        loop.main.leave_out()
        self._open = tracer
        loop.on_record_end = self.record_ends
        loop.listen(self)
        tracer.open()

    def _next_kind(self) -> str:
        """Return what to sample in this step; empty if nothing is due, and at the end of a round."""
        if self._attempts_left and self._step >= COUNTED_STEP:
            return "arithmetic"
        if self._step < self._next_round:
            return ""
        if not self._plan:
            kinds = (*_PLAN, "device") if self._debug is not None and self._warned is None else _PLAN
            self._plan = [*((kind, False) for kind in kinds), *((kind, True) for kind in _PLAN)]
        kind, is_again = self._plan.pop(0)
        if is_again and self._is_expensive():
            kind = ""
            self._plan.clear()
        if not self._plan:
            self._next_round = self._rounds.pop(0) if self._rounds else NEVER
        return kind

    def _is_expensive(self) -> bool:
        first_ns = self._loop.first_step_end_ns
        return first_ns is None or self._rounds_cost_ns > MAX_SHARE * (self._now_ns() - first_ns)

    def _tracer(self, kind: str, batch: Any) -> StepTracer | None:
        """Return the tracer of a step; None, with the reason in ``missing``, if the step cannot be traced."""
        reason = self._why_not(kind)
        if reason:
            self.missing[_FIELDS[kind][0]] = reason
            if kind == "arithmetic":
                self._attempts_left = 0
            return None
        if kind == "arithmetic":
            self._attempts_left -= 1
            self._n_samples = batch_size(batch)
            if call_watch.is_hidden(self._trainer, self._module):
                return CallWatch(self._device, self._now_ns, self._n_samples, self._step)
            is_cpu, owners = self._device.type == "cpu", (self._module, getattr(self._trainer, "datamodule", None))
            is_changed = any(is_overridden(one, hook) for one in owners if one is not None for hook in _BATCH_HOOKS)
            results = ResultTracker(self._module, batch, is_cpu, is_changed)
            results.monitored = monitored_metrics(self._trainer)
            tensors = tensors_in(batch, left=search_limit())
            optimizers = self._trainer.optimizers
            trained = (parameters_of(unwrap(optimizer)) for optimizer in optimizers)
            unowned = (one for _, one in unowned_parameters(self._module, optimizers))
            log = CallLog(self._n_samples or 0, tensors, trained, unowned)
            log.batch.is_complete = all(is_plain_tensor(one) or type(one) in PLAIN_TYPES for one in flat(batch))
            return ArithmeticCounter(self._module, max(1, self._depth), self._now_ns, is_cpu, log, results)
        if kind == "modules":
            return ModuleTimes(self._module, self._depth, self._now_ns, self._make_event)
        if kind == "device":
            return DeviceWarnings(self._debug)
        if self._entry_ns is None:
            self._entry_ns = entry_cost_ns()
        return OperatorTracer(self._device, self._entry_ns, self._loop.timeline.phase, self._now_ns)

    def _why_not(self, kind: str) -> str:
        """Return why no step can be traced; empty if one can."""
        if kind == "arithmetic":
            is_hidden = call_watch.is_hidden(self._trainer, self._module)
            return call_watch.why_not(self._trainer, self._module) if is_hidden else ""
        is_compiled = kind != "device" and is_any_compiled(self._module)
        if current_mode() is not None:  # it would see what ours does
            return "a dispatch mode of the script is in place"
        if is_compiled and kind == "modules":
            return "hooks on modules would make torch recompile them"
        if is_compiled and not can_trace_compiled():
            return "compiled code would run uncompiled while this version of torch traces operators"
        return ""

    def _end(self, tracer: StepTracer) -> None:
        begin = self._now_ns()
        self._stop()
        self.cost_ns += tracer.cost_ns
        field, problem = _FIELDS[self._kind]
        if tracer.failure:
            self.missing[field] = f"{problem}{tracer.failure}"
        if isinstance(tracer, ArithmeticCounter):
            self._counted(tracer)
        elif isinstance(tracer, CallWatch):
            self._attempts_left = 0
            if not tracer.failure:
                self._watch, self.missing[field] = tracer, "it is counted in the next pause of the training"
        else:
            self._rounds_cost_ns += tracer.cost_ns
        if isinstance(tracer, ModuleTimes):
            self._unresolved.append(tracer)
        elif isinstance(tracer, OperatorTracer):
            self._operators.append(tracer)
        elif isinstance(tracer, DeviceWarnings) and not tracer.failure:
            self._warned = tracer.n_by_place
        self.cost_ns += self._now_ns() - begin

    def _counted(self, counter: ArithmeticCounter) -> None:
        log, results = counter.log, counter.results
        assert log is not None
        assert results is not None
        results.end()
        first, self._unconfirmed = self._unconfirmed, None
        if counter.failure or counter.has_backward or first is not None:
            self._attempts_left = 0
        if counter.failure:
            if first is not None:
                reason, self._results = self.missing.pop("model_profile"), first
                first.failure = first.failure or reason
        elif first is not None:
            first.confirm(results)
            self._results = first
            if self._repeated is not None and self.profile is not None:
                repeated = in_both(self._repeated, repeated_rows(log))
                self.profile = msgspec.structs.replace(self.profile, repeated_rows=repeated)
        elif not self._attempts_left:
            self.call_log, self._passes, self._repeated = log, counter.passes, repeated_rows(log)
            self.profile = msgspec.structs.replace(
                counter.profile(device_name(self._device), self._n_samples, self._step),
                reads_batch=log.batch.is_read(),
                broadcast=broadcast_sum(log),
                zeros=zero_operand(log),
                cheaper=cheaper_operator(log),
                backward_passes=log.backward.records(log.reach.n_optimizers),
            )
            self._targets = counter.targets.behind([call.site for call in output_layer_of(log)])
            if results.has_found() or self._repeated is not None:
                self._unconfirmed, self._attempts_left = results, 1

    def before_report(self, is_last: bool) -> None:
        """Count the watched step from its shapes, and read what was left on the device in the counted one."""
        read: dict[str, Any] = {}
        if self._targets is not None:
            read["targets"] = self._targets.read()
            self._targets = None
        if self._passes is not None:
            read["n_passes"], read["pass_site"] = self._passes.count()
            self._passes = None
        if self._results is not None:  # kept, because what changes later is not constant
            read["known_results"] = self._results.found()
        if self.profile is not None:
            if self._results is not None and self._results.failure:
                read["missing"] = {**self.profile.missing, "known_results": self._results.failure}
            self.profile = msgspec.structs.replace(self.profile, **read)
        watch, self._watch = self._watch, None
        if watch is not None and not self._trainer.received_sigterm:
            begin, depth, trained_ns = self._now_ns(), max(1, self._depth), self._loop.wall_ns()
            self.profile, reason = try_profile(watch, self._module, depth, self._now_ns, trained_ns)
            self.missing["model_profile"] = reason
            if self.profile is not None:
                del self.missing["model_profile"]
            self.cost_ns += self._now_ns() - begin

    def close(self) -> None:
        self._attempts_left, self._next_round = 0, NEVER
        self._stop()
        self._unclosed = [tracer for tracer in self._unclosed if not tracer.close()]

    def _stop(self) -> None:
        tracer, loop = self._open, self._loop
        if tracer is not None:
            loop.listen(None)
            if not tracer.close():
                self._unclosed.append(tracer)
            self._open = None
        if loop.on_record_end == self.record_ends:
            loop.on_record_end = None

    def _guarded(self, function: Callable[..., object], *args: Any) -> None:
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001 - reported; such steps are not sampled from then on
            self._off.add(self._kind)
            if self._kind == "arithmetic":
                self._attempts_left = 0
            self._probes.switch_off(self._kind, error)
            self._stop()

    def part(self, session: Session) -> Mapping[str, Any]:
        return {
            "sync_calls": self._probes.call_even_if_off("operators", self.sync_calls),
            "model_profile": self._probes.call_even_if_off("modules", self._timed_profile) or self.profile,
        }

    def _timed_profile(self) -> ModelProfile | None:
        times = self.module_times()
        return self.profile if times is None else with_times(self.profile, self._module, self._device, times)

    def sync_calls(self) -> SyncCalls | None:
        """Return what the sampled steps called; None before the first."""
        return sync_calls(self._operators, self._device.type, self._warned)

    def module_times(self) -> dict[str, ModuleTime] | None:
        """Return mean seconds per step by module; None before the first resolved step."""
        resolved = [one for one in self._unresolved if one.is_resolved()]
        self._unresolved = [one for one in self._unresolved if one not in resolved]
        self._modules += [times for one in resolved if (times := one.times()) is not None]
        return mean_times(self._modules) if self._modules else None
