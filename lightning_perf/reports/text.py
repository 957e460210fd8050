"""Records as plain text, for ``print`` and the interpreter, and as HTML, for notebooks."""

from collections.abc import Callable
from typing import Any

from lightning_perf.records import Breakdown, Comparison, Finding, ModelProfile, Session, Trial

from .console import brief_report, model_summary
from .console import to_text as rendered
from .document import Document, section
from .render.html import to_fragment
from .render.terminal import Content
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
    return None if document is None else report_text(document)


def to_html(record: Any) -> str | None:
    """Return a session, finding, trial, comparison, model profile or memory breakdown as HTML; None for others."""
    document = _document_of(record)
    return None if document is None else to_fragment(document)


def report_text(report: Content, width: int = _WIDTH) -> str:
    """Return a report as text without the empty lines around it."""
    return rendered(report, width=width).strip("\n")


def _document_of(record: Any) -> Document | None:
    make = _DOCUMENTS.get(type(record))
    return None if make is None else make(record)


_DOCUMENTS: dict[type, Callable[[Any], Document]] = {
    Session: session_document,
    Finding: lambda one: Document(None, (), (section("finding", "", [diagnosis(one, is_open=True)]),)),
    Trial: trial_document,
    Comparison: comparison_document,
    ModelProfile: lambda profile: model_document(profile, profile.memory),
    Breakdown: lambda memory: model_document(None, memory),
}
