"""PD306: 16-bit convolutions whose tensors are converted to another memory layout and back."""

from lightning_perf.records import Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.kernel_signals import on_path_s, work_s, work_share
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.thresholds import CONVOLUTION_MIN_SHARE, HALF_MIN_FRACTION, LOW_SHARE
from lightning_perf.rules.trace_reading import device_reading_of
from lightning_perf.rules.wording import percent
from lightning_perf.stats.roofline import LOWER_PRECISIONS


@replay_rule("PD306", "not-channels-last")
def check(session: Session) -> Diagnosis | None:
    reading, _ = device_reading_of(session)
    kernels = reading.trace.kernels
    if kernels is None or work_s(reading.trace) <= 0:
        return None
    share = work_share(reading.trace, "convolution") + kernels.layout_s / work_s(reading.trace)
    if share < CONVOLUTION_MIN_SHARE:
        return None
    spent_s = on_path_s(reading.trace, kernels.layout_s)
    if reading.share(spent_s) < LOW_SHARE:
        return None
    half_s = sum(kernels.matrix_precisions.get(precision, 0.0) for precision in LOWER_PRECISIONS)
    if half_s < HALF_MIN_FRACTION * kernels.matrix_s:
        return None
    return Diagnosis(
        f"{percent(reading.share(spent_s))} of step time is spent converting memory layouts ({kernels.layout_n} "
        "kernels)",
        (
            reading.evidence("layout conversions on the critical path", spent_s, LOW_SHARE),
            fact(
                "convolutions and layout conversions ÷ kernel time",
                share,
                "fraction",
                CONVOLUTION_MIN_SHARE,
                reading.trace.n_kernels,
            ),
        ),
        fix(
            "convert model and images to channels_last once",
            "minutes",
            "numerics",
            treatment="channels-last",
            code=(
                "model = model.to(memory_format=torch.channels_last)\n"
                "images = images.to(memory_format=torch.channels_last)"
            ),
        ),
        "channels_last runs these operators",
        at_stake=reading.share(spent_s),
    )
