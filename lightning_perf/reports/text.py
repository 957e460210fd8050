"""Records as plain text, for ``print`` and the interpreter."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType

from lightning_perf.records import Breakdown, Comparison, Finding, ModelProfile, Session, Trial

from . import document as doc
from .console import brief_report, comparison_report, model_report, model_summary, trial_report
from .console import to_text as rendered
from .render.console import DocumentReport
from .sections.findings import diagnosis

_WIDTH = 100
_BRIEF_WIDTH = 80


def to_text(record: Any) -> str | None:
    """Return a session (brief), finding, trial, comparison, model profile or memory breakdown as text.

    Returns:
        Lines without colors; None for other records.
    """
    if isinstance(record, Session):
        return report_text(brief_report(record), _BRIEF_WIDTH)
    if isinstance(record, Finding):
        section = doc.Section("", "", (diagnosis(record, is_open=True),))
        return report_text(DocumentReport(doc.Document(None, (), (section,))))
    if isinstance(record, Trial):
        return report_text(trial_report(record))
    if isinstance(record, Comparison):
        return report_text(comparison_report(record))
    if isinstance(record, ModelProfile):
        return report_text(model_summary(record))
    if isinstance(record, Breakdown):
        return report_text(model_report(None, record))
    return None


def report_text(report: RenderableType, width: int = _WIDTH) -> str:
    """Return a report as text without the empty lines around it."""
    return rendered(report, width=width).strip("\n")
