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
    assert found.matmul_flops_per_s[precision] == peak
    assert found.source


@pytest.mark.parametrize(
    "name", ["", "NVIDIA H200 MIG 1g.18gb", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA Future 9000", "AMD EPYC"]
)
def test_datasheet_is_none_when_the_chip_is_unknown(name: str) -> None:
    assert datasheet_of(name) is None


def test_datasheet_has_no_bf16_when_the_chip_has_none() -> None:
    assert "bf16" not in datasheet_of("Tesla T4").matmul_flops_per_s


# Chips that Lightning's table knows too, by the name that a driver gives and by Lightning's.
IN_BOTH = {
    "NVIDIA H200": "h200 sxm1",
    "NVIDIA H200 NVL": "h200 nvl1",
    "NVIDIA H100 NVL": "h100 nvl",
    "NVIDIA H100 80GB HBM3": "h100 sxm",
    "NVIDIA H100 PCIe": "h100 pcie",
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA A100 80GB PCIe": "a100",
    "NVIDIA A100-PCIE-40GB": "a100",
    "NVIDIA A40": "a40",
    "NVIDIA RTX A6000": "a6000",
    "NVIDIA L40": "l40",
    "NVIDIA L4": "l4",
    "NVIDIA GeForce RTX 4090": "rtx 4090",
    "NVIDIA GeForce RTX 4080": "rtx 4080",
    "NVIDIA GeForce RTX 3090": "rtx 3090",
    "NVIDIA GeForce RTX 3080": "rtx 3080",
    "NVIDIA GeForce RTX 3070": "rtx 3070",
    "Tesla T4": "t4",
    "Tesla V100-SXM2-16GB": "v100 sxm",
    "Tesla V100-PCIE-32GB": "v100 pcie",
    "Tesla V100S-PCIE-32GB": "v100s pcie",
}
# By what Lightning's figure is to be divided, and why.
WRONG_THERE = {
    ("h200 sxm1", "tf32"): 2,  # with sparsity
    ("h200 sxm1", "bf16"): 2,
    ("h200 sxm1", "fp16"): 2,
    ("h200 nvl1", "tf32"): 2,
    ("h200 nvl1", "bf16"): 2,
    ("h200 nvl1", "fp16"): 2,
    # Two cards as one, in a datasheet from before the card was sold alone, with lower clocks.
    ("h100 nvl", "fp32"): 133.8 / 60,
    ("h100 nvl", "tf32"): 989.4 / 417.5,
    ("h100 nvl", "bf16"): 1978.8 / 835.5,
    ("h100 nvl", "fp16"): 1978.8 / 835.5,
    # Without Tensor Cores: a quarter of what these do with fp32 accumulation, half of it on GeForce.
    **{(chip, precision): 1 / 4 for chip in ("a40", "a6000") for precision in ("bf16", "fp16")},
    **{
        (f"rtx {number}", precision): 1 / 2
        for number in ("4090", "4080", "3090", "3080", "3070")
        for precision in ("bf16", "fp16")
    },
}


@pytest.mark.parametrize("name", IN_BOTH)
def test_datasheet_agrees_with_lightnings_table_where_that_is_right(name: str) -> None:
    torch = pytest.importorskip("torch")
    throughput = pytest.importorskip("lightning.fabric.utilities.throughput")
    theirs = throughput._CUDA_FLOPS.get(IN_BOTH[name]) or pytest.skip("not in the table of this Lightning")
    keys = {"fp32": torch.float32, "tf32": "tfloat32", "bf16": torch.bfloat16, "fp16": torch.float16}
    found = datasheet_of(name)
    for precision, speed in found.matmul_flops_per_s.items():
        expected = theirs[keys[precision]] / WRONG_THERE.get((IN_BOTH[name], precision), 1)
        assert speed == pytest.approx(expected, rel=0.02), precision
