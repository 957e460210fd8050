"""PD343: a step computes what is only logged."""

from lightning_perf.records import STEP_PHASES, Finding
from lightning_perf.rules.findings import fix
from lightning_perf.rules.known_result_signals import Repeated, known_result_rule
from lightning_perf.rules.signals import metric_interval, step_counter
from lightning_perf.rules.thresholds import LOW_SHARE, USER_LINE_MIN_SHARE
from lightning_perf.rules.user_lines import is_metric, whole_lines_of
from lightning_perf.rules.wording import number_of, site_of


@known_result_rule("PD343", "only-logged", "logged")
def check(repeated: Repeated) -> Finding | None:
    found, session = repeated.found, repeated.session
    claimed_s, every = sum(repeated.claims.values()), metric_interval(session)
    if claimed_s < USER_LINE_MIN_SHARE * repeated.steady.span_s:
        return None
    metrics = whole_lines_of(session, STEP_PHASES, is_metric)
    here_s = sum(time.seconds for time in metrics if site_of(time.line.file, time.line.line) == found.site)
    if here_s >= claimed_s and sum(time.low_s for time in metrics) >= LOW_SHARE * repeated.steady.span_s:
        return None  # PD509 names the line, with all of its time
    # Lightning writes the values of the 50th step, the 100th, …: in others, self.log would leave old ones for these.
    counter, log = f"self.trainer.{step_counter(session)}", "self.log"
    if not session.run.has_trainer:
        counter, log = "step", "fabric.log"
    return repeated.saving_finding(
        summary=(
            f"{repeated.where} computes what is only logged: results of {number_of(found.n_operators, 'operator')} "
            f"are given to {log} and reach no loss."
        ),
        counted="operators whose results are only logged",
        prescriptions=(
            fix(
                f"compute and log it every {every} steps: its mean over an epoch then covers one batch in {every}",
                "minutes",
                "numerics",  # random numbers that it draws are no longer drawn
                code=f"if ({counter} + 1) % {every} == 0:\n"
                f'    {log}("accuracy", self.accuracy_of(x, y))  # and all that it needs',
            ),
            fix("compute it from the results that the loss is computed from", "minutes", "numerics"),
        ),
        least_s=(1 - 1 / every) * repeated.least_s,
        basis=f"operators of one step, timed and followed by what uses them; one in {every} keeps them",
    )
