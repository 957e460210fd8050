"""PD307: convolutions of one input shape without cuDNN's benchmark mode."""

from lightning_perf.records import Session
from lightning_perf.rules.findings import fact, trainer_fix
from lightning_perf.rules.kernel_signals import kind_s, work_share
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.rule import required
from lightning_perf.rules.thresholds import CONVOLUTION_MIN_SHARE
from lightning_perf.rules.trace_reading import device_reading_of
from lightning_perf.rules.wording import percent


@replay_rule("PD307", "cudnn-benchmark-off")
def check(session: Session) -> Diagnosis | None:
    reading, device = device_reading_of(session)
    torch = session.settings.torch
    is_on = required(torch.is_cudnn_benchmark_on, "whether cudnn.benchmark is on is not known from a trace")
    if is_on or device.kind not in ("cuda", "rocm") or torch.is_deterministic:
        return None
    convolutions = reading.trace.convolutions
    share = work_share(reading.trace, "convolution")
    if share < CONVOLUTION_MIN_SHARE or convolutions is None:
        return None
    if required(convolutions.n_input_shapes, "the profiler window recorded no shapes") > 1:
        return None
    return Diagnosis(
        f"{percent(share)} of kernel time is convolutions of one input shape, and cudnn.benchmark is off",
        (
            reading.evidence("convolutions", kind_s(reading.trace, "convolution")),
            fact("convolutions ÷ kernel time", share, "fraction", CONVOLUTION_MIN_SHARE, convolutions.n),
            fact("cudnn.benchmark", False),
        ),
        trainer_fix("set benchmark=True", "numerics", "cudnn-benchmark", benchmark=True),
        "benchmark=True runs these operators",
    )
