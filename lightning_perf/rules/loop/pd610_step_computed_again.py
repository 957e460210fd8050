"""PD610: each batch goes through forward and backward several times, with the same parameters."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import named_by_kind, phase_s, steady_of
from lightning_perf.rules.step_signals import model_profile_of
from lightning_perf.rules.thresholds import FEW_BATCHES_PART
from lightning_perf.rules.wording import duration, percent

_CODE = (
    "def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):\n"
    "    optimizer.step(closure=optimizer_closure)  # computes the gradients: no optimizer_closure() before it"
)


@rule("PD610", "step-computed-again")
def check(session: Session) -> Finding | None:
    """Compare the calls of ``training_step`` in the counted step, and in the run, with one per batch."""
    steady, profile = steady_of(session), model_profile_of(session)
    loop = named_by_kind(steady, "loop")
    n_passes, n_moved, n_validated = (
        sum(time.n_calls for time in loop.get(name, ()))
        for name in ("training_step", "batch_to_device", "validation_step")
    )
    n_batches = n_moved - n_validated
    if not profile.n_passes or not n_passes or n_batches <= 0:
        raise Skip("how often a batch goes through the model was not counted")
    n, per_batch = profile.n_passes, n_passes / n_batches
    if n < 2 or per_batch < n - FEW_BATCHES_PART:
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
            fact("calls of training_step per batch", per_batch, "count", n=n_batches),
        ),
        prescriptions=fix("run the optimizer's closure once per batch", "minutes", "numerics", code=_CODE),
        claims={name: again * phase_s(steady, name) for name in ("forward", "backward", "logging")},
        low_s=again * computed_s,
        basis=f"{duration(computed_s)} timed; {percent(again)} of it, and as much of the time to log, is saved",
    )
