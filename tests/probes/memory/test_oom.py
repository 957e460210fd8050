"""Which errors mean that memory ran out, and what is read from them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from lightning_perf.probes.memory import oom

CUDA = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 15.77 GiB"


@pytest.mark.parametrize(
    ("error", "where"),
    [
        (torch.OutOfMemoryError(CUDA), "device"),
        (RuntimeError(CUDA), "device"),
        (RuntimeError("HIP out of memory. Tried to allocate 1 GiB"), "device"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "device"),
        (MemoryError(), "host"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "host"),
        (OSError(12, "Cannot allocate memory"), "host"),
        (RuntimeError("DataLoader worker (pid 12) is killed by signal: Killed. "), "worker"),
        (RuntimeError("DataLoader worker (pid(s) 12, 13) is killed by signal: Killed. "), "worker"),
        (RuntimeError("DataLoader worker (pid 1) is killed by signal: Bus error. It is possible that dataloader's "
                      "workers are out of shared memory."), "shm"),
        (OSError("[Errno 28] No space left on device: '/dev/shm/torch_1'"), "shm"),
        (RuntimeError("unable to write to file </torch_12_3456_0>: No space left on device (28)"), "shm"),
        (RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left on device"), "shm"),
        (OSError("[Errno 28] No space left on device: '/data/epoch=1.ckpt'"), None),
        (OSError(28, "No space left on device", "/data/torch_models/shmoo.ckpt"), None),
        (RuntimeError("CUDA driver error: out of memory"), "device"),
        (RuntimeError("NCCL error: unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'"), "device"),
        (RuntimeError("DataLoader worker (pid 12) is killed by signal: Terminated. "), None),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
        (KeyboardInterrupt(), None),
    ],
)  # fmt: skip
def test_error_is_recognized_when_it_means_that_memory_ran_out(error: BaseException, where: str | None) -> None:
    assert oom.memory_kind_of(error) == where


def test_error_is_described_by_its_type_when_it_has_no_message() -> None:
    assert oom.describe(MemoryError(), "host", 3, {}, "cpu").error == "MemoryError"


def test_cause_is_recognized_when_the_error_wraps_it() -> None:
    error = ValueError("the step failed")
    error.__cause__ = torch.OutOfMemoryError(CUDA)
    assert oom.memory_kind_of(error) == "device"
    assert oom.requested_bytes(error) == int(2.5 * 2**30)


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("Tried to allocate 20.00 MiB.", 20 * 2**20), ("you tried to allocate 123 bytes.", 123), ("out of memory", None)],
)
def test_request_is_read_from_the_message(text: str, n_bytes: int | None) -> None:
    assert oom.requested_bytes(RuntimeError(text)) == n_bytes


def test_shapes_are_reported_by_path_when_batches_are_nested() -> None:
    batch = {"image": torch.zeros(2, 3), "more": [torch.zeros(4), "text"]}
    assert oom.shapes_of(batch) == {"image": (2, 3), "more.0": (4,)}
    assert oom.shapes_of(torch.zeros(5)) == {"batch": (5,)}


def test_phase_and_line_are_read_from_the_traceback() -> None:
    def training_step() -> None:
        hidden = torch.zeros(1000)
        raise MemoryError(hidden.shape)

    with pytest.raises(MemoryError) as raised:
        training_step()
    assert oom.phase_of(raised.value) == "forward"
    assert oom.code_of(raised.value).startswith("test_oom.py:")
    assert oom.code_of(raised.value).endswith("in training_step")


def test_largest_tensors_are_named_by_model_states_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oom, "_LIMIT_S", 600.0)  # however busy this machine is
    # Larger than what other tests of this process may have left behind: only the largest are reported.
    module = nn.Linear(2000, 2001, bias=False)
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.zeros(1, 2000)).sum().backward()
    optimizer.step()

    def training_step() -> Any:
        huge = torch.zeros(12_000_000)
        raise MemoryError(huge.shape)

    with pytest.raises(MemoryError) as raised:
        training_step()
    found = oom.largest_tensors(raised.value, oom.names_in(module, [optimizer]), "cpu")
    names = {tensor.name: tensor.n_bytes for tensor in found}
    assert found[0].name == "huge in training_step"
    assert found[0].n_bytes == 48_000_000
    for name in ("weight", "gradient of weight", "exp_avg of weight", "exp_avg_sq of weight"):
        assert names[name] == 16_008_000


class Held:
    """Something that the variables of a frame hold, such as a loader's iterator with its workers."""


def test_frames_are_freed_without_a_collection_when_their_variables_were_read() -> None:
    def training() -> weakref.ref[Held]:
        held = Held()
        try:
            raise MemoryError
        except MemoryError as error:
            oom.largest_tensors(error, {}, "cpu")
        return weakref.ref(held)

    gc.disable()
    try:
        assert training()() is None
    finally:
        gc.enable()


def test_message_is_read_without_running_code_of_the_errors_class() -> None:
    class Own(RuntimeError):
        def __str__(self) -> str:
            raise AssertionError("code of the error was run")

    assert oom.memory_kind_of(Own(CUDA)) == "device"
