"""PD323: a backward pass computes gradients that no optimizer uses, or that are cleared before it does."""

from lightning_perf.records import Finding, Hypothesis, ModelSettings, OptimizerSettings, Session, StageTimes
from lightning_perf.rules.findings import fact, fix, optional_fact, timed_finding
from lightning_perf.rules.replay_signals import Diagnosis, hypothesis_of, replayed, replayed_finding
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import steady_of
from lightning_perf.rules.thresholds import (
    DROPPED_MIN_CLEARINGS,
    DROPPED_MIN_FRACTION,
    NEARLY_ALL_PART,
    UNUSED_MIN_FRACTION,
)
from lightning_perf.rules.user_lines import computing_s, line_calling
from lightning_perf.rules.wording import place_of

_REPLAYED_AS = "without-dropped"
_FREEZE_OTHERS = (
    "trained = {id(p) for group in optimizer.param_groups for p in group['params']}  # in configure_optimizers\n"
    "for parameter in self.parameters():\n"
    "    parameter.requires_grad_(id(parameter) in trained)"
)


def _hypothesis(session: Session) -> Hypothesis | None:
    """Return the replay without gradients that no optimizer uses; None if there are none."""
    model = session.settings.model
    return None if model is None or not _is_unused(model) else hypothesis_of(session, _unused(session, model))


@rule("PD323", "dropped-gradients", hypothesis=_hypothesis, line_of=("backward",))
def check(session: Session) -> Finding | None:
    """Count gradients without an optimizer, and the clearings of those added since an optimizer's step."""
    steady, model = steady_of(session), session.settings.model
    watched = [one for one in model.optimizers if one.n_clearings >= DROPPED_MIN_CLEARINGS] if model is not None else []
    dropping = [one for one in watched if one.n_clearings_dropping >= DROPPED_MIN_FRACTION * one.n_clearings]
    if not dropping and model is not None and _is_unused(model):
        return _unused_finding(session, steady, model)
    if not watched:
        raise Skip("no clearing of gradients was observed")
    if not dropping:
        return None
    worst = max(dropping, key=lambda one: one.n_elements)
    site = worst.dropping_backward
    fraction = worst.n_clearings_dropping / worst.n_clearings
    backward_s = fraction * computing_s(session, steady, "backward")
    (least_s, most_s), most = _pass_s(session, worst, backward_s), "of this pass"
    if len(dropping) > 1:
        most_s, most = backward_s, "backward passes"
    how, code = "call requires_grad_(False) on other parameters", ""
    if session.run.has_trainer:
        how = "call toggle_optimizer() before the forward pass of each loss"
        code = "self.toggle_optimizer(optimizer)  # and untoggle_optimizer(optimizer) after its step"
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
            fix(f"{how} so that a loss gives gradients to its own parameters only", "minutes", code=code),
            fix(
                "detach() what a loss gets from these layers if nothing else is trained through them",
                "minutes",
                "semantics",
                code="fake_score = self.discriminator(fake.detach())  # in the step of the discriminator",
            ),
        ),
        claims={"backward": most_s},
        low_s=least_s,
        basis=f"at least the operators of this pass that no other parameters need, at most all {most}"
        if least_s
        else "at most all backward passes; the part through these layers was not timed",
        confidence="medium",
    )


def _pass_s(session: Session, optimizer: OptimizerSettings, backward_s: float) -> tuple[float, float]:
    """Return the seconds in backward that are saved at least and at most without the pass whose gradients are dropped.

    At least those in what only this optimizer needs. From 0 to all if that is not known: the line starts several passes
    of the sampled step, of which one may be needed; or it is not known how often its gradients are dropped.
    """
    model, profile, steady = session.settings.model, session.model_profile, steady_of(session)
    passes = profile.backward_passes if profile is not None else ()
    found = next((one for one in passes if one.site == optimizer.dropping_backward and one.n == 1), None)
    index = model.optimizers.index(optimizer) if model is not None else 0
    if found is None or found.total_s <= 0 or index >= len(found.only_s):
        return 0.0, backward_s
    others = [one for one in passes if one is not found and any(one.only_s[index : index + 1])]
    part = found.total_s / sum(one.total_s for one in passes)
    most_s = part * backward_s if others else 0.0
    if optimizer.dropped_per_batch is not None:
        n_passes, each_s = optimizer.dropped_per_batch * steady.n_span_steps, found.total_s
        most_s = max(most_s, min(n_passes * each_s, backward_s))
        fast_s = steady.phases["backward"].p10_s if "backward" in steady.phases else None
        if fast_s is not None and optimizer.dropped_per_batch >= 1.0:  # even fast steps have this pass
            each_s = min(each_s, fast_s)
        least_s = min(n_passes * each_s, part * backward_s)
    else:  # without another pass for this optimizer, the sampled step is unlike other steps
        least_s = most_s
    return found.only_s[index] / found.total_s * least_s, most_s or backward_s


def _unused_fraction(model: ModelSettings) -> float:
    """Return the fraction of the trained parameters' elements whose gradients no optimizer uses; 0 if unknown."""
    return (model.n_unused_elements or 0) / model.n_trainable if model.n_trainable else 0.0


def _is_unused(model: ModelSettings) -> bool:
    return _unused_fraction(model) >= UNUSED_MIN_FRACTION


def _unused(session: Session, model: ModelSettings) -> Diagnosis:
    """Return the diagnosis of gradients whose parameters no optimizer has."""
    where = model.unused_gradients_in
    is_all = (model.n_unused_elements_in or 0) >= NEARLY_ALL_PART * (model.n_unused_elements or 0)
    line = line_calling(session, where)
    module = f'self.get_submodule("{where}")' if any(part.isdigit() for part in where.split(".")) else f"self.{where}"
    return Diagnosis(
        f"Each step computes gradients of {model.n_unused_gradients} parameters that no optimizer has, most of them in "
        f"{where}",
        (
            fact(
                "elements of unused gradients ÷ trainable elements",
                _unused_fraction(model),
                "fraction",
                UNUSED_MIN_FRACTION,
            ),
            optional_fact(f"line that runs {where}", place_of(line) if line is not None else None),
        ),
        fix(
            f"set requires_grad_(False) on {where if is_all else 'the parameters that no optimizer has'}; to train "
            "them instead, add them to an optimizer",
            "one line" if is_all else "minutes",
            code=f"{module}.requires_grad_(False)  # in __init__" if is_all else _FREEZE_OTHERS,
        ),
        "without them, these operators run",
        replayed_as=_REPLAYED_AS,
        other_phases=(),
    )


def _unused_finding(session: Session, steady: StageTimes, model: ModelSettings) -> Finding | None:
    diagnosis, result = _unused(session, model), replayed(session, _REPLAYED_AS)
    if result is not None and (result.is_negligible or result.speedup is not None):
        return replayed_finding(session, diagnosis)
    return timed_finding(
        steady,
        summary=f"{diagnosis.symptom}.",
        evidence=diagnosis.evidence,
        prescriptions=diagnosis.prescription,
        claims={"backward": computing_s(session, steady, "backward")},
        basis="at most the backward pass; the part through these layers was not timed",
        confidence="medium",
    )
