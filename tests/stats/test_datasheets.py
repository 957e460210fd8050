from __future__ import annotations

import pytest

from lightning_perf.stats.datasheets import datasheet_of


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H200", "bf16", 989.4e12),
        ("NVIDIA H200 NVL", "bf16", 835.5e12),
        ("NVIDIA H100 NVL", "fp16", 835.5e12),
        ("NVIDIA H100 80GB HBM3", "tf32", 494.7e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA L40S", "bf16", 362.05e12),
        ("NVIDIA L4", "bf16", 121e12),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5e12),
        ("Tesla T4", "fp16", 65e12),
        ("Tesla V100-SXM2-16GB", "fp16", 125e12),
    ],
)
def test_datasheet_gives_dense_figures_when_the_chip_is_known(name: str, precision: str, peak: float) -> None:
    found = datasheet_of(name)
    assert found is not None
    assert found.matmul_flops_per_s[precision] == peak
    assert found.source


@pytest.mark.parametrize(
    "name", ["", "NVIDIA H200 MIG 1g.18gb", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA Future 9000", "AMD EPYC"]
)
def test_datasheet_says_nothing_when_the_chip_is_not_known(name: str) -> None:
    assert datasheet_of(name) is None


def test_datasheet_has_no_bf16_when_the_chip_has_none() -> None:
    found = datasheet_of("Tesla T4")
    assert found is not None
    assert "bf16" not in found.matmul_flops_per_s
