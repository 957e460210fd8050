"""Findings with evidence and recommendations."""

from collections.abc import Iterator

from lightning_perf.records import SEVERITIES, Finding, Session
from lightning_perf.reports.cells import Value
from lightning_perf.reports.document import AnyPart, Diagnosis, Fix
from lightning_perf.reports.wording import block, certainty, evidence_basis, gain, line, quantity
from lightning_perf.rules.wording import is_negligible


def ordered_findings(session: Session) -> list[Finding]:
    """Return the findings by severity, the verdict's own first."""

    def rank(finding: Finding) -> tuple[bool, int]:
        return finding.code != session.verdict.code, SEVERITIES.index(finding.severity)

    return sorted(session.findings, key=rank)


def finding_title(finding: Finding) -> str:
    """Return ``PD101 starved-by-loader``."""
    return f"{line(finding.code, 16)} {line(finding.name, 60)}"


def finding_parts(session: Session) -> Iterator[AnyPart]:
    """Yield all findings; the first one is open."""
    for i, finding in enumerate(ordered_findings(session)):
        yield diagnosis(finding, is_open=i == 0)


def diagnosis(finding: Finding, is_open: bool = False) -> Diagnosis:
    """Return a finding with its evidence, recommendations and expected speedup."""
    speedup = gain(finding.gain)
    remarks = (f"speedup {speedup}" if speedup else "", f"diagnosis {certainty(finding)}",
               "from settings alone, not measured" if finding.is_preflight else "")  # fmt: skip
    return Diagnosis(
        code=line(finding.code, 16),
        title=finding_title(finding),
        severity=finding.severity,
        remarks=", ".join(filter(None, remarks)),
        summary="" if finding.summary == finding.name else line(finding.summary, 600),  # the history keeps names only
        evidence=tuple(
            (line(each.metric, 200), Value(quantity(each.value, each.unit), _number(each.value)), evidence_basis(each))
            for each in finding.evidence
        ),
        fixes=tuple(
            Fix(line(p.summary, 600), f"effort: {p.effort}, {RESULTS[p.safety]}", line(p.treatment, 60),
                tuple(block(p.code)))
            for p in finding.prescriptions
        ),
        basis=line(finding.gain.basis) if finding.gain is not None and not is_negligible(finding.gain) else "",
        is_open=is_open,
    )  # fmt: skip


RESULTS = {"exact": "results unchanged", "numerics": "changes rounding", "semantics": "changes the training"}


def _number(value: float | int | str | bool) -> float | None:
    return None if isinstance(value, str) else float(value) if isinstance(value, bool) else value
