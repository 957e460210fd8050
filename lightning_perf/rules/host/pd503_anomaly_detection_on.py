"""PD503: autograd's anomaly detection is on."""

import msgspec

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, gain_from, trainer_fix, unsigned_finding
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.signals import CODE_PHASES, steady_of
from lightning_perf.rules.thresholds import ANOMALY_HIGH_FRACTION, ANOMALY_LOW_FRACTION
from lightning_perf.rules.user_lines import computing_s


def preflight(session: Session) -> Finding | None:
    is_on = required(session.settings.trainer.is_anomaly_detection_on, "whether anomaly detection is on is not known")
    if not is_on:
        return None
    return unsigned_finding(
        severity="low",  # the cost is not measured
        summary="Anomaly detection is on and will likely slow down every step.",
        evidence=fact("detect_anomaly", True),
        prescriptions=trainer_fix(
            "set detect_anomaly=False (now on)",
            treatment="anomaly-off",
            note="and no torch.autograd.set_detect_anomaly(True)",
            detect_anomaly=False,
        ),
    )


@rule("PD503", "anomaly-detection-on", preflight=preflight)
def check(session: Session) -> Finding | None:
    """Report the setting; the gain is an assumed fraction of forward and backward."""
    finding = preflight(session)
    steady = steady_of(session)
    if finding is None:
        return None
    phases = {name: computing_s(session, steady, name) for name in CODE_PHASES}
    seconds = sum(phases.values())
    return msgspec.structs.replace(
        finding,
        summary="Anomaly detection is on and slows down forward and backward.",
        gain=gain_from(
            steady,
            ANOMALY_LOW_FRACTION * seconds,
            ANOMALY_HIGH_FRACTION * seconds,
            "assumed: 5 % (large operators) to 95 % (small ones) of forward and backward",
        ),
        confidence="medium",
        claims={name: ANOMALY_HIGH_FRACTION * value for name, value in phases.items() if value > 0},
    )
