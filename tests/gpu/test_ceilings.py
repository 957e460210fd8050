"""The ceilings of a real device against torch's own benchmark of the same operators, in the same run."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.benchmark import Timer

from lightning_perf import quick_profile
from lightning_perf.probes.model import ceilings
from lightning_perf.stats.datasheets import datasheet_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_ceilings_are_those_of_torchs_own_benchmark() -> None:
    device = torch.device("cuda:0")
    found = ceilings.measure(device)
    assert found.took_s is not None
    assert found.took_s <= ceilings.BUDGET_S * 1.5
    a = torch.rand(8192, 8192, device=device, dtype=torch.bfloat16)
    product = Timer("a @ a", globals={"a": a}).blocked_autorange(min_run_time=0.5)
    # The fastest: after some tenths of a second, an H100 is slowed by its power limit.
    assert found.matmul_flops_per_s["bf16"] == pytest.approx(2 * 8192**3 / min(product.times), rel=0.1)
    source = torch.ones(2**30, dtype=torch.uint8, device=device)
    copy = Timer("b.copy_(a)", globals={"a": source, "b": torch.empty_like(source)}).blocked_autorange(min_run_time=0.5)
    assert found.copy_bytes_per_s == pytest.approx(2 * 2**30 / copy.median, rel=0.1)
    chip = datasheet_of(torch.cuda.get_device_name(device))
    if chip is not None:
        for precision, speed in found.matmul_flops_per_s.items():
            assert speed <= 1.02 * chip.matmul_flops_per_s.get(precision, float("inf"))


def test_quick_profile_counts_backward_on_the_device() -> None:
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
    record = quick_profile(model, torch.randn(64, 512, device="cuda"), seconds=0.5).record
    once = 2 * 64 * (512 * 1024 + 1024 * 256)
    assert record.forward_flops == once
    assert record.backward_flops == 2 * once - 2 * 64 * 512 * 1024
    for field in ("forward_flops", "backward_flops"):
        assert sum(getattr(module, field) for module in record.modules) == getattr(record, field)
    assert {m.path for m in record.modules if m.backward_flops} == {"0", "2"}
    assert record.utilisation is not None
