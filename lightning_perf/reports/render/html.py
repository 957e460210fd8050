"""Documents as HTML: the report in one file, without network requests, and a fragment for notebooks.

Verdict, tables and findings need no script. Figures of the report are drawn by plotly's script from the
installed wheel. Untrusted text is shortened, stripped of control characters and escaped.
"""

import base64
import functools
import hashlib
import importlib.resources
import json
import warnings
from collections.abc import Sequence
from typing import Any

from lightning_perf.records import Session
from lightning_perf.reports import figures, wording
from lightning_perf.reports.cells import PAGE
from lightning_perf.reports.document import Document, Section, section, table, visible
from lightning_perf.reports.sections.verdict import run_name
from lightning_perf.reports.session_document import session_document

MAX_FIGURES_BYTES = 800_000
"""Size of all figures: with plotly's 4.8 MB the file stays below 6 MB, which mail servers accept. The largest figures
are left out first and listed with the reason."""

_NOTEBOOK_WIDTH = 100

_STATIC = importlib.resources.files(__package__) / "static"


def to_page(session: Session, name: str = "") -> str:
    """Return the whole diagnosis as one self-contained HTML page; see `run_name` for its heading."""
    with warnings.catch_warnings():  # importing plotly adds filters, which the training's process must not keep
        return _page(session, name)


def _page(session: Session, name: str) -> str:
    document = session_document(session, show_all=True)
    drawn, left_out = _drawn(session)
    assert document.verdict is not None
    scripts = [_plotly(), _static("report.js")] if drawn else []
    themes = {"light": figures.template("light"), "dark": figures.template("dark")}
    page: str = _template("report.html").render(
        title=f"PerfDoctor: {document.verdict.text}",
        run=run_name(session, name),
        verdict=document.verdict,
        facts=document.facts,
        shown=[*visible(document, PAGE, drawn), *_absent(left_out)],
        width=PAGE,
        scripts=scripts,
        policy=_policy(scripts),
        css=_static("report.css"),
        data=_script_data({"figures": drawn, "themes": themes}),
    )
    return page


def to_fragment(document: Document) -> str:
    """Return a document for a notebook: in the notebook's own colors, without figures and scripts."""
    shown = list(visible(document, _NOTEBOOK_WIDTH))
    template = _template("notebook.html")
    fragment: str = template.render(document=document, shown=shown, width=_NOTEBOOK_WIDTH, css=_static("notebook.css"))
    return fragment


def _absent(left_out: dict[str, str]) -> list[Section]:
    rows = [(figures.FIGURES[name].title, wording.line(why, 300)) for name, why in left_out.items()]
    return [section("figures", "Figures not shown", [table(("figure", "reason"), rows)])] if rows else []


def _drawn(session: Session) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the figures as JSON, by name, and the reason why others are not shown."""
    found: dict[str, Any] = {}
    absent: dict[str, str] = {}
    for name, each in figures.FIGURES.items():
        if name in figures.SHOWN_AS_TABLES:
            continue
        figure = each.draw(session)
        if figure is None:
            absent[name] = figures.why_absent(name, session)
        else:
            found[name] = figures.figure_json(figure)
            found[name]["layout"].pop("template", None)  # the page has both themes once
    sizes = {name: len(_script_data(each)) for name, each in found.items()}
    while sum(sizes.values()) > MAX_FIGURES_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        absent[largest] = f"its {wording.size(sizes.pop(largest))} would make this file too large to be mailed"
        del found[largest]
    return found, absent


def _policy(scripts: Sequence[str]) -> str:
    """Return a content security policy that runs only the given scripts and loads nothing.

    Inline styles are allowed: plotly sets them. They cannot load anything either.
    """
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{one}'" for one in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _script_data(document: Any) -> str:
    """Return JSON in which no text can end or comment out the script element."""
    text = json.dumps(document, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@functools.cache
def _plotly() -> str:
    """Return plotly's script from the installed wheel, for a script element."""
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    return _inline(script)


@functools.cache
def _static(name: str) -> str:
    return _inline((_STATIC / name).read_text("utf-8"))


def _inline(text: str) -> str:
    # HTML parsers read every line end as \n before they hash the script, and end the element at the first end tag. In a
    # string of a script, the backslash has no effect.
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


@functools.cache
def _template(name: str) -> Any:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda each: (_STATIC / each).read_text("utf-8")),
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    bar = '<span style="width:{:.2f}%"></span>'
    environment.globals["draw_bar"] = lambda length: Markup(bar.format(100 * length))
    environment.filters["evidence"] = lambda part: [(name, value.text, basis) for name, value, basis in part.evidence]
    environment.filters["kind"] = lambda part: type(part).__name__.lower()
    return environment.get_template(name)
