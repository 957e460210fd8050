"""PD503: autograd's anomaly detection is on."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, make_finding, timed_finding, trainer_fix
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.signals import CODE_PHASES, named_by_kind, share_of, steady_of
from lightning_perf.rules.thresholds import ANOMALY_HIGH_FRACTION
from lightning_perf.rules.user_lines import computing_s, lines_of, records_stacks
from lightning_perf.rules.wording import percent


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


@rule("PD503", "anomaly-detection-on", preflight=preflight, is_host_time=True, line_of=())
def check(session: Session) -> Finding | None:
    """Report the setting; the lower end of the gain is the timed part of it, the recording of stacks."""
    finding = preflight(session)
    steady = steady_of(session)
    if finding is None:
        return None
    recording = named_by_kind(steady, "loop").get("anomaly_detection", ())
    if session.run.stage != "fit" and not recording:
        return None  # an evaluation has no autograd graph, so nothing is recorded
    share, n_stacks = share_of(recording), sum(time.n_calls for time in recording)
    phases = {name: computing_s(session, steady, name) for name in CODE_PHASES}
    sampled = (time for time in lines_of(session, "forward") if records_stacks(session, time.line))
    phases["forward"] += sum(time.seconds for time in sampled)
    return timed_finding(
        steady,
        summary="Anomaly detection is on and slows down forward and backward.",
        evidence=(
            *finding.evidence,
            fact("time spent recording stacks", share, "fraction", n=n_stacks) if recording else None,
        ),
        prescriptions=finding.prescriptions,
        claims={name: ANOMALY_HIGH_FRACTION * value for name, value in phases.items() if value > 0},
        low_s=share * steady.span_s,
        basis=(
            f"{f'at least {percent(share)} of the time, spent recording stacks; ' if recording else ''}at most 95 % of "
            "forward and backward, as seen with small operators"
        ),
        confidence="medium",
    )
