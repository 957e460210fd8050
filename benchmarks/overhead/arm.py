"""One arm of the benchmark: a real ``Trainer.fit`` of a tiny model that trains only during its turns.

The driver sends the number of steps over a socket. The module runs them, answers with the time they took, and waits
inside ``training_step`` for its next turn. All arms stay warm and alternate within tenths of a second. The driver
starts this script directly or under another tool's launcher. It imports only what its arm needs.
"""

from __future__ import annotations

import os
import socket
import struct
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

ANSWER = struct.Struct("<qq")
"""Wall nanoseconds and CPU nanoseconds of the process for the timed steps of a turn."""

SOCKET_VARIABLE = "OVERHEAD_SOCKET"
ARM_VARIABLE = "OVERHEAD_ARM"
CORE_VARIABLE = "OVERHEAD_CORE"

UNTIMED_STEPS = 3
"""First steps of a turn, with cold caches; odd, so that work done every 256 steps does not always fall on them."""

_BATCH_SIZE, _FEATURES = 4, 8
_ENDLESS = 10**8  # batches


def _simple_profiler(folder: str) -> Any:
    from lightning.pytorch.profilers import SimpleProfiler

    return SimpleProfiler(dirpath=folder, filename="simple")


def _doctor(**arguments: Any) -> Any:
    from lightning_perf import PerfDoctor

    return PerfDoctor(**arguments)


def _bare(folder: str) -> dict[str, Any]:
    return {}


def _empty_callback(folder: str) -> dict[str, Any]:
    from lightning.pytorch import Callback

    class Empty(Callback):
        """A callback whose hooks do nothing."""

    return {"callbacks": [Empty()]}


def _silent_doctor(folder: str) -> dict[str, Any]:
    return {"callbacks": [_doctor(reports=(), schedule=None, out_dir=folder)]}


def _default_doctor(folder: str) -> dict[str, Any]:
    return {"callbacks": [_doctor(out_dir=folder)]}


def _doctor_without_memory(folder: str) -> dict[str, Any]:
    return {"callbacks": [_doctor(out_dir=folder, memory=False)]}


def _with_simple_profiler(folder: str) -> dict[str, Any]:
    return {"profiler": _simple_profiler(folder)}


def _doctor_and_simple_profiler(folder: str) -> dict[str, Any]:
    return {**_default_doctor(folder), "profiler": _simple_profiler(folder)}


def _advanced_profiler(folder: str) -> dict[str, Any]:
    from lightning.pytorch.profilers import AdvancedProfiler

    return {"profiler": AdvancedProfiler(dirpath=folder, filename="advanced")}


def _pytorch_profiler(folder: str) -> dict[str, Any]:
    from lightning.pytorch.profilers import PyTorchProfiler

    return {"profiler": PyTorchProfiler(dirpath=folder, filename="pytorch")}


def _logger(folder: str) -> dict[str, Any]:
    from lightning.pytorch.loggers import TensorBoardLogger

    return {"logger": TensorBoardLogger(folder)}


def _doctor_and_logger(folder: str) -> dict[str, Any]:
    return {**_logger(folder), **_default_doctor(folder)}


def _device_stats_monitor(folder: str) -> dict[str, Any]:
    from lightning.pytorch.callbacks import DeviceStatsMonitor

    return {**_logger(folder), "callbacks": [DeviceStatsMonitor()]}


def _throughput_monitor(folder: str) -> dict[str, Any]:
    from lightning.pytorch.callbacks import ThroughputMonitor

    return {**_logger(folder), "callbacks": [ThroughputMonitor(batch_size_fn=len)]}


def _traceml_callback(folder: str) -> dict[str, Any]:
    # The setup that TraceML documents for scripts started without its launcher.
    from traceml_ai.integrations.lightning import TraceMLCallback, init

    init()
    return {"callbacks": [TraceMLCallback()]}


ARMS: dict[str, Callable[[str], dict[str, Any]]] = {
    "bare": _bare,
    "empty callback": _empty_callback,
    "PerfDoctor(schedule=None, reports=())": _silent_doctor,
    "PerfDoctor()": _default_doctor,
    "PerfDoctor(memory=False)": _doctor_without_memory,
    "SimpleProfiler": _with_simple_profiler,
    "PerfDoctor() and SimpleProfiler": _doctor_and_simple_profiler,
    "AdvancedProfiler": _advanced_profiler,
    "PyTorchProfiler": _pytorch_profiler,
    "logger": _logger,
    "PerfDoctor() and logger": _doctor_and_logger,
    "DeviceStatsMonitor": _device_stats_monitor,
    "ThroughputMonitor": _throughput_monitor,
    "bare, TraceML's environment": _bare,
    "TraceML callback": _traceml_callback,
    "TraceML launcher": _bare,  # the launcher adds the callback
}


class DriverConnection:
    """The arm's connection to the driver, and the clocks of a turn."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._started: tuple[int, int] | None = None

    def start_clocks(self) -> None:
        """Start timing the steps of a turn."""
        self._started = _clocks()

    def wait_for_turn(self) -> int:
        """Send the times of this turn, wait for the next one; return its number of timed steps, 0 to end."""
        ended = _clocks()
        taken = (0, 0) if self._started is None else (e - s for e, s in zip(ended, self._started, strict=True))
        self._socket.sendall(ANSWER.pack(*taken))
        return int.from_bytes(self._socket.recv(4), "little")


def _clocks() -> tuple[int, int]:
    return time.perf_counter_ns(), time.process_time_ns()


def _module(driver: DriverConnection, is_logging: bool) -> Any:
    import torch
    from lightning.pytorch import LightningModule

    class TinyModel(LightningModule):
        """A linear layer, so that the loop around it dominates."""

        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(_FEATURES, 2)
            self.timed_from = -1
            self.timed_until = 0

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == self.timed_until:
                n_steps = driver.wait_for_turn()
                self.timed_from = batch_idx + UNTIMED_STEPS
                self.timed_until = self.timed_from + n_steps
                self.trainer.should_stop = n_steps == 0
            elif batch_idx == self.timed_from:
                driver.start_clocks()
            loss = self.net(batch).sum()
            if is_logging:
                self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return TinyModel()


def loader() -> Any:
    import torch
    from torch.utils.data import DataLoader, Dataset

    batch = torch.randn(_BATCH_SIZE, _FEATURES)

    class Batches(Dataset[Any]):
        """Return the same batch forever."""

        def __len__(self) -> int:
            return _ENDLESS

        def __getitem__(self, index: int) -> Any:
            return batch

    return DataLoader(Batches(), batch_size=None)


def main() -> None:
    """Train until the driver ends the training."""
    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    arm = os.environ[ARM_VARIABLE]
    if core := os.environ.get(CORE_VARIABLE):
        os.sched_setaffinity(0, {int(core)})
    from lightning.pytorch import Trainer

    with tempfile.TemporaryDirectory() as folder:
        arguments: dict[str, Any] = {"logger": False, **ARMS[arm](folder)}
        trainer = Trainer(
            max_epochs=1,
            accelerator="cpu",
            devices=1,
            default_root_dir=folder,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **arguments,
        )
        module = _module(DriverConnection(os.environ[SOCKET_VARIABLE]), is_logging=bool(arguments["logger"]))
        trainer.fit(module, loader())


if __name__ == "__main__":
    main()
