"""Reports for the terminal, to be given to `emit` or `to_text`."""

from collections.abc import Sequence
from pathlib import Path

from lightning_perf.records import (
    SESSION_FILE,
    Breakdown,
    Comparison,
    Finding,
    ModelProfile,
    Session,
    TraceRecord,
    Trial,
)
from lightning_perf.records.remote import AnyPath

from . import wording
from .brief import brief_report
from .brief_epochs import brief_epoch, brief_news, brief_preflight
from .document import Document, Facts, facts, section
from .render.brief import BriefReport
from .render.console import DocumentReport
from .render.terminal import emit, to_text
from .sections.comparison import comparison_document
from .sections.epoch import epoch_document, preflight_document
from .sections.memory import memory_title
from .sections.model import model_document, model_parts, model_title
from .sections.post_mortem import post_mortem_document
from .sections.trace import trace_documents
from .sections.trials import trial_document
from .session_document import session_document

__all__ = [
    "brief_epoch",
    "brief_news",
    "brief_report",
    "comparison_report",
    "emit",
    "epoch_report",
    "model_report",
    "model_summary",
    "post_mortem",
    "preflight_report",
    "run_report",
    "short_path",
    "to_text",
    "trace_report",
    "trial_report",
]


def run_report(session: Session, show_all: bool = False, place: str | None = None) -> DocumentReport:
    """Return the full diagnosis of a run; for the arguments see `session_document`."""
    return DocumentReport(session_document(session, show_all, place))


def epoch_report(session: Session, epoch_index: int, previous: Session | None = None) -> DocumentReport:
    """Return the short diagnosis of an epoch; for the arguments see `epoch_document`."""
    return DocumentReport(epoch_document(session, epoch_index, previous))


def preflight_report(findings: Sequence[Finding], brief_of: Session | None = None) -> DocumentReport | BriefReport:
    """Return what the settings alone make likely; findings must not be empty; brief if a session is given."""
    return DocumentReport(preflight_document(findings)) if brief_of is None else brief_preflight(findings, brief_of)


def trial_report(trial: Trial) -> DocumentReport:
    """Return the ladder of a trial; it ends with what to copy."""
    return DocumentReport(trial_document(trial))


def comparison_report(comparison: Comparison) -> DocumentReport:
    """Return two sessions side by side."""
    return DocumentReport(comparison_document(comparison))


def trace_report(records: Sequence[TraceRecord]) -> DocumentReport:
    """Return what traces say, one after the other."""
    return DocumentReport(*trace_documents(records))


def post_mortem(session: Session) -> DocumentReport:
    """Return what was known when memory ran out; ``session.memory.oom`` must be set."""
    return DocumentReport(post_mortem_document(session))


def model_report(profile: ModelProfile | None, memory: Breakdown | None) -> DocumentReport:
    """Return the compute cost of a model, what its memory holds, or both."""
    return DocumentReport(model_document(profile, memory))


def model_summary(profile: ModelProfile) -> DocumentReport:
    """Return the compute cost of a model without tables."""
    parts = [part for part in model_parts(profile, in_run=False) if isinstance(part, Facts)]
    memory = [] if profile.memory is None else [facts([memory_title(profile.memory)])]
    return DocumentReport(Document(None, (), (section("model", model_title(profile), [*parts, *memory]),)))


def short_path(session: AnyPath) -> str:
    """Return the folder of a session file, relative to the current one if it lies below; the file if it is unusual."""
    place = session.parent if session.name == SESSION_FILE else session
    return wording.short_path(str(place)) if isinstance(place, Path) else str(place)
