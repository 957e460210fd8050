"""Records as plain text, for ``print`` and the interpreter, and as HTML, for notebooks."""

from typing import Any

from rich.console import RenderableType

from lightning_perf.records import Breakdown, Comparison, Finding, ModelProfile, Session, Trial

from .console import brief_report, model_summary
from .console import to_text as rendered
from .document import Document, section
from .render.console import DocumentReport
from .render.html import to_fragment
from .sections.comparison import comparison_document
from .sections.findings import diagnosis
from .sections.model import model_document
from .sections.trials import trial_document
from .session_document import session_document

_WIDTH = 100
_BRIEF_WIDTH = 80


def to_text(record: Any) -> str | None:
    """Return a session (brief), finding, trial, comparison, model profile or memory breakdown as text.

    Returns:
        Lines without colors; None for other records.
    """
    if isinstance(record, Session):
        return report_text(brief_report(record), _BRIEF_WIDTH)
    if isinstance(record, ModelProfile):
        return report_text(model_summary(record))
    document = _document_of(record)
    return None if document is None else report_text(DocumentReport(document))


def to_html(record: Any) -> str | None:
    """Return a session, finding, trial, comparison, model profile or memory breakdown as HTML; None for others."""
    document = _document_of(record)
    return None if document is None else to_fragment(document)


def report_text(report: RenderableType, width: int = _WIDTH) -> str:
    """Return a report as text without the empty lines around it."""
    return rendered(report, width=width).strip("\n")


def _document_of(record: Any) -> Document | None:
    if isinstance(record, Session):
        return session_document(record)
    if isinstance(record, Finding):
        return Document(None, (), (section("finding", "", [diagnosis(record, is_open=True)]),))
    if isinstance(record, Trial):
        return trial_document(record)
    if isinstance(record, Comparison):
        return comparison_document(record)
    if isinstance(record, ModelProfile):
        return model_document(record, record.memory)
    if isinstance(record, Breakdown):
        return model_document(None, record)
    return None
