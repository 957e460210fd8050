"""A training on several ranks with one planted fault, for the tests to launch as a user would.

python rank_script.py FAULT OUT [DEVICES] [STRATEGY] [traced]

Several faults, separated by commas, are trained with one after another, each into its own folder OUT/FAULT, because
starting the processes takes most of the time.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.utils.data import DataLoader, Dataset

from lightning_perf import PerfDoctor

SLEEP_S = 0.025
SLOW_RANK = 1


def rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


class Samples(Dataset):
    """Samples that take long to read on one rank."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def __len__(self) -> int:
        return 2 * 70 * int(os.environ.get("WORLD", "2"))

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.fault == "data" and rank() == SLOW_RANK:
            time.sleep(SLEEP_S / 2)
        if self.fault in ("none", "repeated"):
            return torch.rand(32, generator=torch.Generator().manual_seed(index))
        return torch.ones(32)


class SlowCallback(Callback):
    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        if module.fault == "callback" and trainer.global_rank == SLOW_RANK:
            time.sleep(SLEEP_S)


class Model(LightningModule):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.automatic_optimization = fault != "second backward"
        self.layers = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
        self.spare = torch.nn.Linear(1, 1) if fault == "really unused" else None

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        if self.fault == "compute" and self.global_rank == SLOW_RANK:
            time.sleep(SLEEP_S)
        if self.fault == "second backward":
            return self.step_with_two_backwards(batch)
        loss = self.layers(batch).square().mean()
        if self.fault == "sync_dist":
            for name in "abcdefgh":
                self.log(name, loss, on_step=True, sync_dist=True)
        if self.fault == "none":
            time.sleep(SLEEP_S / 2)  # so that a pause of the machine is little of the run
        if self.fault == "dies" and self.global_rank == SLOW_RANK and batch_idx == 40:
            raise ValueError("planted")
        if self.fault == "out of memory" and self.global_rank == SLOW_RANK and batch_idx == 40:
            raise torch.OutOfMemoryError("planted")
        if self.fault == "killed" and self.global_rank == SLOW_RANK and batch_idx == 40:
            os.kill(os.getpid(), 9)
        if self.fault == "first killed" and self.global_rank == 0 and batch_idx == 40:
            os.kill(os.getpid(), 9)
        if self.fault == "ctrl-c" and self.global_rank == SLOW_RANK and batch_idx == 40:
            os.killpg(0, signal.SIGINT)  # as a terminal does: to all processes in the foreground
        return loss

    def step_with_two_backwards(self, batch: torch.Tensor) -> None:
        self.manual_backward(self.layers(batch).square().mean())
        out = self.layers(batch)
        if self.global_rank == SLOW_RANK:
            out.register_hook(lambda _: time.sleep(SLEEP_S))
        self.manual_backward(out.abs().mean())
        self.optimizers().step()
        self.optimizers().zero_grad()

    def configure_model(self) -> None:
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            from torch.distributed.fsdp import fully_shard

            for layer in (self.layers[0], self.layers[2], self.layers):
                fully_shard(layer, mesh=self.device_mesh["data_parallel"])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def chosen(strategy: str) -> Any:
    """FSDP2 runs on a CPU by way of Lightning's ModelParallelStrategy; torch's first FSDP refuses to."""
    if strategy == "fsdp2":
        return ModelParallelStrategy(data_parallel_size=int(os.environ["WORLD"]), tensor_parallel_size=1)
    return strategy


def collate_unevenly(samples: list[torch.Tensor]) -> torch.Tensor:
    """One rank gets batches of twice the size."""
    return torch.stack(samples * (2 if rank() == SLOW_RANK else 1))


def main(fault: str, out: str, n_devices: str = "2", strategy: str = "ddp", traced: str = "") -> None:
    torch.set_num_threads(1)
    os.environ["WORLD"] = n_devices
    if "unused" in fault:
        strategy = "ddp_find_unused_parameters_true"
    windows = {"schedule": (20, 2, 20, 1), "profiler": {"ranks": "all"}} if traced else {"schedule": None}
    trainer = Trainer(
        callbacks=[SlowCallback(), PerfDoctor(out_dir=out, **windows)],
        accelerator="cpu",
        devices=int(n_devices),
        strategy=chosen(strategy),
        use_distributed_sampler=fault != "repeated",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    collate = collate_unevenly if fault == "uneven" else None
    trainer.fit(Model(fault), DataLoader(Samples(fault), batch_size=2, collate_fn=collate))


if __name__ == "__main__":
    faults, folder, *rest = sys.argv[1:]
    for each in faults.split(","):
        main(each, folder if "," not in faults else os.path.join(folder, each), *rest)
