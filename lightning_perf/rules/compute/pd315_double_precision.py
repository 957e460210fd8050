"""PD315: parameters in float64."""

from lightning_perf.records import Prescription, Session
from lightning_perf.rules.findings import fact, fix, trainer_fix
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.rule import Skip
from lightning_perf.rules.signals import steady_of
from lightning_perf.rules.thresholds import DOUBLE_MIN_FRACTION
from lightning_perf.rules.trace_reading import computing_share
from lightning_perf.rules.wording import percent


def _from_dtypes(session: Session) -> Diagnosis | None:
    model = session.settings.model
    if model is None or not model.parameters:
        raise Skip("the model's parameters are not known")
    n_double = sum(group.n_elements for group in model.parameters if group.dtype == "float64")
    fraction = n_double / max(1, sum(group.n_elements for group in model.parameters))
    if fraction < DOUBLE_MIN_FRACTION:
        return None
    return Diagnosis(
        f"{percent(fraction)} of the parameters are float64",
        (
            fact("fraction of parameter elements in float64", fraction, "fraction", DOUBLE_MIN_FRACTION),
            fact("precision", session.settings.trainer.precision),
        ),
        _prescription(session),
        "float32 runs their operators",
        replayed_as="float32",
        other_phases=("optimizer", "validation"),
    )


@replay_rule("PD315", "double-precision", preflight=_from_dtypes)
def check(session: Session) -> Diagnosis | None:
    found = _from_dtypes(session)
    if found is None:
        return None
    steady_of(session)
    return found._replace(at_stake=computing_share(session))


def _prescription(session: Session) -> Prescription:
    if str(session.settings.trainer.precision).startswith("64"):
        return trainer_fix('set precision="32-true"', "numerics", precision="32-true")
    return fix("use float32 parameters and inputs", "one line", "numerics", code="model = model.float()")
