"""Sharded models: the breakdown counts what this rank holds."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch.distributed as dist

from lightning_perf.records import Breakdown
from tests.forkserver import Forkserver

from .sharded_script import BATCH, HIDDEN, IN, OUT

HALF = 4 * (IN * HIDDEN + HIDDEN + HIDDEN * OUT + OUT) // 2
HIDDEN_BYTES = 4 * BATCH * HIDDEN
STEP = 4  # bytes of an optimizer's step counter

pytestmark = [
    pytest.mark.needs_torch("2.6"),  # fully_shard
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo"),
]


@pytest.fixture(scope="module")
def folder(forkserver: Forkserver, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    done = forkserver.run(Path(__file__).with_name("sharded_script.py"), str(folder), n_ranks=2)
    assert done.returncode == 0, done.stderr
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
