"""PD323: a backward pass computes gradients that are cleared before an optimizer uses them."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import steady_of
from lightning_perf.rules.thresholds import DROPPED_MIN_CLEARINGS, DROPPED_MIN_FRACTION
from lightning_perf.rules.user_lines import computing_s


@rule("PD323", "dropped-gradients")
def check(session: Session) -> Finding | None:
    """Count the observed clearings of gradients that a backward pass had added since the optimizer's step."""
    steady, model = steady_of(session), session.settings.model
    watched = [one for one in model.optimizers if one.n_clearings >= DROPPED_MIN_CLEARINGS] if model is not None else []
    if not watched:
        raise Skip("no clearing of gradients was observed")
    dropping = [one for one in watched if one.n_clearings_dropping >= DROPPED_MIN_FRACTION * one.n_clearings]
    if not dropping:
        return None
    worst = max(dropping, key=lambda one: one.n_elements)
    site = worst.dropping_backward
    fraction = worst.n_clearings_dropping / worst.n_clearings
    return timed_finding(
        steady,
        summary=(
            f"Gradients of {worst.n_tensors} parameters are computed and cleared before their optimizer "
            f"({worst.class_name}) steps: another loss's backward pass{f' ({site})' if site else ''} goes through them."
        ),
        evidence=(
            fact(
                "clearings that dropped gradients",
                fraction,
                "fraction",
                DROPPED_MIN_FRACTION,
                worst.n_clearings,
            ),
            fact("elements of these gradients", worst.n_elements, "count"),
        ),
        prescriptions=(
            fix(
                f"{_limited(session)} so that a loss gives gradients to its own parameters only",
                "minutes",
                code="self.toggle_optimizer(optimizer)  # and untoggle_optimizer(optimizer) after its step"
                if session.run.has_trainer
                else "",
            ),
            fix(
                "detach() what a loss gets from these layers if nothing else is trained through them",
                "minutes",
                "semantics",
                code="fake_score = self.discriminator(fake.detach())  # in the step of the discriminator",
            ),
        ),
        claims={"backward": fraction * computing_s(session, steady, "backward")},
        basis="at most all backward passes; the part through these layers was not timed",
        confidence="medium",
    )


def _limited(session: Session) -> str:
    """Return how parameters are kept from getting gradients."""
    if session.run.has_trainer:
        return "call toggle_optimizer() before the forward pass of each loss"
    return "call requires_grad_(False) on other parameters"
