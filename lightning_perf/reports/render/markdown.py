"""Documents as Markdown: for TensorBoard's text tab and for pull requests."""

import html
import re
from collections.abc import Iterator, Sequence

from lightning_perf.records import Session
from lightning_perf.reports import document as doc
from lightning_perf.reports.session_document import session_document

_WIDTH = 79
_BAR_WIDTH = 20
# Special inside a line; and list and heading marks at the start of a line.
_SPECIAL = re.compile(r"[\\`*_\[\]|]|^[-+#]")
_NUMBERED = re.compile(r"^(\d+)([.)])(?=\s|$)")
# Special in some Markdown dialects only; the others would show the backslash.
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "~": "&#126;", "$": "&#36;"})


def to_markdown(session: Session, show_all: bool = False, is_folded: bool = False) -> str:
    """Return the whole diagnosis; the verdict comes first because TensorBoard's card shows about 500 pixels.

    Long sections are folded in ``<details>`` if ``is_folded``, for pull requests; TensorBoard would show the tags.
    """
    return render(session_document(session, show_all), is_folded)


def render(document: doc.Document, is_folded: bool = False) -> str:
    """Return a document as Markdown; for pull requests with long sections folded."""
    parts = [f"## {escape(document.title)}"] if document.title else []
    if document.verdict is not None:
        parts.append(f"**PerfDoctor: {escape(document.verdict.text)}**")
    if document.facts:
        parts.append(escape(" · ".join(document.facts)))
    for section in doc.visible(document, _WIDTH):
        if is_folded and not section.is_short:
            parts.append(_folded(section.title, [text for part in section.parts for text in _part(part)]))
            continue
        parts += [f"### {escape(section.title)}"] if section.title else []
        for part in section.parts:
            if is_folded and isinstance(part, doc.Diagnosis):
                parts.append(_folded(f"{part.severity}: {part.title}", list(_finding(part))))
            else:
                parts += _part(part)
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Return untrusted text such that Markdown and HTML show it unchanged."""
    escaped = _SPECIAL.sub(lambda match: "\\" + match[0], text.translate(_ENTITIES))
    return _NUMBERED.sub(r"\1\\\2", escaped)


def _part(part: doc.AnyPart) -> Iterator[str]:
    if isinstance(part, doc.Heading):
        yield f"#### {escape(part.text)}"
    elif isinstance(part, doc.Note):
        yield f"**{escape(part.text)}**" if part.kind == "strong" else escape(part.text)
    elif isinstance(part, doc.Facts):
        yield escape(" · ".join(part.items))
    elif isinstance(part, doc.Listing):
        yield "\n".join(f"- {escape(item)}" for item in part.items)
    elif isinstance(part, doc.Pairs):
        yield "\n".join(f"- {escape(label)}: {escape(text)}" for label, text in part.rows)
    elif isinstance(part, doc.Code):
        if part.label:
            yield f"{part.label}:"
        yield _fenced(part.lines, part.language)
    elif isinstance(part, doc.Table):
        yield from _table(part)
    elif isinstance(part, doc.Diagnosis):
        yield f"#### {part.severity}: {escape(part.title)}"
        yield from _finding(part)


def _finding(finding: doc.Diagnosis) -> Iterator[str]:
    yield f"*{escape(finding.remarks)}*"
    if finding.summary:
        yield escape(finding.summary)
    if finding.evidence:
        yield "\n".join(
            f"- {escape(name)}: {escape(value.text)}" + (f" ({escape(basis)})" if basis else "")
            for name, value, basis in finding.evidence
        )
    for fix in finding.fixes:
        yield f"**Fix:** {escape(fix.text)} ({fix.kind})"
        if fix.code:
            yield _fenced(fix.code)
    if finding.basis:
        yield f"**Basis of the speedup:** {escape(finding.basis)}"


def _table(one: doc.Table) -> Iterator[str]:
    if one.title:
        yield f"#### {escape(one.title)}"
    if one.about:
        yield escape(one.about)
    shown = one.grid(_WIDTH, lambda length: "▇" * round(_BAR_WIDTH * length), escape)
    rule = ["---:" if is_number else "---" for is_number in shown.numbers]
    yield "\n".join("| " + " | ".join(row) + " |" for row in (shown.heads, rule, *shown.rows))
    if shown.rest:
        yield shown.rest


def _folded(title: str, parts: Sequence[str]) -> str:
    content = "\n\n".join(parts)
    # No link or image, whether Markdown is read here or not.
    shown = html.escape(title).replace("[", "&#91;").replace("]", "&#93;")
    return f"<details><summary>{shown}</summary>\n\n{content}\n\n</details>"


def _fenced(lines: Sequence[str], language: str = "python") -> str:
    # Longer than any fence inside, so that the code cannot close it.
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])
