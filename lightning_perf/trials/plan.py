"""Choose the treatments that a trial tries, from a diagnosis or from what the user asks for."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from lightning_perf.errors import ConfigError
from lightning_perf.records import Finding, Gain, Session
from lightning_perf.treatments.specs import TreatmentSpec, check_together, parse, parse_all, with_default
from lightning_perf.trials import fastest_batch
from lightning_perf.trials.rounds import Candidate


class Choice(NamedTuple):
    """Treatments to try.

    Attributes:
        candidates: Best first.
        not_tried: Reasons by treatment.
        on_loop: Candidates that act outside of steps or from the second epoch on, so that whole epochs are measured.
        finds_batch: Whether to search for the fastest batch size: one was asked for or recommended without a value.
    """

    candidates: tuple[Candidate, ...]
    not_tried: dict[str, str]
    on_loop: frozenset[str]
    finds_batch: bool = False


def applicable_specs(text: str) -> tuple[str, ...]:
    """Return treatments to apply to a run, separated by commas, each as ``TreatmentSpec.text``.

    Raises:
        ConfigError: One is unknown, does not accept its value, excludes another, or only measures.
    """
    specs = parse_all(text)
    for spec in specs:
        if spec.treatment.is_measurement:
            raise ConfigError(
                f"{spec.text} only measures and cannot be applied to a run; use lightning-perf trial --try {spec.text}"
            )
    return tuple(spec.text for spec in specs)


def choose(session: Session, tries: Sequence[str], semantics: bool) -> Choice:
    """Choose the treatments to try on a training.

    Args:
        session: Its diagnosis.
        tries: Treatments that the user names; empty for those that the findings recommend.
        semantics: Whether recommended treatments may change the training itself.
    """
    not_tried: dict[str, str] = {}
    chosen: dict[str, tuple[TreatmentSpec, Gain | None]] = {}
    finds_batch = False
    wanted: Iterable[tuple[str, Finding | None]] = [(one, None) for one in tries] if tries else _recommended(session)
    for text, finding in wanted:
        try:
            spec = with_default(parse(text), session) if finding is None else _as_recommended(session, text, finding)
        except ConfigError as error:
            not_tried[text] = str(error)
            continue
        if finding is None:
            same = (one for name, one in _recommended(session) if name == spec.treatment.id)
            finding = next((one for one in same if _as_recommended(session, spec.treatment.id, one) == spec), None)
        reason = None
        if not tries or spec.treatment.is_measurement:  # other treatments that the user names are always measured
            reason = spec.treatment.applies_to(session)
        if reason is None and spec.treatment.safety == "semantics" and not (tries or semantics):
            reason = "it changes the training itself; ask for it with --semantics"
        if reason is not None:
            not_tried[spec.text] = reason
        elif text == fastest_batch.TREATMENT:
            finds_batch = True
        else:
            chosen.setdefault(spec.text, (spec, finding.gain if finding is not None else None))
    specs = [spec for spec, _ in chosen.values()]
    candidates = tuple(
        Candidate(
            treatment=spec.text,
            safety=spec.treatment.safety,
            predicted=gain,
            conflicts=tuple(sorted({*spec.treatment.conflicts, *_clashes(spec, specs, session)})),
            is_measurement=spec.treatment.is_measurement,
        )
        for spec, gain in chosen.values()
    )
    on_loop = frozenset(spec.text for spec in specs if spec.treatment.acts_on == "loop")
    return Choice(candidates, not_tried, on_loop, finds_batch)


def environment_of(treatments: Sequence[str]) -> dict[str, str]:
    """Return the variables that treatments need before the process starts."""
    specs = [with_default(parse(one), None) for one in treatments]
    return {name: value for spec in specs for name, value in spec.treatment.environment(spec.value).items()}


def _recommended(session: Session) -> Iterator[tuple[str, Finding]]:
    """Yield the treatments that findings recommend, by expected gain."""
    by_gain = sorted(session.findings, key=lambda finding: -(finding.gain.high if finding.gain is not None else 0.0))
    for finding in by_gain:
        for prescription in finding.prescriptions:
            if prescription.treatment:
                yield prescription.treatment, finding


def _as_recommended(session: Session, treatment_id: str, finding: Finding) -> TreatmentSpec:
    """Return a treatment with the value of a finding; treatments take it from the session's first that has one."""
    others = [one for one in session.findings if one is not finding]
    return with_default(parse(treatment_id), msgspec.structs.replace(session, findings=(finding, *others)))


def _clashes(spec: TreatmentSpec, specs: Sequence[TreatmentSpec], session: Session) -> Iterator[str]:
    """Yield the ids of treatments that cannot be combined with this one in this training."""
    for other in specs:
        if other.treatment.id != spec.treatment.id:
            try:
                check_together((spec, other), session)
            except ConfigError:
                yield other.treatment.id
