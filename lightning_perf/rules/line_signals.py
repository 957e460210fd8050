"""Lines of the user's code as evidence of findings."""

import msgspec

from lightning_perf.records import LINE_METRIC, Evidence, Finding, Session, StageTimes

from .findings import SPREAD, fact
from .loader_signals import costly_line
from .thresholds import LINE_MIN_PART
from .user_lines import LineTime, lines_of, outer_lines_of, whole_lines_of
from .wording import percent, place_of, site_of

_OF_PART_OF_A_PHASE = ("PD502", "PD504", "PD505", "PD506")
"""Findings about part of a phase: they name no line that takes more time than they claim, or runs in another hook."""


def evidence_of(time: LineTime, steady: StageTimes) -> Evidence:
    """Return the share of the time in a line as evidence."""
    return fact(f"{LINE_METRIC}{time.where}{time.doing}", time.seconds / steady.span_s, "fraction", n=time.n)


def with_line(finding: Finding, session: Session, phases: tuple[str, ...] | None) -> Finding:
    """Return the finding with the user's line that takes most of its time; for ``phases`` see ``Rule.line_of``."""
    steady, wanted = session.steady, tuple(finding.claims) if phases == () else phases
    if not wanted or steady is None or finding.severity == "info" or _has_line(finding, session):
        return finding
    is_loading = phases == ("data_wait",)
    claimed_s = sum(finding.claims.values())
    lines = lines_of(session, *wanted)
    if finding.code in _OF_PART_OF_A_PHASE:
        hooks = {evidence.metric.rpartition(".")[2] for evidence in finding.evidence}
        lines = whole_lines_of(session, tuple(finding.claims), lambda line: line.entry in hooks) or lines
        lines = [
            line
            for line in lines
            if line.low_s <= (1 + SPREAD) * claimed_s and (line.line.entry in hooks or not _is_of_a_hook(line))
        ]
    if finding.code == "PD601":  # the operators of validation are what the fix saves
        lines = [_within(session, line) for line in outer_lines_of(session, "validation")[:1]] or lines
    if finding.code == "PD111":
        lines = [line for line in lines if not line.line.entry.startswith(("on_", "validation_step"))]
    line = next((line for line in lines if line.seconds > 0), None)
    if line is None or line.seconds < LINE_MIN_PART * claimed_s:
        return _with_probed_line(finding, session) if is_loading else finding
    if line.where in finding.summary:
        return finding
    sentence = f"{line.subject} spends {percent(line.seconds / steady.span_s)} of the time{line.doing}"
    return _with_sentence(finding, sentence, evidence_of(line, steady), is_loading)


def _within(session: Session, outer: LineTime) -> LineTime:
    """Return the line that takes most of a hook's line, in the function that it calls; the hook's if that is forward.

    The lines of a model's forward pass take time wherever it is called: what matters is where it is called.
    """
    at = site_of(outer.line.file, outer.line.line)
    lines = whole_lines_of(session, (outer.phase,), lambda line: line.called_at == at and line.function != "forward")
    return next((line for line in lines if line.seconds > outer.seconds / 2), outer)


def _is_of_a_hook(time: LineTime) -> bool:
    """Return whether a line runs in a hook and counts as its time; what it logs counts as logging."""
    return time.line.entry.startswith("on_") and time.phase != "logging"


def _has_line(finding: Finding, session: Session) -> bool:
    """Return whether the finding already names the line that the loader probe found in the costliest function."""
    probe = session.loader_probe
    return finding.code == "PD107" and probe is not None and costly_line(probe) is not None


def _with_sentence(finding: Finding, sentence: str, evidence: Evidence, is_loading: bool = True) -> Finding:
    """Return the finding with a sentence about a line, in the headline if that is a data wait without a cause."""
    headline, dot, rest = finding.summary.partition(". ")
    if is_loading and dot and ";" not in headline:
        summary = f"{headline}; {sentence}. {rest}"
    else:
        summary = f"{finding.summary} {sentence}."
    return msgspec.structs.replace(finding, summary=summary, evidence=(*finding.evidence, evidence))


def _with_probed_line(finding: Finding, session: Session) -> Finding:
    """Return the finding with the line that the loader probe found, if the samples of the training show none."""
    probe = session.loader_probe
    if probe is None:
        return finding
    if finding.code == "PD115":
        lines, what = probe.worker_lines, "worker time"
    elif finding.code == "PD108":
        lines, what = probe.collate_lines, "collate time"
    else:
        lines, what = probe.host_lines, "sample time"
    line = next(iter(lines), None)
    if line is None or line.share < LINE_MIN_PART or place_of(line) in finding.summary:
        return finding
    doing = f" in {line.call}" if line.call else ""
    where = place_of(line)
    evidence = fact(f"{what} in {where}{doing}", line.share, "fraction", n=line.n_samples)
    return _with_sentence(finding, f"{where} takes {percent(line.share)} of {what}{doing}", evidence)
