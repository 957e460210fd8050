"""Brief reports during a run: 1 to 3 lines at the end of an epoch, and what settings alone make likely."""

from collections.abc import Sequence

from rich.cells import cell_len

from lightning_perf.records import Finding, Session

from . import wording
from .brief_lines import TITLE, BriefReport, Line, right_aligned, text_width, titled
from .fixes import clause, fix_text, instruction
from .render.console import QUIET, SEVERITY_STYLES
from .sections.verdict import verdict_finding
from .sites import with_site

_MAX_PREFLIGHT = 3
_MIN_WAIT_SHARE = 0.05
_MIN_EPOCH_S = 30.0
_SAME_STEP = 0.10
"""A step time that changed by less is not reported at the end of an epoch."""


def brief_epoch(
    session: Session, epoch_index: int, previous: Session | None = None, is_within: bool = False
) -> BriefReport | None:
    """Return the report of an epoch, or None if there is nothing new since ``previous``, the session last shown.

    If the epoch has not ended (``is_within``), only other findings count as new, not step times.
    """
    epoch = next((each for each in session.epochs if each.index == epoch_index), None)
    if epoch is None or epoch.wall_s < _MIN_EPOCH_S:
        return None
    before = next((e for e in reversed(previous.epochs) if e.step_p50_s), None) if previous is not None else None
    change = None
    if before is not None and before.step_p50_s and epoch.step_p50_s:
        change = epoch.step_p50_s / before.step_p50_s - 1
    known = _advice_of(previous) if previous is not None else (None, "") if is_within else None
    is_same = known == _advice_of(session)
    if is_same and (is_within or change is None or abs(change) <= _SAME_STEP):
        return None
    texts = [f"epoch {epoch_index}", *([f"step {session.run.n_steps:,}"] if is_within else [])]
    if epoch.step_p50_s is not None:
        signed = "" if change is None else f" ({'+' if change >= 0 else '−'}{wording.share(abs(change))})"
        texts.append(f"{wording.seconds(epoch.step_p50_s)}/step{signed}")
    finding = verdict_finding(session)
    wait = epoch.phases.get("data_wait", 0.0) / epoch.wall_s
    is_in_summary = finding is not None and not is_same and "data_wait" in finding.claims  # which covers the whole run
    if wait >= _MIN_WAIT_SHARE and not is_in_summary:
        texts.append(f"data wait {wording.share(wait)}")
    old = previous.verdict.code if previous is not None else None
    if old is not None and not any(each.code == old and each.severity != "info" for each in session.findings):
        texts.append(f"{wording.line(old, 16)} resolved")
    if finding is None:
        texts.append(wording.line(session.verdict.text, 60).partition(":")[0])
    elif is_same:
        texts.append(f"{finding.code} as before")
    lines = [Line(((TITLE, "bold"), (" · ".join(texts), "")))]
    if finding is not None and not is_same:
        style = SEVERITY_STYLES[finding.severity]
        text = with_site(clause(finding.summary, 72), finding, 72)
        lines.append(Line(((f"  {wording.line(finding.code, 16)} ", style), (text, ""))))
        fixes = (fix_text(each, session, 72) for each in finding.prescriptions[:1])
        lines += [Line((("  fix   ", QUIET), (text, ""))) for text in fixes]
    return BriefReport(lines)


def _advice_of(session: Session) -> tuple[str | None, str]:
    """Return the code of the verdict and its first fix."""
    finding = verdict_finding(session)
    fixes = finding.prescriptions[:1] if finding is not None else ()
    return session.verdict.code, "".join(fix_text(each, session) for each in fixes)


def brief_news(text: str) -> BriefReport:
    """Return what became slower since earlier runs; what may explain it comes last, so it is not cut as others are."""
    return BriefReport(titled([text], "", "bold yellow", max_lines=4))


def brief_preflight(findings: Sequence[Finding], session: Session) -> BriefReport:
    """Return what the settings alone make likely, one line per finding; findings must not be empty."""
    lines = []
    for finding in findings[:_MAX_PREFLIGHT]:
        fix = f": {instruction(finding.prescriptions[0], session)}" if finding.prescriptions else ""
        text = f"likely {wording.line(finding.name, 60)}"
        code = wording.line(finding.code, 16)
        shown = text + fix if cell_len(text + fix) <= text_width(code) else text
        lines.append(right_aligned(TITLE, shown, code))
    more = len(findings) - _MAX_PREFLIGHT
    return BriefReport([*lines, Line(((f"+{more} more", QUIET),))] if more > 0 else lines)
