"""Memory use of a module outside a run, for a notebook."""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import torch
from rich.console import Console, ConsoleOptions, RenderResult
from torch import nn

from lightning_perf.errors import ConfigError
from lightning_perf.probes.memory.breakdown import ModelMemory
from lightning_perf.probes.model.saved_tensors import SavedTensors
from lightning_perf.probes.plain import batch_size, is_lazy
from lightning_perf.records import Breakdown, ModelProfile
from lightning_perf.reports.render.console import DocumentReport
from lightning_perf.reports.sections.model import model_document


class RecordView:
    """A record that prints as text, also in notebooks."""

    def __init__(self, record: Breakdown | ModelProfile) -> None:
        self.record = record

    def __str__(self) -> str:
        return str(self.record)

    __repr__ = __str__

    def _repr_html_(self) -> str | None:
        return self.record._repr_html_()


class MemoryBreakdown(RecordView):
    """Memory of a module by component; prints as a table, also in notebooks.

    Attributes:
        record: The figures, in bytes.
    """

    record: Breakdown

    @property
    def total_bytes(self) -> int:
        """Sum of all components; unknown ones count as 0."""
        return self.record.parts_bytes

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield DocumentReport(model_document(None, self.record))


def memory_breakdown(module: nn.Module, optimizer: Any = None, batch: Any = None) -> MemoryBreakdown:
    """Return the memory that training a module takes, by component; activations only with a batch.

    Gradients and optimizer states that do not exist yet are estimated: one gradient for each trainable parameter, and
    the states that the optimizer's class keeps. Activations are measured in one forward pass under
    ``torch.enable_grad``, in the module's own mode; its buffers and the random number generators are restored
    afterwards, and no gradient is computed.

    Args:
        module: The module, on the device that it will train on.
        optimizer: Its optimizer, a sequence of them, or None.
        batch: The module's input on its device: a tensor, a tuple or list of positional arguments, or a mapping of
            keyword arguments; None leaves the activations out.

    Returns:
        The breakdown; ``print`` it, or read ``record``.

    Raises:
        ConfigError: The module or the optimizer is not one, or the forward pass failed.
    """
    if not isinstance(module, nn.Module):
        raise ConfigError(f"module={type(module).__name__}: expected a torch.nn.Module")
    optimizers = [] if optimizer is None else list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    for each in optimizers:
        if not hasattr(each, "param_groups"):
            raise ConfigError(f"optimizer={type(each).__name__}: expected a torch optimizer or a sequence of them")
    parameter = next(module.parameters(), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    memory = ModelMemory(module, optimizers, device, batch=batch)
    if batch is None:
        return MemoryBreakdown(memory.record())
    with preserved_state(module, device):
        return MemoryBreakdown(with_activations(memory, batch, lambda: call(module, batch, "module")))


def with_activations(memory: ModelMemory, batch: Any, run_forward: Callable[[], Any]) -> Breakdown:
    """Return the breakdown with what a forward pass of the batch saves for backward."""
    saved = SavedTensors(memory.count, memory.modules, time.perf_counter_ns)
    with torch.enable_grad(), saved:
        run_forward()
    return msgspec.structs.replace(memory.record(saved), n_samples=batch_size(batch))


def call(module: nn.Module, batch: Any, argument: str) -> Any:
    """Call the module with a batch as its arguments; ``argument`` is the module's name in an error.

    Raises:
        ConfigError: The call raised.
    """
    try:
        if isinstance(batch, Mapping):
            return module(**batch)
        return module(*batch) if isinstance(batch, (tuple, list)) else module(batch)
    except Exception as error:
        raise ConfigError(
            f"{argument}(batch) raised {type(error).__name__}: {error}; expected a batch that the module takes: a "
            "tensor, a tuple of positional arguments or a dict of keyword arguments, on the module's device"
        ) from error


@contextmanager
def preserved_state(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Restore buffers (running statistics), gradients and the generators of torch, Python and numpy afterwards."""
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    buffers = [
        (owner, name, buffer, buffer.detach().clone())
        for owner in module.modules()
        for name, buffer in owner.named_buffers(recurse=False)
        if not is_lazy(buffer)
    ]
    devices = [device] if device.type == "cuda" else []
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for owner, name, buffer, value in buffers:
                buffer.copy_(value)
                owner._buffers[name] = buffer  # which the pass may have replaced
