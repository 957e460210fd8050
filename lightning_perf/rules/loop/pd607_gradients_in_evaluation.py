"""PD607: validation builds autograd graphs."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import WHY_NOT_MEASURED, fact, fix, how_to_measure, make_finding
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import phase_s, steady_of
from lightning_perf.rules.thresholds import LOW_SHARE
from lightning_perf.rules.wording import percent


@rule("PD607", "gradients-in-evaluation")
def check(session: Session) -> Finding | None:
    """Report validation outputs that have a graph; its cost is not measured."""
    steady = steady_of(session)
    model = session.settings.model
    if model is None or model.eval_outputs_have_graph is None:
        raise Skip("whether validation outputs have a graph is not known")
    if not model.eval_outputs_have_graph:
        return None
    if session.run.has_trainer:
        what = "remove enable_grad from validation_step, or decorate it"
        code = "@torch.inference_mode()\ndef validation_step(self, batch, batch_idx):\n    ..."
    else:
        what, code = "validate", "with torch.inference_mode():\n    ...  # validate"
    # Trainer(inference_mode=True) has no effect on validation within fit, which runs under no_grad.
    prescription = fix(f"{what} with torch.inference_mode()", "one line", treatment="inference-mode", code=code)
    share = phase_s(steady, "validation") / steady.span_s
    return make_finding(
        severity="low" if share >= LOW_SHARE else "info",
        summary=(
            f"Validation, {percent(share)} of training time, builds autograd graphs, which cost memory and time. "
            f"Unless it computes gradients, nothing uses them. {how_to_measure([prescription])}"
        ),
        evidence=(
            fact("validation outputs have a graph", True),
            fact("validation, share of the time", share, "fraction", LOW_SHARE),
            fact(WHY_NOT_MEASURED, "validation was not timed without graphs"),
        ),
        prescriptions=prescription,
        confidence="medium",
    )
