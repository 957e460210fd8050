"""Datasheet peaks of chips by driver name: dense matrix multiplication and memory bandwidth.

Peaks of 16-bit types are those with fp32 accumulation, as in torch. Lightning's own table
(``lightning.fabric.utilities.throughput``, 2.6) has other values for some chips, which are wrong:

- H200: the values with sparsity, twice the dense peak;
- H100 NVL: the values of a pair of cards, as in the first datasheets;
- A40, RTX A6000 and GeForce: 16-bit values without Tensor Cores;
- the driver's "NVIDIA H200" is not found, and an L40 or L40S counts as an L4;
- the A10G of AWS, another chip with a lower Tensor Core peak, has the A10's values. It is not listed here.
"""

import re

from lightning_perf.records import DatasheetPeak

_T = 1e12
_SPARSE = "; its figures with sparsity halved"

# https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet and nvidia.com/en-us/data-center/h100;
# memory of the PCIe card: product brief PB-11133-001
_H100 = f"NVIDIA H100 Tensor Core GPU datasheet{_SPARSE}"
# https://nvdam.widen.net/s/nb5zzzsjdf/hpc-datasheet-sc23-h200-datasheet-3002446
_H200 = f"NVIDIA H200 Tensor Core GPU datasheet{_SPARSE}"
# https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf
_A100 = "NVIDIA A100 Tensor Core GPU datasheet"
# https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/a10-datasheet.pdf
_A10 = "NVIDIA A10 datasheet"
# https://images.nvidia.com/content/Solutions/data-center/a40/nvidia-a40-datasheet.pdf
_A40 = "NVIDIA A40 datasheet"
# https://www.nvidia.com/en-us/data-center/l40s/, …/l40/ and …/l4/
_L40S, _L40, _L4 = "NVIDIA L40S datasheet", "NVIDIA L40 datasheet", f"NVIDIA L4 datasheet{_SPARSE}"
# https://images.nvidia.com/aem-dam/Solutions/Data-Center/l4/nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf
_ADA = "NVIDIA Ada GPU architecture whitepaper, appendix A"
# https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf, appendices A and C
_GA102 = "NVIDIA Ampere GA102 GPU architecture whitepaper"
# https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf
_T4 = "NVIDIA T4 datasheet"
# https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf
_V100 = "NVIDIA V100 datasheet"
# https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html
_MI300X = "AMD Instinct MI300X datasheet"


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
    (r"NVIDIA A10", _peak("A10", _A10, 600, 31.2, 62.5, 125, 125)),
    (r"NVIDIA A40", _peak("A40", _A40, 696, 37.4, 74.8, 149.7, 149.7)),
    (r"NVIDIA RTX A6000", _peak("RTX A6000", _GA102, 768, 38.7, 77.4, 154.8, 154.8)),
    (r"NVIDIA L40S", _peak("L40S", _L40S, 864, 91.6, 183, 362.05, 362.05)),
    (r"NVIDIA L40", _peak("L40", _L40, 864, 90.5, 90.5, 181.05, 181.05)),
    (r"NVIDIA L4", _peak("L4", _L4, 300, 30.3, 60, 121, 121)),
    (r"NVIDIA GeForce RTX 4090", _peak("GeForce RTX 4090", _ADA, 1008, 82.6, 82.6, 165.2, 165.2)),
    (r"NVIDIA GeForce RTX 4080", _peak("GeForce RTX 4080", _ADA, 716.8, 48.7, 48.7, 97.5, 97.5)),
    (r"NVIDIA GeForce RTX 3090", _peak("GeForce RTX 3090", _GA102, 936, 35.6, 35.6, 71, 71)),
    (r"NVIDIA GeForce RTX 3080", _peak("GeForce RTX 3080 10 GB", _GA102, 760, 29.8, 29.8, 59.5, 59.5)),
    (r"NVIDIA GeForce RTX 3070", _peak("GeForce RTX 3070", _GA102, 448, 20.3, 20.3, 40.6, 40.6)),
    (r"(NVIDIA )?Tesla T4", _peak("T4", _T4, 300, 8.1, None, 65)),
    (r"(NVIDIA )?Tesla V100-SXM2-\d+GB", _peak("V100 SXM2", _V100, 900, 15.7, None, 125)),
    (r"(NVIDIA )?Tesla V100-PCIE-\d+GB", _peak("V100 PCIe", _V100, 900, 14, None, 112)),
    (r"(NVIDIA )?Tesla V100S-PCIE-\d+GB", _peak("V100S PCIe", _V100, 1134, 16.4, None, 130)),
    (r"AMD Instinct MI300X.*", _peak("MI300X", _MI300X, 5300, 163.4, 653.7, 1307.4, 1307.4)),
)  # fmt: skip


def datasheet_of(device_name: str) -> DatasheetPeak | None:
    """Return the datasheet figures of a chip; None if it is not listed.

    The driver's name must match as a whole, so that MIG slices and laptop variants have no figures.
    """
    return next((peak for name, peak in _CHIPS if re.fullmatch(name, device_name.strip())), None)
