"""PD305: large matrix products whose sizes the matrix units cannot take whole."""

from __future__ import annotations

from lightning_perf.records import Evidence, Finding, MatrixShape, Prescription, Session
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.trace_signals import (
    device_reading_of,
    device_savings,
    is_worth_saying,
    share_evidence,
    trace_finding,
)
from lightning_perf.rules.wording import percent

CODE = "PD305"
NAME = "misaligned-tensor-core-shapes"
CATEGORY = "compute"

# As for PD202: from 5 % on it decides something.
MIN_SHARE = 0.05
# Smaller products are bound by memory; padding them would add more than it saves.
MIN_DIMENSION = 64
# NVIDIA's guide shows up to about twice the speed for sizes that are multiples of 16 bytes.
HIGH_SPEED_UP = 2.0

_MULTIPLES = {"c10::half": 8, "c10::bfloat16": 8, "signed char": 16, "char": 16}

DOCS = """\
## What it measures
In a profiler window with recorded shapes, the device time of matrix products in 16 or 8 bit of which a dimension is
no multiple of 8 (16 bit) or 16 (8 bit), as a share of the time. Products with a dimension below 64 are left out.

## Why it costs
Matrix units read rows in pieces of 16 bytes. Other sizes are read in smaller pieces, or by slower kernels.

## Example
```python
self.head = nn.Linear(1024, 50257)  # a vocabulary that is no multiple of 8
```

## Prescription
Pad the dimension: `nn.Linear(1024, 50264)`, sequences to a multiple of 8, hidden sizes to a multiple of 64.

## When it is wrong
Newer libraries pad by themselves or choose kernels that suffer little: a trial tells. Sequence lengths that follow the
data are padded by the collate function, at the price of some work for nothing.

## Sources
NVIDIA's deep learning performance guide (matrix dimensions); torch's `_pattern_matcher` (matmul dimensions).
"""


def check(session: Session) -> Finding | None:
    """Adds up the products whose dimensions do not fit."""
    reading, _ = device_reading_of(session)
    if not reading.trace.has_shapes:
        raise Skip("the profiler window recorded no shapes")
    shapes = sorted(filter(_is_misaligned, reading.trace.matrix_shapes), key=lambda shape: -shape.device_s)
    spent_s = sum(shape.device_s for shape in shapes)
    if not shapes or reading.share(spent_s) < MIN_SHARE:
        return None
    low_s, high_s = device_savings(reading, 0.0, spent_s * (1 - 1 / HIGH_SPEED_UP))
    if not is_worth_saying(reading, high_s):
        return None
    worst = shapes[0]
    return trace_finding(
        reading,
        code=CODE,
        name=NAME,
        category=CATEGORY,
        summary=(
            f"{percent(reading.share(spent_s))} of the time is matrix products of sizes that matrix units cannot take "
            f"whole. The costliest is {worst.operator} of {worst.shapes}."
        ),
        evidence=(
            share_evidence(reading, "misaligned matrix products", spent_s, MIN_SHARE),
            *(
                Evidence(metric=f"{shape.operator} {shape.shapes}", value=shape.device_s, unit="s", n=shape.calls)
                for shape in shapes[:3]
            ),
        ),
        prescriptions=(
            Prescription(
                treatment="",
                summary=f"pad the dimensions that are no multiple of {_multiple(worst)}: {_odd(worst)}",
                safety="semantics",
                effort="minutes",
                code=f"size = -(-size // {_multiple(worst)}) * {_multiple(worst)}",
            ),
        ),
        low_s=low_s,
        high_s=high_s,
        basis=f"these products at most {HIGH_SPEED_UP:g}x faster",
        confidence="low",
    )


def _multiple(shape: MatrixShape) -> int:
    return _MULTIPLES.get(shape.dtype.lower(), 1)


def _dimensions(shape: MatrixShape) -> list[int]:
    return [size for size in (shape.m, shape.n, shape.k) if size is not None]


def _is_misaligned(shape: MatrixShape) -> bool:
    sizes = _dimensions(shape)
    return bool(sizes) and min(sizes) >= MIN_DIMENSION and any(size % _multiple(shape) for size in sizes)


def _odd(shape: MatrixShape) -> str:
    return ", ".join(dict.fromkeys(str(size) for size in _dimensions(shape) if size % _multiple(shape)))


RULE = Rule(code=CODE, name=NAME, category=CATEGORY, docs=DOCS, check=check)
