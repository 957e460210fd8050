"""PD509: torchmetrics metrics take a share of the step."""

from lightning_perf.records import STEP_PHASES, Finding, Session
from lightning_perf.rules.findings import fix, timed_finding
from lightning_perf.rules.line_signals import evidence_of
from lightning_perf.rules.rule import rule
from lightning_perf.rules.signals import metric_interval, phase_s, steady_of, step_counter
from lightning_perf.rules.thresholds import LINES_SHOWN, LOW_SHARE, USER_LINE_MIN_SHARE
from lightning_perf.rules.user_lines import check_is_sampled, is_metric, whole_lines_of
from lightning_perf.rules.wording import percent, statement_of


@rule("PD509", "costly-metrics", is_host_time=True)
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    check_is_sampled(session)
    steps_s = phase_s(steady, *STEP_PHASES)
    found = whole_lines_of(session, STEP_PHASES, is_metric)
    seconds, low_s = sum(time.seconds for time in found), sum(time.low_s for time in found)
    if seconds < USER_LINE_MIN_SHARE * steps_s or low_s < LOW_SHARE * steady.span_s:
        return None
    worst, every = found[0], metric_interval(session)
    claims: dict[str, float] = {}
    code = f"# {worst.line.file}:{worst.line.line}\n" if worst.line.file else ""
    # Users name the parameter of training_step as they like; hooks of callbacks have a self without a Trainer.
    is_step = session.run.stage == "fit" and not worst.line.function.startswith("on_")
    counter = f"self.trainer.{step_counter(session)}" if is_step else "batch_idx"
    if not session.run.has_trainer:
        counter = "step"
    # Lightning writes the values of the 50th step, the 100th, …: in others, self.log would leave old ones for these.
    for time in found:
        claims[time.phase] = claims.get(time.phase, 0.0) + time.high_s
    return timed_finding(
        steady,
        summary=(
            f"{percent(seconds / steps_s)} of step time is spent in metrics; {worst.where} spends "
            f"{percent(worst.seconds / steps_s)} of it{worst.doing}."
        ),
        evidence=(evidence_of(time, steady) for time in found[:LINES_SHOWN]),
        prescriptions=(
            fix(
                f"call the metric every {every} steps: it then covers one batch in {every}",
                "one line",
                "semantics",
                code=f"{code}if ({counter} + 1) % {every} == 0:\n    {statement_of(worst.line.code)}",
            ),
            fix("call update() in the step and compute() once at the end of the epoch", "minutes"),
        ),
        claims=claims,
        low_s=(1 - 1 / every) * low_s,
        basis=f"one call in {every} remains; share from {sum(time.n for time in found)} stack samples",
    )
