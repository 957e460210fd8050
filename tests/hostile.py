"""Sessions and traces with random faults, all reports that show them, and what no report may contain."""

from __future__ import annotations

import copy
import functools
import json
import random
import re
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from lightning_perf.records import PHASES, Record, Session, TraceRecord
from lightning_perf.reports import figures
from lightning_perf.reports.console import epoch_document, session_document, to_text
from lightning_perf.reports.render import html
from lightning_perf.reports.render.markdown import render, to_markdown
from lightning_perf.reports.sections.comparison import comparison_document
from lightning_perf.reports.sections.trace import trace_documents
from lightning_perf.rules.engine import diagnose, diagnose_trace
from lightning_perf.stats.comparison import compare_sessions
from lightning_perf.tensorboard_plugin.diff import diff
from lightning_perf.tensorboard_plugin.library import Shown, session_of
from lightning_perf.tensorboard_plugin.views import VIEWS, draw

TAG = "<img src=x onerror=alert(1)>"
EDGES: tuple[Any, ...] = (
    0,
    0,
    -0.0,
    0.0,
    1,
    2,
    0.5,
    1.0,
    1.04,
    5e-324,
    5e-324,
    1e-300,
    1e-9,
    -1e-9,
    1e9,
    2**20,
    2**53,
    2**60,
)
"""Numbers that some field may hold."""
BEYOND: tuple[Any, ...] = (-1, 1.06, 1e15, 1e18, 2**60 + 1, 1e308, -1e308, 2**63, -(2**63), 2**64, 10**30)
NUMBERS = (*EDGES, *EDGES, *BEYOND)
TEXTS = (
    "", "\x1b[31mred\x1b[0m", "\x1b]8;;https://e.example\x07x\x1b]8;;\x07", "\x07\x00\x08", "\x9b31m", "a\rb",
    "a\nb\n\n# c", TAG, f"</script>{TAG}", "[x](javascript:alert(1))", "![x](https://e.example/x.png)", "a | b | c",
    "```\n" + TAG, "`a` *b* _c_ ~~d~~ $e$", "[bold]x[/bold] [/]", "\u202eevil\u2066", "{{ 7 * 7 }}", "%{y}", "PD101",
    "PD1\n01", "x" * 5_000, "é" * 300, "../../etc/passwd", "\ud7ff\ue000", "0", "nan", "forward", "data_wait",
)  # fmt: skip
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": None}, "text", 3, [1, "a", {}])
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_UNSAFE_JSON = re.compile(rf"{_UNSAFE.pattern}|(?<!\\)(?:\\\\)*\\(?:u00[01]|u007f|u202[a-e]|u206[6-9]|b|f|r)")
_CODE_BLOCK = re.compile(r"^(`{3,})[^\n]*\n.*?^\1$", re.MULTILINE | re.DOTALL)
_MARKUP = {
    "markdown": (re.compile(r"<(?!/?(?:details|summary)>)"), re.compile(r"(?<!\\)\]\(|(?<!\\)!\[")),
    "html": (re.compile(re.escape(TAG)), re.compile("<script>alert"), re.compile("javascript:alert\\(1\\)['\"]")),
    "figure": (re.compile(re.escape(TAG)),),
}


# -- documents and their faults ------------------------------------------------------------


def filled(kind: Any, name: str = "") -> Any:
    """Return a document of this type with every field filled; lists and mappings hold two or three items."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Record):
        hints = typing.get_type_hints(kind)
        return {each: filled(hints[each], each) for each in kind.__struct_fields__}
    if origin is typing.Literal:
        return arguments[0]
    if origin is tuple:
        return [filled(arguments[0], name) for _ in range(2)]
    if origin is dict:
        keys = PHASES[:3] if "phase" in name or name == "claims" else ("fp32", "bf16", "a")
        return {key: filled(arguments[1], name) for key in keys}
    if origin in (typing.Union, types.UnionType):
        return filled(next(one for one in arguments if one is not type(None)), name)
    if kind is str:
        return {"code": "PD101", "finding": "PD101", "started_at": "2026-01-01T00:00:00+00:00"}.get(name, f"a {name}")
    if kind is bool:
        return True
    if kind is int:
        return 2**30 if name.endswith("bytes") else 1 if name in ("schema_version", "rank") else 4
    return {float: 0.5, typing.Any: 8}[kind]


def mutate(document: Any, rng: random.Random) -> None:
    """Change one place of the document: most often a number or a text, else a list, an object, a key or a type."""
    place, key = document, None
    while True:
        items = list(place.items() if isinstance(place, dict) else enumerate(place))
        folders = [name for name, value in items if isinstance(value, (dict, list)) and value]
        leaves = [name for name, value in items if isinstance(value, (int, float, str)) and not isinstance(value, bool)]
        if folders and (not leaves or rng.random() < (0.99 if place is document else 0.75)):
            key = rng.choice(folders)
            if rng.random() < 0.06:
                break
            place = place[key]
        elif items:
            key = rng.choice(leaves if leaves and rng.random() < 0.95 else [name for name, _ in items])
            break
        else:
            return
    choice = rng.random()
    if choice < 0.03:
        place[key] = copy.deepcopy(rng.choice((*OTHERS, *NUMBERS, *TEXTS)))
    elif choice < 0.05 and isinstance(place, dict):
        del place[key]
    else:
        place[key] = _changed(place[key], rng)


def _changed(value: Any, rng: random.Random) -> Any:
    choice = rng.random()
    if isinstance(value, bool) or value is None:
        return rng.choice((True, False, None))
    if isinstance(value, int):
        return rng.choice([one for one in NUMBERS if isinstance(one, int)])
    if isinstance(value, float):
        return rng.choice(NUMBERS) if choice < 0.8 else value * rng.choice((-1, 0.0, 1e3, 1e6, 0.999, 1e-6))
    if isinstance(value, str):
        text = rng.choice(TEXTS)
        return text if choice < 0.7 else value + text
    if isinstance(value, list):
        return rng.choice(([], value * 2, value[:1], value[::-1], value[1:], [*value, None], value[:1] * 50))
    if choice < 0.3 or not value:
        return {}
    old = rng.choice(list(value))
    return {rng.choice(TEXTS) if name == old else name: one for name, one in value.items()}


def mutated(documents: Sequence[bytes], rng: random.Random) -> Any:
    """Return one of the documents with one to four changes; half of them have one number changed and nothing else."""
    content = rng.choice(documents)
    document = msgspec.json.decode(content)
    if rng.random() < 0.5 and (numbers := _numbers(content)):
        *folders, last = rng.choice(numbers)
        place = functools.reduce(lambda inner, name: inner[name], folders, document)
        place[last] = _changed(place[last], rng)
        return document
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        mutate(document, rng)
    return document


@functools.lru_cache(maxsize=1_000)
def _numbers(content: bytes) -> list[tuple[str | int, ...]]:
    """Return the paths of the document's numbers, of lists those of the first two items."""
    return list(_paths(msgspec.json.decode(content), ()))


def _paths(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, (dict, list)):
        for name, inner in list(value.items() if isinstance(value, dict) else enumerate(value[:2])):
            yield from _paths(inner, (*path, name))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path


# -- forms -----------------------------------------------------------------------


@pytest.fixture
def plain_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures without plotly's validation, and pages without its script: both take longer than everything else."""
    monkeypatch.setattr("plotly.graph_objects.Figure", PlainFigure)
    monkeypatch.setattr(html, "_plotly", lambda: "")


class PlainFigure:
    """A figure that keeps its data as given."""

    def __init__(self, document: Any) -> None:
        self._document = document

    def to_plotly_json(self) -> Any:
        return self._document


def session_forms(session: Session, base: Session, is_whole: bool) -> Iterator[tuple[str, str]]:
    """Yield the session in every form, with the form's name: diagnosed, drawn, and compared with another.

    Args:
        session: The session.
        base: What it is compared with.
        is_whole: Whether to draw the report of an epoch and the comparison on the console too, which take long.
    """
    answered = diagnose(session)
    failed = [outcome for outcome in answered.outcomes if outcome.status == "failed"]
    assert not failed, failed
    told = msgspec.structs.replace(answered, outcomes=session.outcomes)  # a row for each of our rules takes long
    yield "console", to_text(session_document(told, show_all=True))
    yield "markdown", to_markdown(answered, show_all=True)
    yield "markdown", to_markdown(session, show_all=True, is_folded=True)
    if session.epochs and is_whole:
        yield "console", to_text(epoch_document(session, session.epochs[-1].index))
    yield "html", html.to_page(session)
    shown = Shown("run", session, next((w.trace for w in session.windows if w.trace), None))
    yield "tab", tab_text(shown)
    yield from figure_forms(session)
    if session.run.stage == base.run.stage and session.run.id != base.run.id:
        comparison = compare_sessions([("base", base)], [("new", session)])
        if is_whole:
            yield "console", to_text(comparison_document(comparison))
        yield "markdown", render(comparison_document(comparison), is_folded=True)
        yield "tab", msgspec.json.encode(list(diff(Shown("base", base), shown))).decode()
        msgspec.json.encode(compare_sessions([("new", session)], [("base", base)]))


def tab_text(shown: Shown) -> str:
    """Return all views of the tab as JSON."""
    return msgspec.json.encode([draw(name, shown) for name in VIEWS]).decode()


def figure_forms(session: Session) -> Iterator[tuple[str, str]]:
    """Yield every figure that the session has as JSON."""
    for each in figures.FIGURES.values():
        drawn = each.draw(session, theme="light")
        if drawn is not None:
            yield "figure", json.dumps(figures.figure_json(drawn)["data"], allow_nan=False)


def trace_forms(record: TraceRecord) -> Iterator[tuple[str, str]]:
    """Yield the trace in every form, with the form's name."""
    answered = diagnose_trace(record)
    session = session_of(answered)
    yield "console", to_text(trace_documents([answered, answered]), width=100)
    yield "markdown", render(trace_documents([answered])[0])
    yield "tab", tab_text(Shown("a trace", session, answered, ("a trace",), 0, is_trace_only=True))
    yield from figure_forms(session)


def assert_harmless(form: str, text: str) -> None:
    """No control characters in any form, and no markup but our own where text is read as markup."""
    unsafe = _UNSAFE_JSON if form in ("tab", "figure") else _UNSAFE
    bad = [unsafe, *_MARKUP.get(form, ())]
    told = _CODE_BLOCK.sub("", text) if form == "markdown" else text
    for pattern in bad:
        found = pattern.search(told)
        assert found is None, (form, pattern.pattern, told[max(0, found.start() - 200) : found.end() + 100])


def refusal_of(read: Callable[[], Any], error: type[Exception]) -> str | None:
    """Return the one-line error of the reader; None if it reads the content."""
    try:
        read()
    except error as refusal:
        told = str(refusal)
        assert "\n" not in told, told
        assert not _UNSAFE.search(told), told
        assert len(told) < 1_000, told
        return told
    return None
