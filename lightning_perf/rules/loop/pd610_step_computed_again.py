"""PD610: each batch goes through forward and backward several times, with the same parameters."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import named_by_kind, phase_s, steady_of
from lightning_perf.rules.step_signals import model_profile_of
from lightning_perf.rules.wording import duration, percent

_CODE = (
    "def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):\n"
    "    optimizer.step(closure=optimizer_closure)  # computes the gradients: no optimizer_closure() before it"
)


@rule("PD610", "step-computed-again")
def check(session: Session) -> Finding | None:
    """Compare the calls of ``training_step`` in the counted step, and in the run, with one per batch."""
    steady, profile = steady_of(session), model_profile_of(session)
    calls = [time for time in named_by_kind(steady, "loop").get("training_step", ()) if time.n_calls]
    if not profile.n_passes or not calls or not session.run.n_steps:
        raise Skip("how often a batch goes through the model was not counted")
    n = profile.n_passes
    per_batch = sum(time.n_calls for time in calls) / session.run.n_steps
    if n < 2 or round(per_batch) < n:
        return None
    above = f", from {profile.pass_site} on" if profile.pass_site else ""
    again = 1 - 1 / n
    computed_s = phase_s(steady, "forward") + phase_s(steady, "backward")
    return timed_finding(
        steady,
        summary=(
            f"training_step and backward run {n} times for each batch, with the same parameters{above}; "
            "the gradients of the last time are used."
        ),
        evidence=(
            fact("calls of training_step with the same parameters, in one step", n, "count", 2),
            fact("calls of training_step per batch", per_batch, "count", n=session.run.n_steps),
        ),
        prescriptions=fix("run the optimizer's closure once per batch", "minutes", "numerics", code=_CODE),
        claims={name: again * phase_s(steady, name) for name in ("forward", "backward", "logging")},
        low_s=again * computed_s,
        basis=f"{duration(computed_s)} timed; {percent(again)} of it, and as much of the time to log, is saved",
    )
