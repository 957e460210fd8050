"""Keep the training's state unchanged while operators are replayed."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from lightning_perf.cgroups import free_bytes
from lightning_perf.probes.sampled_steps.tracing import current_mode

MEMORY_PART = 0.25
"""Share of free memory that replays may use."""

WORKSPACE_BYTES = 64 * 2**20
"""What libraries may allocate for themselves: cuBLAS takes 32 MiB on Hopper (torch's CUBLAS_WORKSPACE_CONFIG)."""


class ReplayMemory:
    """Part of the host's free memory."""

    def free_bytes(self) -> int:
        """Return a quarter of the available memory, within the container's limit."""
        return int(MEMORY_PART * free_bytes())

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Allocate as usual."""
        yield


class CudaMemory(ReplayMemory):
    """A separate memory pool below the training's own peak, so that peaks do not change."""

    def __init__(self, device: Any, cuda: Any = torch.cuda) -> None:
        self._device, self._cuda = device, cuda

    def free_bytes(self) -> int:
        """Return a quarter of the device's free memory, limited so that the peak of allocated memory stays."""
        free, _ = self._cuda.mem_get_info(self._device)
        below_peak = self._cuda.max_memory_allocated(self._device) - self._cuda.memory_allocated(self._device)
        return int(max(0, min(MEMORY_PART * free, below_peak - WORKSPACE_BYTES)))

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Allocate from a pool that is returned to the device at the end."""
        pool = self._cuda.MemPool()
        with self._cuda.use_mem_pool(pool, device=self._device):
            yield


def why_not(device: torch.device) -> str:
    """Return why the training would be affected by replaying operators now; empty if it would not."""
    if current_mode() is not None:
        return "a dispatch mode of the training's own would see the replayed operators"
    if torch._C._autograd._profiler_enabled():
        return "a profiler is recording, which would see the replayed operators"
    try:
        is_within = torch.autocast_increment_nesting() > 1 or torch.is_autocast_enabled(device.type)
    finally:
        torch.autocast_decrement_nesting()
    return "the whole training runs within torch.autocast" if is_within else ""


@contextmanager
def unchanged(device: torch.device) -> Iterator[None]:
    """Restore random streams, thread count and modes at the end, whatever ends it."""
    with ExitStack() as undo:
        undo.callback(torch.set_rng_state, torch.get_rng_state())
        accelerator: Any = getattr(torch, device.type, None)  # `torch.cuda`, `torch.xpu`, `torch.mps`, a plugin's
        if hasattr(accelerator, "get_rng_state"):
            undo.callback(accelerator.set_rng_state, accelerator.get_rng_state(device), device)
        undo.callback(_restore_threads, torch.get_num_threads())
        undo.enter_context(torch._C.DisableTorchFunction())
        undo.enter_context(torch.inference_mode(False))
        undo.enter_context(torch.enable_grad())
        undo.enter_context(torch.autograd.set_detect_anomaly(False))
        yield


def _restore_threads(n_threads: int) -> None:
    if torch.get_num_threads() != n_threads:
        torch.set_num_threads(n_threads)


@contextmanager
def setting(read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> Iterator[None]:
    """Change one of torch's settings, and restore it."""
    before = read()
    try:
        write(value)
        yield
    finally:
        write(before)


@contextmanager
def matmul_precision(value: str) -> Iterator[None]:
    """Change ``float32_matmul_precision``, and restore it and each backend's own value.

    torch 2.9 and newer write it to both backends, and write "highest" as "ieee" even where the value was "none".
    """
    own = (getattr(backend, "matmul", None) for backend in (torch.backends.cuda, torch.backends.mkldnn))
    backends: list[Any] = [each for each in own if getattr(each, "fp32_precision", None) is not None]
    before = [each.fp32_precision for each in backends]
    try:
        with setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, value):
            yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision
