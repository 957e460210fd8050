"""PD607: validation builds autograd graphs."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import WHY_NOT_MEASURED, fact, fix, how_to_measure, make_finding, optional_fact
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import phase_s, steady_of
from lightning_perf.rules.thresholds import LOW_SHARE
from lightning_perf.rules.wording import percent

_STAGES = {
    "validate": ("Validation", "validation_step"),
    "test": ("Testing", "test_step"),
    "predict": ("Prediction", "predict_step"),
}


@rule("PD607", "gradients-in-evaluation")
def check(session: Session) -> Finding | None:
    """Report evaluation outputs that have a graph; its cost is not measured."""
    steady = steady_of(session)
    model = session.settings.model
    if model is None or model.eval_outputs_have_graph is None:
        raise Skip("whether validation outputs have a graph is not known")
    if not model.eval_outputs_have_graph:
        return None
    stage, step = _STAGES.get(session.run.stage, _STAGES["validate"])
    if session.run.has_trainer:
        what = f"remove enable_grad from {step}, or decorate it"
        code = f"@torch.inference_mode()\ndef {step}(self, batch, batch_idx):\n    ..."
    else:
        what, code = "validate", "with torch.inference_mode():\n    ...  # validate"
    # Trainer(inference_mode=True) has no effect on validation within fit, which runs under no_grad.
    prescription = fix(f"{what} with torch.inference_mode()", "one line", treatment="inference-mode", code=code)
    share = phase_s(steady, "validation") / steady.span_s if session.run.stage == "fit" else None
    part = f", {percent(share)} of training time," if share is not None else ""
    return make_finding(
        severity="low" if share is None or share >= LOW_SHARE else "info",
        summary=(
            f"{stage}{part} builds autograd graphs, which cost memory and time. "
            f"Unless it computes gradients, nothing uses them. {how_to_measure([prescription])}"
        ),
        evidence=(
            fact(f"{stage.lower()} outputs have a graph", True),
            optional_fact(f"{stage.lower()}, share of the time", share, "fraction", LOW_SHARE),
            fact(WHY_NOT_MEASURED, f"{stage.lower()} was not timed without graphs"),
        ),
        prescriptions=prescription,
        confidence="medium",
    )
