"""Counts a step of wrapped models on each rank, as it runs and on fake tensors, for ``test_fake_pass.py``.

python sharded_flops_script.py FILE
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lightning_perf.probes.fake_pass import FakePass
from lightning_perf.probes.flops import ArithmeticCounter
from lightning_perf.records import ModelProfile

IN, HIDDEN, OUT, BATCH = 64, 128, 10, 8


class Tied(nn.Module):
    """Two layers with one weight, then another one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(IN, IN), nn.Sequential(nn.ReLU(), nn.Linear(IN, IN))
        self.second[1].weight = self.first.weight
        self.last = nn.Sequential(nn.Linear(IN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUT))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.second(self.first(x)))


def _fully_sharded(**options: Any) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh, model = init_device_mesh("cpu", (2,)), Tied()
    for layer in (model.last, model):
        fully_shard(layer, mesh=mesh, **options)
    return model


def _in_half_precision() -> nn.Module:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return _fully_sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))


def _flattened(keeps_parameters: bool) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    options: dict[str, Any] = {"use_orig_params": keeps_parameters, "device_id": torch.device("cpu")}
    model = Tied()
    model.last = FullyShardedDataParallel(model.last, **options)
    return FullyShardedDataParallel(model, **options)


def _split() -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"last.0": ColwiseParallel(), "last.2": RowwiseParallel()}
    return parallelize_module(Tied(), init_device_mesh("cpu", (2,)), plan)


def step(model: Any, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).float().sum()


def run(model: nn.Module, batch: torch.Tensor) -> ModelProfile:
    for _ in range(2):
        step(model, batch).backward()
    counter = ArithmeticCounter(model)
    with counter:
        loss = step(model, batch)
    counter.direction = "backward"
    with counter:
        loss.backward()
    return counter.profile("cpu")


def faked(model: nn.Module, batch: torch.Tensor) -> ModelProfile:
    fake = FakePass(batch, torch.device("cpu"))
    return fake.profile(model, step, time.perf_counter_ns, time.perf_counter_ns() + 10**12)


def figures(profile: ModelProfile) -> list[Any]:
    return [profile.forward_flops, profile.backward_flops, profile.n_parameters, profile.precision, profile.uncounted]


def main(file: Path) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    batch = torch.randn(BATCH, IN)
    models = {
        "eager": Tied(),
        "DDP": DistributedDataParallel(Tied()),
        "FSDP2": _fully_sharded(),
        "FSDP2 in bf16": _in_half_precision(),
        "FSDP": _flattened(keeps_parameters=True),
        "FSDP, flat": _flattened(keeps_parameters=False),
        "tensor parallel": _split(),
    }
    found = {name: [figures(run(model, batch)), figures(faked(model, batch))] for name, model in models.items()}
    if os.environ["RANK"] == "0":
        file.write_text(json.dumps(found))
    dist.barrier()  # a rank that ends while another still communicates aborts it
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
