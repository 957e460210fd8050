"""Counts a step of wrapped models from its shapes on rank 0, for ``test_sharded_counts.py``.

python sharded_counts_script.py FILE
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lightning_perf.probes.model.call_watch import CallWatch
from lightning_perf.probes.model.fake_pass import fake_profile
from lightning_perf.probes.model.flops import ArithmeticCounter
from lightning_perf.records import ModelProfile
from tests.trainer.observations import random_streams, tensor_digest

IN, HIDDEN, OUT, BATCH = 64, 128, 10, 8


class Tied(nn.Module):
    """Two layers with one weight, then others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(IN, IN), nn.Sequential(nn.ReLU(), nn.Linear(IN, IN))
        self.second[1].weight = self.first.weight
        self.last = nn.Sequential(nn.Linear(IN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUT))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.second(self.first(x)))


def fully_sharded(**options: Any) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh, model = init_device_mesh("cpu", (2,)), Tied()
    for layer in (model.last, model):
        fully_shard(layer, mesh=mesh, **options)
    return model


def in_half_precision() -> nn.Module:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return fully_sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))


def flattened(keeps_parameters: bool) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    options: dict[str, Any] = {"use_orig_params": keeps_parameters, "device_id": torch.device("cpu")}
    model = Tied()
    model.last = FullyShardedDataParallel(model.last, **options)
    return FullyShardedDataParallel(model, **options)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "DDP": lambda: DistributedDataParallel(Tied()),
    "compiled DDP": lambda: DistributedDataParallel(torch.compile(Tied(), backend="eager")),  # type: ignore[arg-type]
    "FSDP2": fully_sharded,
    "FSDP2 in bf16": in_half_precision,
    "FSDP": lambda: flattened(keeps_parameters=True),
    "FSDP, flat": lambda: flattened(keeps_parameters=False),
}


def state_of(model: nn.Module) -> Any:
    """Return what a pass must not change: parameters, gradients and random streams."""
    tensors = [getattr(p, "_local_tensor", p) for p in model.parameters()]
    gradients = [getattr(p.grad, "_local_tensor", p.grad) for p in model.parameters() if p.grad is not None]
    digests = [(id(t), t._version, tensor_digest(t)) for t in (*tensors, *gradients)]
    return digests, random_streams(), [sorted(vars(each)) for each in model.modules()]


def step(model: nn.Module, batch: torch.Tensor, tracer: Any = None) -> Any:
    """Run forward, watched, and backward."""
    if tracer is not None:
        tracer.enters("training_step")
    loss = model(batch).float().sum()
    if tracer is not None:
        tracer.leaves("training_step")
    loss.backward()
    return loss.item()


def counted() -> ModelProfile:
    """Return the operations of the model that is not wrapped."""
    counter = ArithmeticCounter(Tied())
    with counter:
        loss = counter._root(torch.randn(BATCH, IN)).sum()
    counter.direction = "backward"
    with counter:
        loss.backward()
    return counter.profile("cpu")


def figures(profile: ModelProfile) -> list[Any]:
    """Return the figures that do not depend on how a model is wrapped, and the precision."""
    return [profile.forward_flops, profile.backward_flops, profile.n_parameters, profile.precision]


def main(file: Path) -> None:
    """Count each model on rank 0 alone, and train it on both ranks before and after."""
    dist.init_process_group("gloo")
    is_first = os.environ["RANK"] == "0"
    found: dict[str, Any] = {"eager": figures(counted())}
    for name, make in MODELS.items():
        torch.manual_seed(0)
        model, batch = make(), torch.randn(BATCH, IN)
        step(model, batch)
        watch = CallWatch(torch.device("cpu"), time.perf_counter_ns)
        step(model, batch, watch)
        before = state_of(model)
        if is_first:
            found[name] = figures(fake_profile(watch, model, 1, time.perf_counter_ns, 2**62))
        found[f"{name} is the same"] = state_of(model) == before
        step(model, batch)
    if is_first:
        file.write_text(json.dumps(found))
    dist.barrier()  # a rank that ends while another still communicates aborts it
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
