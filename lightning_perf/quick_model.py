"""A model's arithmetic, time and memory outside a run, for a notebook."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch
from rich.console import Console, ConsoleOptions, RenderResult
from torch import nn

from lightning_perf.checks import FLAG, checked, whole
from lightning_perf.errors import ConfigError
from lightning_perf.probes.memory.breakdown import ModelMemory
from lightning_perf.probes.model import ceilings as ceilings_probe
from lightning_perf.probes.model.flops import ArithmeticCounter
from lightning_perf.probes.model.module_times import ModuleTime, ModuleTimes, mean_times, with_times
from lightning_perf.probes.plain import batch_size, tensors_in
from lightning_perf.probes.sampled_steps.tracing import StepTracer, eager
from lightning_perf.probes.settings.machine import device_name, read_device
from lightning_perf.quick import RecordView, call, preserved_state, with_activations
from lightning_perf.records import Breakdown, Ceilings, Distribution, ModelProfile
from lightning_perf.reports.render.console import DocumentReport
from lightning_perf.reports.sections.model import model_document
from lightning_perf.reports.text import report_text
from lightning_perf.stats.datasheets import datasheet_of
from lightning_perf.stats.roofline import assessed
from lightning_perf.stats.steady import warmup_length

_LEAST_REPEATS = 10
_MOST_REPEATS = 500
_LEAST_TIMED = 5
_TIMED_BY_MODULE = 5


class QuickProfile(RecordView):
    """Cost of a model: prints as a few lines, and shows itself in notebooks.

    Fields of `record` can be read as attributes too, e.g. ``forward_flops``, ``backward_flops`` and ``bound``
    (``"compute"``, ``"bandwidth"``, ``"launch"`` or ``"latency"``).

    Attributes:
        record: All figures.
    """

    record: ModelProfile

    def __getattr__(self, name: str) -> Any:
        """Return a field of the record."""
        if name.startswith("_") or name == "record":
            raise AttributeError(name)
        return getattr(self.record, name)

    def __dir__(self) -> list[str]:
        """List the record's fields too."""
        return sorted({*super().__dir__(), *self.record.__struct_fields__})

    @property
    def parameters(self) -> int:
        """Number of parameters, a shared one counted once."""
        return self.record.n_parameters

    @property
    def latency_p50_s(self) -> float | None:
        """Median time of a forward pass in seconds."""
        return None if self.record.forward_s is None else self.record.forward_s.p50

    @property
    def latency_p95_s(self) -> float | None:
        """95th percentile of the time of a forward pass in seconds."""
        return None if self.record.forward_s is None else self.record.forward_s.p95

    @property
    def samples_per_s(self) -> float | None:
        """Throughput: of forward and backward if both ran, else of forward; None if the batch size is not known."""
        timed = self.record.step_s or self.record.forward_s
        if timed is None or not self.record.n_samples or timed.p50 <= 0:
            return None
        return self.record.n_samples / timed.p50

    @property
    def peak_memory_bytes(self) -> int | None:
        """Sum of parameters, gradients, buffers, batch and saved activations in one pass, without workspaces."""
        return None if self.record.memory is None else self.record.memory.parts_bytes

    def report(self) -> str:
        """Return all tables: modules, operators and memory."""
        return report_text(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield DocumentReport(model_document(self.record, self.record.memory))


def measure_ceilings(device: str | torch.device = "cpu", *, again: bool = False) -> Ceilings:
    """Return the peak rates of a device: from the user's cache, or measured now for up to three seconds and cached.

    Args:
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"`` …
        again: Measure now even if there is a cached result, e.g. because other programs used the device last time.

    Returns:
        The record. On a CPU its figures hold for the number of threads that torch uses now.

    Raises:
        ConfigError: There is no such device.
    """
    found = _checked_device(device)
    if again:
        ceilings_probe.forget(found)
    return ceilings_probe.measured(found)


def quick_profile(
    model: nn.Module,
    batch: Any,
    train: bool = True,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    depth: int = 1,
    seconds: float = 3.0,
    ceilings: bool = True,
) -> QuickProfile:
    """Measure a model: parameters, operations, latency, throughput, memory, and what limits it on this device.

    The model's buffers, gradients and modes, and the random number generators, are restored afterwards. It runs in its
    own mode (``train()`` or ``eval()``), device and precision: call ``model.to(...)`` or enter autocast before.

    Args:
        model: The model, on the device to profile.
        batch: The model's input on its device: a tensor, a tuple or list of positional arguments, or a mapping of
            keyword arguments.
        train: Whether to run the backward pass too; False for inference.
        loss: Function that returns the scalar for the backward pass from the model's output; the sum of all
            floating-point numbers in the output by default.
        depth: Depth at which modules are reported, 1 for the top-level ones.
        seconds: Duration of the repetitions of each of forward and training step, with warm-up; at least ten each.
        ceilings: Whether the device may be measured for up to three seconds if there is no cached result.

    Returns:
        The profile; ``print`` it, or read its figures: ``parameters``, ``forward_flops``, ``latency_p50_s``,
        ``latency_p95_s``, ``samples_per_s``, ``peak_memory_bytes``, ``bound``. ``report()`` gives all tables.

    Raises:
        ConfigError: An argument is not what it should be, or the model's forward or backward pass failed.
    """
    _check(model, train, loss, depth, seconds, ceilings)
    device = _device_of(model, batch)
    # Events are recorded on the current device.
    current: AbstractContextManager[Any] = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    with preserved_state(model, device), current:
        counter = ArithmeticCounter(model, depth, time.perf_counter_ns, times_operators=device.type == "cpu")
        run = _Run(model, batch, train, loss, device)
        run.once()  # initializes lazy parameters and libraries before the count
        with eager():
            run.once(counter)
        if counter.failure:
            raise ConfigError(f"the arithmetic of {type(model).__name__} could not be counted: {counter.failure}")
        profile = counter.profile(device_name(device), batch_size(batch))
        times, n_timed = run.timed(float(seconds))
        profile = with_times(profile, model, device, run.module_times(depth))
        memory = _memory(model, batch, run, device)
    found, missing = _ceilings_of(device, ceilings)
    record = msgspec.structs.replace(
        profile, forward_s=times["forward"], n_timed=n_timed, memory=memory, missing={**profile.missing, **missing}
    )
    chip = None if device.type == "cpu" else datasheet_of(read_device(device).name)
    return QuickProfile(assessed(record, found, chip, times.get("step"), n_timed))


def _ceilings_of(device: torch.device, may_measure: bool) -> tuple[Ceilings | None, dict[str, str]]:
    """Return a device's ceilings, or None and why they are missing."""
    found = ceilings_probe.measured(device) if may_measure else ceilings_probe.cached(device)
    if found is None:
        return None, {"ceilings": "ceilings=False, and this device was not measured before"}
    return (found, {}) if ceilings_probe.is_quiet(found) else (None, {"ceilings": found.missing["is_quiet"]})


class _Run:
    """Runs the model on the batch, forward alone or with its backward pass."""

    def __init__(
        self, model: nn.Module, batch: Any, train: bool, loss: Callable[[Any], torch.Tensor] | None, device: Any
    ) -> None:
        self._model, self._batch, self.train = model, batch, train
        self._loss = loss or _sum_of_floats
        self._device = device

    def once(self, tracer: StepTracer | None = None) -> None:
        """Run one pass, traced if there is a tracer."""
        tracer = tracer or StepTracer()  # which does nothing
        self._model.zero_grad(set_to_none=True)
        with torch.enable_grad() if self.train else torch.no_grad():
            with _part(tracer, "training_step"):
                loss = self._forward()
            if self.train:
                with _part(tracer, "backward"):
                    self._backward(loss)

    def module_times(self, depth: int) -> dict[str, ModuleTime]:
        """Return mean seconds per pass by module; empty if modules cannot be timed."""
        make_event: Any = partial(torch.cuda.Event, enable_timing=True) if self._device.type == "cuda" else None
        passes = []
        for _ in range(_TIMED_BY_MODULE):
            timed = ModuleTimes(self._model, depth, time.perf_counter_ns, make_event)
            with eager():
                timed.open()
                try:
                    self.once(timed)
                finally:
                    timed.close()
            ceilings_probe.synchronize(self._device)
            found = timed.times()
            if found is not None:
                passes.append(found)
        return mean_times(passes) if passes else {}

    def _forward(self) -> torch.Tensor | None:
        output = call(self._model, self._batch, "model")
        try:
            return self._loss(output) if self.train else None
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"loss(output) raised {type(error).__name__}: {error}") from error

    def _backward(self, loss: torch.Tensor | None) -> None:
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise ConfigError(
                "the loss is not a single number that requires a gradient: give loss=, or train=False for a model "
                "without trainable parameters"
            )
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        except Exception as error:
            raise ConfigError(f"the backward pass raised {type(error).__name__}: {error}") from error

    def timed(self, limit_s: float) -> tuple[dict[str, Distribution], int]:
        """Return the seconds of a forward pass, with gradients also of a whole step; and the repetitions of each."""
        found, n_timed = {}, 0
        with torch.enable_grad() if self.train else torch.no_grad():
            found["forward"], n_timed = self._repeat(self._forward, limit_s)
            if self.train:
                found["step"], n_timed = self._repeat(self.once, limit_s)
        return found, n_timed

    def _repeat(self, function: Callable[[], Any], limit_s: float) -> tuple[Distribution, int]:
        taken: list[float] = []
        until = time.perf_counter() + limit_s
        while len(taken) < _LEAST_REPEATS or (time.perf_counter() < until and len(taken) < _MOST_REPEATS):
            ceilings_probe.synchronize(self._device)
            begin = time.perf_counter()
            function()
            ceilings_probe.synchronize(self._device)
            taken.append(time.perf_counter() - begin)
        start = warmup_length(np.asarray([round(value * 1e9) for value in taken], dtype=np.int64))
        steady = np.asarray(taken[min(start, len(taken) - _LEAST_TIMED) :])
        p50, p95, p99 = (float(value) for value in np.percentile(steady, [50, 95, 99]))
        distribution = Distribution(p50=p50, p95=p95, p99=p99, mean=float(steady.mean()), std=float(steady.std()))
        return distribution, len(steady)


def _memory(model: nn.Module, batch: Any, run: _Run, device: torch.device) -> Breakdown:
    memory = ModelMemory(model, [], device, batch=batch)
    if not run.train:
        return memory.record()
    with eager():
        return with_activations(memory, batch, run._forward)


@contextmanager
def _part(tracer: StepTracer, name: str) -> Iterator[None]:
    """Mark a part of the pass for the tracer."""
    tracer.enters(name)
    try:
        yield
    finally:
        tracer.leaves(name)


def _sum_of_floats(output: Any) -> torch.Tensor:
    tensors = [t for t in tensors_in(output) if t.is_floating_point() and t.requires_grad]
    if not tensors:
        raise ConfigError(
            "the model's output holds no floating-point tensor that requires a gradient: give loss=, or train=False"
        )
    return torch.stack([t.float().sum() for t in tensors]).sum()


def _device_of(model: nn.Module, batch: Any) -> torch.device:
    tensor = next(iter((*model.parameters(), *model.buffers(), *tensors_in(batch))), None)
    return tensor.device if isinstance(tensor, torch.Tensor) else torch.device("cpu")


def _checked_device(device: Any) -> torch.device:
    try:
        checked = torch.device(device)
        torch.empty(1, device=checked).cpu()  # which a device without memory, such as "meta", refuses
    except Exception as error:
        raise ConfigError(f"device={device!r}: expected an available device, such as 'cpu' or 'cuda:0'") from error
    return checked


def _check(model: Any, train: Any, loss: Any, depth: Any, seconds: Any, ceilings: Any) -> None:
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model={type(model).__name__}: expected a torch.nn.Module")
    checked("train", train, FLAG)
    checked("ceilings", ceilings, FLAG)
    if loss is not None and not callable(loss):
        raise ConfigError(f"loss={loss!r}: expected a function from the model's output to a number, or None")
    checked("depth", depth, whole(least=1))
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < 3600:
        raise ConfigError(f"seconds={seconds!r}: expected a number above 0 and below 3600")
