"""The lines of code that a finding names, as brief reports show them."""

import re

from lightning_perf.records import Finding

from . import wording

_SITE = re.compile(r"[^\s():]*(?:\.\w*[^\W\d]|>):\d+\b")
"""A file and a line as the rules write them: ``train.py:31``, not a device such as ``cuda:0``."""
_CLAUSE = re.compile(r"(?<!\be\.g)\. |[;:] ")
_SAME_START = 20
"""A part of a summary that begins with as many characters of the headline repeats it."""


def sites(text: str) -> list[str]:
    """Return the lines of code that a text names, each once: ``["train.py:31"]``."""
    return list(dict.fromkeys(_SITE.findall(text)))


def where(finding: Finding, shown: str) -> tuple[str, ...]:
    """Return where the time of a finding goes, longer texts first; nothing if ``shown`` names one of its lines.

    Returns:
        The first part of its summary that names a line, unless ``shown`` begins as it does, and lines alone:
        ``at train.py:31``.
    """
    summary = wording.line(finding.summary, 1_000)
    named = sites(summary)
    if not named or any(site in shown for site in named):
        return ()
    part = next(each for each in _CLAUSE.split(summary) if named[0] in each).rstrip(".")
    is_new = part[:_SAME_START] not in shown
    return (*([part] if is_new else []), f"at {', '.join(named[:2])}", f"at {named[0]}")


def with_site(text: str, finding: Finding, limit: int) -> str:
    """Return a text about a finding with the first line that it names, if it has none yet and both fit ``limit``."""
    named = sites(wording.line(finding.summary, 1_000))
    longer = f"{text} ({named[0]})" if named and not any(site in text for site in named) else text
    return longer if len(longer) <= limit else text
