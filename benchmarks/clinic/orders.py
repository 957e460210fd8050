"""Which runs a set of cases needs: diagnoses, timed pairs, and timed pairs with the fixes that findings recommend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from case import Case
from runs import Ended, Order
from score import ALARMS

from lightning_perf.errors import ConfigError
from lightning_perf.records import Finding, Session
from lightning_perf.treatments.specs import parse, with_default

OTHER_CURES = (("dataset-cache",),)
"""Treatments that spare the work which the fixes of the cases make faster."""


def diagnoses(cases: Iterable[Case], healthy_rounds: int) -> list[Order]:
    """Return one diagnosed run per case, several for a healthy one; first those on one core, which fit side by side."""
    return [
        Order(case, "run")
        for case in sorted(cases, key=lambda case: case.n_cores)
        for _ in range(healthy_rounds if case.kind == "healthy" else 1)
    ]


def timings(cases: Iterable[Case], rounds: int, diagnosed: Sequence[Ended] = ()) -> list[Order]:
    """Return timed runs of each case with its fault and without it, in turns: A B, then B A, and so on."""
    return [
        Order(case, "trial", is_fixed, treatments=own_treatments(case, diagnosed))
        for case in cases
        for number in range(rounds)
        for is_fixed in ((False, True) if number % 2 == 0 else (True, False))
    ]


def own_treatments(case: Case, diagnosed: Sequence[Ended]) -> tuple[str, ...]:
    """Return the treatments that remove a case's fault, with the values that the expected findings recommend."""
    recommended = {
        text.partition("=")[0]: text
        for end in of_case(case, diagnosed)
        for finding in (end.session.findings if end.session is not None else ())
        if finding.code in case.expect
        for text in fix_of(finding, end.session)
    }
    return tuple(recommended.get(text.partition("=")[0], text) for text in case.treatments)


def fixes(diagnosed: Iterable[Ended], rounds: int) -> list[Order]:
    """Return timed runs, in turns, with the fix of each finding that accuses a training, and without it.

    These are all findings of a healthy training of medium or high severity; of a faulty one those in ``also``, and
    those of the true cause that recommend another cure than the case's own.

    Several runs of a case with the same finding and the same fix are timed once. A finding without a treatment cannot
    be applied: nobody can tell that it is right.
    """
    wanted: dict[tuple[str, str, tuple[str, ...]], Case] = {}
    for end in diagnosed:
        for finding in end.session.findings if end.session is not None else ():
            case = end.order.case
            is_judged = finding.code in case.also or (not case.also and (case.kind == "healthy" or bool(case.needs)))
            is_accused = is_judged and finding.severity in ALARMS and finding.category != "quality"
            treatments = fix_of(finding, end.session)
            if treatments and (is_accused or cures_otherwise(finding, end)):
                wanted.setdefault((end.order.case.name, finding.code, treatments), end.order.case)
    return [
        Order(case, "trial", is_fixed, code, treatments)
        for (_, code, treatments), case in wanted.items()
        for number in range(rounds)
        for is_fixed in ((False, True) if number % 2 == 0 else (True, False))
    ]


def cures_otherwise(finding: Finding, end: Ended) -> bool:
    """Return whether a finding names the true cause of a run, and recommends another cure than the case's own."""
    is_cause = finding.code in end.order.case.expect and finding.severity != "info"
    return is_cause and fix_of(finding, end.session) in OTHER_CURES


def fix_of(finding: Finding, session: Session | None) -> tuple[str, ...]:
    """Return the treatment of a finding's first recommendation, with its value; empty without one.

    The finding promises the speedup of that recommendation, not of its alternatives.
    """
    first = finding.prescriptions[0] if finding.prescriptions else None
    if first is None or not first.treatment:
        return ()
    try:
        return (with_default(parse(first.treatment), session).text,)
    except ConfigError:
        return ()


def of_case(case: Case, ended: Sequence[Ended]) -> list[Ended]:
    """Return the runs of one case."""
    return [end for end in ended if end.order.case.name == case.name]
