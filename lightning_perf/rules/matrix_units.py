"""The dtypes in which a device multiplies matrices faster than in fp32, and how to use them."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from lightning_perf.records import Prescription, Session, TraceRecord

from .findings import fix, trainer_fix
from .thresholds import AMPERE_CAPABILITY, TENSOR_CORE_CAPABILITY, TURING_CAPABILITY

_AMD_WITH_MATRIX_UNITS = re.compile(r"\bMI\d{2,3}")
_TURING_WITHOUT_TENSOR_CORES = re.compile(r"GTX 16|\bMX\d|\bT\d{3,4}\b")


class MatrixUnits(NamedTuple):
    """Whether the device multiplies matrices faster in each dtype than in fp32; None if not known."""

    bf16: bool | None
    fp16: bool | None
    tf32: bool | None


def matrix_units(session: Session, trace: TraceRecord | None) -> MatrixUnits:
    """Return the dtypes that the device's matrix units support, by the session's machine or else by the trace.

    Sources: NVIDIA's compute capabilities (Tensor Cores from 7.0, TF32 and bf16 from 8.0; the GTX 16 series is 7.5
    without them) and AMD's CDNA line (Instinct MI100 and newer).
    """
    devices = session.machine.devices
    if devices:
        capabilities = [_capability(device.capability) for device in devices if device.kind == "cuda"]
        return MatrixUnits(
            _all(device.has_fast_bf16 for device in devices),
            _all(device.has_fast_fp16 for device in devices),
            _all(None if capability is None else capability >= AMPERE_CAPABILITY for capability in capabilities),
        )
    device = trace.device if trace is not None else None
    name = (trace.device_name if trace is not None else None) or ""
    if device is not None and device.kind == "rocm":
        has_units = True if _AMD_WITH_MATRIX_UNITS.search(name) else None
        return MatrixUnits(has_units, has_units, None)
    capability = _capability(device.capability if device is not None else None)
    if capability is None:
        return MatrixUnits(None, None, None)
    has_tensor_cores = capability >= TENSOR_CORE_CAPABILITY and not (
        capability == TURING_CAPABILITY and _TURING_WITHOUT_TENSOR_CORES.search(name)
    )
    return MatrixUnits(capability >= AMPERE_CAPABILITY, has_tensor_cores, capability >= AMPERE_CAPABILITY)


def may_multiply_in_bf16(session: Session) -> bool:
    """Return whether this CPU multiplies in bf16 itself, or may do so.

    Others convert each operand, and then take longer than in fp32: with AVX2 only, one matrix multiplication took 38
    times as long. https://uxlfoundation.github.io/oneDNN/dev_guide_data_types.html
    """
    features = session.machine.cpu_features
    return not features or bool({"avx512_bf16", "amx_bf16"} & set(features))


def precision_fix(session: Session, treatment: str, flag: str, effect: str = "") -> Prescription:
    """Recommend mixed precision; without arguments to apply if the flag alone would end the training."""
    set_flag, because = f'set precision="{flag}"', f": {effect}" if effect else ""
    if not session.settings.clips_fused:
        return trainer_fix(set_flag + because, "numerics", treatment, precision=flag)
    return fix(
        f"{set_flag} and fused=False in the optimizer{because}; Lightning clips no gradients of fused optimizers "
        "with mixed precision",
        "minutes",
        "numerics",
        code=f'torch.optim.AdamW(self.parameters(), ..., fused=False)  # whichever you have; then precision="{flag}"',
    )


def _capability(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def _all(answers: Iterable[bool | None]) -> bool | None:
    listed = list(answers)
    return None if not listed or any(answer is None for answer in listed) else all(listed)
