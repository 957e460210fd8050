"""Trains two sharded models on each rank and writes their memory breakdowns, for ``test_sharded_memory.py``.

python sharded_script.py FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn

from lightning_perf import memory_breakdown

IN, HIDDEN, OUT, BATCH = 64, 128, 10, 8


def _layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(IN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUT))


def _sharded() -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh, model = init_device_mesh("cpu", (2,)), _layers()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model


def _flattened() -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    options: dict[str, Any] = {"use_orig_params": True, "device_id": torch.device("cpu")}
    first, activation, last = _layers()
    parts = FullyShardedDataParallel(first, **options), activation, FullyShardedDataParallel(last, **options)
    return FullyShardedDataParallel(nn.Sequential(*parts), **options)


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    for name, make in {"FSDP2": _sharded, "FSDP": _flattened}.items():
        model = make()
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.randn(BATCH, IN)).sum().backward()
        optimizer.step()
        record = memory_breakdown(model, optimizer, torch.randn(BATCH, IN)).record
        (folder / f"{name}-{os.environ['RANK']}.json").write_bytes(msgspec.json.encode(record))
    dist.barrier()  # a rank that ends while another still communicates aborts it
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
