"""Reports for the terminal, to be given to `emit` or `to_text`."""

from pathlib import Path

from lightning_perf.records import SESSION_FILE, ModelProfile
from lightning_perf.records.remote import AnyPath

from . import wording
from .brief import brief_report
from .brief_epochs import brief_epoch, brief_news, brief_preflight
from .brief_oom import brief_post_mortem
from .document import Document, Facts, facts, section
from .render.terminal import emit, to_text
from .sections.epoch import epoch_document, preflight_document
from .sections.memory import memory_title
from .sections.model import model_parts, model_title
from .sections.post_mortem import post_mortem_document
from .sections.trials import trial_document
from .session_document import session_document

__all__ = [
    "brief_epoch",
    "brief_news",
    "brief_post_mortem",
    "brief_preflight",
    "brief_report",
    "emit",
    "epoch_document",
    "model_summary",
    "post_mortem_document",
    "preflight_document",
    "session_document",
    "short_path",
    "to_text",
    "trial_document",
]


def model_summary(profile: ModelProfile) -> Document:
    """Return the compute cost of a model without tables."""
    parts = [part for part in model_parts(profile, is_in_run=False) if isinstance(part, Facts)]
    memory = [] if profile.memory is None else [facts([memory_title(profile.memory)])]
    return Document(None, (), (section("model", model_title(profile), [*parts, *memory]),))


def short_path(session: AnyPath) -> str:
    """Return the folder of a session file, relative to the current one if it lies below; the file if it is unusual."""
    place = session.parent if session.name == SESSION_FILE else session
    return wording.short_path(str(place)) if isinstance(place, Path) else str(place)
