"""PD305: large matrix multiplications with dimensions that are not aligned for the matrix units."""

from lightning_perf.records import MatrixShape, Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.kernel_signals import kind_path_s, on_path_s
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.rule import Skip
from lightning_perf.rules.thresholds import BYTE_ALIGNMENT, HALF_ALIGNMENT, TENSOR_CORE_MIN_DIMENSION, TRACE_MIN_SHARE
from lightning_perf.rules.trace_reading import device_reading_of
from lightning_perf.rules.wording import percent
from lightning_perf.traces.kernels import MATRIX_KINDS

_MULTIPLES = {
    "c10::half": HALF_ALIGNMENT,
    "c10::bfloat16": HALF_ALIGNMENT,
    "signed char": BYTE_ALIGNMENT,
    "char": BYTE_ALIGNMENT,
}


@replay_rule("PD305", "misaligned-tensor-core-shapes")
def check(session: Session) -> Diagnosis | None:
    reading, _ = device_reading_of(session)
    if not reading.trace.has_shapes:
        raise Skip("the profiler window recorded no shapes")
    shapes = sorted(filter(_is_misaligned, reading.trace.matrix_shapes), key=lambda shape: -shape.device_s)
    trace = reading.trace
    spent_s = min(on_path_s(trace, sum(shape.device_s for shape in shapes)), kind_path_s(trace, *MATRIX_KINDS))
    if not shapes or reading.share(spent_s) < TRACE_MIN_SHARE:
        return None
    worst = shapes[0]
    multiple = _MULTIPLES[worst.dtype.lower()]
    misaligned = ", ".join(dict.fromkeys(str(size) for size in _dimensions(worst) if size % multiple))
    times = [fact(f"{s.operator} {s.shapes}", s.device_s, "s", n=s.calls) for s in shapes[:3]]
    return Diagnosis(
        f"{percent(reading.share(spent_s))} of the time is matrix multiplication with misaligned sizes, mostly "
        f"{worst.operator} of {worst.shapes}",
        (reading.evidence("misaligned matrix multiplications", spent_s, TRACE_MIN_SHARE), *times),
        fix(
            f"pad the sizes that are not a multiple of {multiple}: {misaligned}",
            "minutes",
            "semantics",
            code=f"size = -(-size // {multiple}) * {multiple}",
        ),
        "padding runs these operators",
        replayed_as=f"pad={multiple}",
        at_stake=reading.share(spent_s),
    )


def _dimensions(shape: MatrixShape) -> list[int]:
    return [size for size in (shape.m, shape.n, shape.k) if size is not None]


def _is_misaligned(shape: MatrixShape) -> bool:
    sizes, multiple = _dimensions(shape), _MULTIPLES.get(shape.dtype.lower(), 1)
    return bool(sizes) and min(sizes) >= TENSOR_CORE_MIN_DIMENSION and any(size % multiple for size in sizes)
