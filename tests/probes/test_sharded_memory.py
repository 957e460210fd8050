"""Sharded models: what memory holds is what this rank holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch import nn

from lightning_perf import memory_breakdown
from lightning_perf.records import Breakdown

IN, HIDDEN, OUT, BATCH = 64, 128, 10, 8
HALF = 4 * (IN * HIDDEN + HIDDEN + HIDDEN * OUT + OUT) // 2
HIDDEN_BYTES = 4 * BATCH * HIDDEN
STEP = 4  # bytes of an optimizer's step counter

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo")


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


def _train(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    for name, make in {"FSDP2": _sharded, "FSDP": _flattened}.items():
        model = make()
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.randn(BATCH, IN)).sum().backward()
        optimizer.step()
        record = memory_breakdown(model, optimizer, torch.randn(BATCH, IN)).record
        (folder / f"{name}-{rank}.json").write_bytes(msgspec.json.encode(record))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(_train, args=(folder,), nprocs=2)
    return folder


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", ["FSDP2", "FSDP"])
def test_breakdown_holds_the_shards_of_this_rank_when_a_model_is_sharded(folder: Path, kind: str, rank: int) -> None:
    record = msgspec.json.decode((folder / f"{kind}-{rank}.json").read_bytes(), type=Breakdown)
    assert record.parameters_bytes == HALF
    assert record.gradients_bytes == HALF
    assert record.gradients_basis == "held"
    assert record.optimizer_bytes is not None
    # FSDP lays parameters end to end, so that a rank may hold nothing of one of them, and no counter for it.
    assert 0 <= record.optimizer_bytes - 2 * HALF <= 4 * STEP
    assert record.optimizer_bytes == 2 * HALF + 4 * STEP or kind == "FSDP"


@pytest.mark.parametrize("kind", ["FSDP2", "FSDP"])
def test_gathered_parameters_are_no_activations_when_a_model_is_sharded(folder: Path, kind: str) -> None:
    record = msgspec.json.decode((folder / f"{kind}-0.json").read_bytes(), type=Breakdown)
    assert record.activations_bytes == HIDDEN_BYTES
    assert sum(module.activations_bytes or 0 for module in record.modules) == HIDDEN_BYTES
