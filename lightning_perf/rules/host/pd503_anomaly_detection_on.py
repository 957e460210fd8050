"""PD503: autograd's anomaly detection is on."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, make_finding, timed_finding, trainer_fix
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.signals import CODE_PHASES, claims_of, named_by_kind, steady_of
from lightning_perf.rules.thresholds import ANOMALY_HIGH_FRACTION
from lightning_perf.rules.user_lines import computing_s
from lightning_perf.rules.wording import duration


def preflight(session: Session) -> Finding | None:
    is_on = required(session.settings.trainer.is_anomaly_detection_on, "whether anomaly detection is on is not known")
    if not is_on:
        return None
    return make_finding(
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
    """Report the setting; the recording of stacks is timed, the checks for NaN in backward are not."""
    finding = preflight(session)
    steady = steady_of(session)
    if finding is None:
        return None
    recording = named_by_kind(steady, "loop").get("anomaly_detection", ())
    claims = claims_of(recording, steady.span_s)
    recorded_s = sum(claims.values())
    for name in ("backward",) if recording else CODE_PHASES:
        others_s = max(0.0, computing_s(session, steady, name) - claims.get(name, 0.0))
        claims[name] = claims.get(name, 0.0) + ANOMALY_HIGH_FRACTION * others_s
    share, n_stacks = recorded_s / steady.span_s, sum(time.n_calls for time in recording)
    return timed_finding(
        steady,
        summary="Anomaly detection is on and slows down forward and backward.",
        evidence=(
            *finding.evidence,
            fact("time that records stacks", share, "fraction", n=n_stacks) if recording else None,
        ),
        prescriptions=finding.prescriptions,
        claims=claims,
        low_s=recorded_s,
        basis=(
            f"{duration(recorded_s)} timed, and at most 95 % of the rest of backward"
            if recording
            else "at most 95 % of forward and backward, as seen with small operators"
        ),
        confidence="high" if recording else "medium",
    )
