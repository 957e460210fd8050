"""What the makers say that their chips can do: dense matrix products and memory, by the name that the driver gives.

16-bit figures are those with sums in 32 bit, as torch computes them. Lightning's own table
(``lightning.fabric.utilities.throughput``, 2.6) has some of these otherwise: with sparsity for the H200, two cards as
one for the H100 NVL, without Tensor Cores for the A40, the RTX A6000 and bf16 on GeForce. It also finds nothing for a
driver's "NVIDIA H200", and takes an L40S for an L4.
"""

from __future__ import annotations

import re

from lightning_perf.records import DatasheetPeak

_T = 1e12
_SPARSE = "; its figures with sparsity halved"
_H100 = f"NVIDIA H100 Tensor Core GPU datasheet{_SPARSE}"
_H200 = f"NVIDIA H200 Tensor Core GPU datasheet{_SPARSE}"
_A100 = "NVIDIA A100 Tensor Core GPU datasheet"
_ADA = "NVIDIA Ada GPU architecture whitepaper, appendix A"
_GA102 = "NVIDIA Ampere GA102 GPU architecture whitepaper"
_V100 = "NVIDIA V100 datasheet"


def _peak(chip: str, source: str, memory: float, fp32: float, tf32: float | None = None, fp16: float | None = None,
          bf16: float | None = None) -> DatasheetPeak:  # fmt: skip
    by_precision = {"fp32": fp32, "tf32": tf32, "fp16": fp16, "bf16": bf16}
    return DatasheetPeak(
        chip=chip,
        matmul_flops_per_s={name: value * _T for name, value in by_precision.items() if value is not None},
        memory_bytes_per_s=memory * 1e9,
        source=source,
    )


_CHIPS: tuple[tuple[str, DatasheetPeak], ...] = (
    (r"NVIDIA H200 NVL", _peak("H200 NVL", _H200, 4800, 60, 417.5, 835.5, 835.5)),
    (r"NVIDIA H200", _peak("H200 SXM", _H200, 4800, 67, 494.7, 989.4, 989.4)),
    (r"NVIDIA H100 NVL", _peak("H100 NVL", _H100, 3900, 60, 417.5, 835.5, 835.5)),
    (r"NVIDIA H100 PCIe", _peak("H100 PCIe", _H100, 2000, 51, 378, 756, 756)),
    (r"NVIDIA H100 80GB HBM3", _peak("H100 SXM", _H100, 3350, 67, 494.7, 989.4, 989.4)),
    (r"(NVIDIA )?A100-SXM4-80GB", _peak("A100 SXM 80 GB", _A100, 2039, 19.5, 156, 312, 312)),
    (r"NVIDIA A100 80GB PCIe", _peak("A100 PCIe 80 GB", _A100, 1935, 19.5, 156, 312, 312)),
    (r"(NVIDIA )?A100-(SXM4|PCIE)-40GB", _peak("A100 40 GB", _A100, 1555, 19.5, 156, 312, 312)),
    (r"NVIDIA A10", _peak("A10", "NVIDIA A10 datasheet", 600, 31.2, 62.5, 125, 125)),
    (r"NVIDIA A40", _peak("A40", "NVIDIA A40 datasheet", 696, 37.4, 74.8, 149.7, 149.7)),
    (r"NVIDIA RTX A6000", _peak("RTX A6000", _GA102, 768, 38.7, 77.4, 154.8, 154.8)),
    (r"NVIDIA L40S", _peak("L40S", "NVIDIA L40S datasheet", 864, 91.6, 183, 362.05, 362.05)),
    (r"NVIDIA L40", _peak("L40", "NVIDIA L40 datasheet", 864, 90.5, 90.5, 181.05, 181.05)),
    (r"NVIDIA L4", _peak("L4", f"NVIDIA L4 datasheet{_SPARSE}", 300, 30.3, 60, 121, 121)),
    (r"NVIDIA GeForce RTX 4090", _peak("GeForce RTX 4090", _ADA, 1008, 82.6, 82.6, 165.2, 165.2)),
    (r"NVIDIA GeForce RTX 4080", _peak("GeForce RTX 4080", _ADA, 716.8, 48.7, 48.7, 97.5, 97.5)),
    (r"NVIDIA GeForce RTX 3090", _peak("GeForce RTX 3090", _GA102, 936, 35.6, 35.6, 71, 71)),
    (r"NVIDIA GeForce RTX 3080", _peak("GeForce RTX 3080", _GA102, 760, 29.8, 29.8, 59.5, 59.5)),
    (r"NVIDIA GeForce RTX 3070", _peak("GeForce RTX 3070", _GA102, 448, 20.3, 20.3, 40.6, 40.6)),
    (r"(NVIDIA )?Tesla T4", _peak("T4", "NVIDIA T4 datasheet", 300, 8.1, None, 65)),
    (r"(NVIDIA )?Tesla V100-SXM2-\d+GB", _peak("V100 SXM2", _V100, 900, 15.7, None, 125)),
    (r"(NVIDIA )?Tesla V100-PCIE-\d+GB", _peak("V100 PCIe", _V100, 900, 14, None, 112)),
    (r"(NVIDIA )?Tesla V100S-PCIE-\d+GB", _peak("V100S PCIe", _V100, 1134, 16.4, None, 130)),
    (r"AMD Instinct MI300X.*", _peak("MI300X", "AMD Instinct MI300X datasheet", 5300, 163.4, 653.7, 1307.4, 1307.4)),
)  # fmt: skip


def datasheet_of(device_name: str) -> DatasheetPeak | None:
    """The maker's figures for a chip.

    Args:
        device_name: As the driver gives it. It must match as a whole: parts of a chip (MIG), variants for laptops and
            chips that are not listed have no figures here.

    Returns:
        The figures, or None for an unknown chip.
    """
    return next((peak for name, peak in _CHIPS if re.fullmatch(name, device_name.strip())), None)
