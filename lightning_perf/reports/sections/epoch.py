"""Short documents during a run: before the first step, and at the end of an epoch."""

from collections.abc import Iterator, Sequence

import msgspec

from lightning_perf.records import Finding, Session
from lightning_perf.reports.document import AnyPart, Document, note, section
from lightning_perf.reports.wording import count, number, seconds

from .findings import diagnosis, finding_title, ordered_findings
from .phases import breakdown, phase_rows
from .verdict import verdict_of

EPOCH_FINDINGS = 3
"""Findings that an epoch's report shows; the run's report has them all."""


def epoch_document(session: Session, epoch_index: int, previous: Session | None = None) -> Document:
    """Return the short diagnosis at the end of an epoch; findings of the last report (``previous``) are only named."""
    epoch = next((e for e in session.epochs if e.index == epoch_index), None)
    texts = [f"epoch {epoch_index}"]
    if epoch is not None:
        texts += [count(epoch.n_steps, "step"), seconds(epoch.wall_s)]
        if epoch.step_p50_s is not None:
            texts.append(f"{seconds(epoch.step_p50_s)} per step (p50)")
        for n, unit in ((epoch.samples, "samples/s"), (epoch.tokens, "tokens/s")):
            if n is not None and epoch.wall_s > 0:
                texts.append(f"{number(round(n / epoch.wall_s, 1))} {unit}")
    rows = phase_rows(epoch.phases, epoch.wall_s) if epoch is not None else []
    known = {(f.code, f.severity) for f in previous.findings} if previous is not None else set()
    findings = ordered_findings(session)
    new = [f for f in findings if (f.code, f.severity) not in known]
    as_before = [f for f in findings if (f.code, f.severity) in known]
    return Document(
        verdict_of(session),
        tuple(texts),
        (section("phases", "", [breakdown(rows)]), section("findings", "", _short(new, as_before))),
    )


def preflight_document(findings: Sequence[Finding]) -> Document:
    """Return what the settings alone make likely, before the first step; findings must not be empty."""
    title = f"PerfDoctor: {count(len(findings), 'setting')} to check before the first step"
    return Document(None, (), (section("findings", "", _short(findings)),), title=title)


def _short(findings: Sequence[Finding], as_before: Sequence[Finding] = ()) -> Iterator[AnyPart]:
    for finding in findings[:EPOCH_FINDINGS]:
        whole = diagnosis(finding)
        fixes = tuple(msgspec.structs.replace(fix, code=fix.code[:4]) for fix in whole.fixes[:1])
        yield msgspec.structs.replace(whole, evidence=(), fixes=fixes, basis="")
    for label, named in (("also", findings[EPOCH_FINDINGS:]), ("as before", as_before)):
        text = ", ".join(f"{finding_title(finding)} ({finding.severity})" for finding in named)
        yield note(f"{label}: {text}" if text else "")
