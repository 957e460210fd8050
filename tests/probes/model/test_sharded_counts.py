"""Wrapped and sharded models: counted from shapes on one rank, as many operations as in the whole model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.forkserver import Forkserver

from .sharded_counts_script import MODELS

pytestmark = [
    pytest.mark.needs_torch("2.6"),  # fully_shard
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo"),
]


@pytest.fixture(scope="module")
def found(forkserver: Forkserver, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("ranks") / "flops.json"
    done = forkserver.run(Path(__file__).with_name("sharded_counts_script.py"), str(file), n_ranks=2)
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text())


@pytest.mark.parametrize("kind", MODELS)
def test_wrapped_model_has_the_operations_of_the_whole_one_and_stays_as_it_is(found: dict[str, Any], kind: str) -> None:
    *work, precision = found[kind]
    assert work == found["eager"][:-1]
    assert precision == ("bf16" if "bf16" in kind else "fp32")
    assert found[f"{kind} is the same"]
