"""PD314: convolutions with a bias that the following batch normalization removes."""

from lightning_perf.records import Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.rule import Skip, required
from lightning_perf.rules.trace_reading import lacks_device_events, reading_of


def _from_layers(session: Session) -> Diagnosis | None:
    reason = "the model's layers are not known, and no profiler window recorded shapes of convolutions"
    names = required(session.settings.model, reason).conv_bias_before_norm
    shown = ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
    symptom = f"{len(names)} convolutions add a bias that the next batch normalization likely removes: {shown}"
    return _diagnosed(len(names), symptom) if names else None


@replay_rule("PD314", "bias-before-batchnorm", preflight=_from_layers)
def check(session: Session) -> Diagnosis | None:
    try:
        trace = reading_of(session).trace
    except Skip:
        return _from_layers(session)
    n = trace.convolutions.bias_before_batch_norm_n if trace.convolutions is not None else None
    if lacks_device_events(trace) or n is None:
        return _from_layers(session)
    return _diagnosed(n, f"{n} convolutions add a bias that the next batch normalization removes") if n else None


def _diagnosed(n: int, symptom: str) -> Diagnosis:
    return Diagnosis(
        symptom,
        (fact("convolutions with a bias before a batch normalization", n, "count"),),
        fix("create these convolutions with bias=False", "minutes", code="nn.Conv2d(..., bias=False)"),
        "without their bias these operators run",
        replayed_as="no-bias",
        unmeasured="info",
    )
