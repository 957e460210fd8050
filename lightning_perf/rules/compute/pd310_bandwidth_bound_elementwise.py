"""PD310: memory bandwidth limits most of the device's kernels."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import compile_prescription, fact
from lightning_perf.rules.kernel_signals import MEMORY_BOUND_KINDS, kind_path_s, work_share
from lightning_perf.rules.replay_signals import Diagnosis, replayed_finding
from lightning_perf.rules.rule import rule
from lightning_perf.rules.thresholds import ELEMENTWISE_MIN_SHARE, KIND_SHOWN_SHARE
from lightning_perf.rules.trace_reading import device_reading_of
from lightning_perf.rules.wording import percent


@rule("PD310", "bandwidth-bound-elementwise")
def check(session: Session) -> Finding | None:
    """Report kernels limited by memory bandwidth if they take much of the compute time.

    The treatment is not replayed: compiling takes too long for a pause of the training.
    """
    reading, _ = device_reading_of(session)
    trace = reading.trace
    spent_s, everything_s = kind_path_s(trace, *MEMORY_BOUND_KINDS), reading.path_s("compute")
    if everything_s <= 0 or spent_s / everything_s < ELEMENTWISE_MIN_SHARE or not reading.is_noticeable(spent_s):
        return None
    shares = {kind: work_share(trace, kind) for kind in MEMORY_BOUND_KINDS}
    kinds = [f"{kind} {percent(share)}" for kind, share in shares.items() if share >= KIND_SHOWN_SHARE]
    diagnosis = Diagnosis(
        f"{percent(reading.share(spent_s))} of the time is kernels limited by memory bandwidth. Of all kernel time: "
        f"{', '.join(kinds)}",
        (
            fact(
                "elementwise, normalization, reduction and copy kernels ÷ all kernels",
                spent_s / everything_s,
                "fraction",
                ELEMENTWISE_MIN_SHARE,
                trace.n_kernels,
            ),
            reading.evidence("these kernels on the critical path", spent_s),
        ),
        compile_prescription(session, ": it fuses chains of such kernels"),
        "torch.compile runs these operators",
        at_stake=reading.share(spent_s),
    )
    return replayed_finding(session, diagnosis)
