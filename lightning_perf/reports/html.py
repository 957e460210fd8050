"""The diagnosis as one HTML file to be mailed: opens from disk, asks nothing of any network, runs only its own script.

Verdict, findings and tables are plain HTML and need no script; figures are drawn over them by plotly's own file, taken
from the installed wheel. Foreign text is shortened, stripped of control characters and escaped.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.resources
import json
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from lightning_perf.records import Finding, Session, StageTimes, Trial

from . import (
    figures,
    host_rows,
    loader_rows,
    memory_rows,
    model_rows,
    rank_rows,
    summary,
    trace_console,
    trial_rows,
    wording,
)
from .page_items import Code, Diagnosis, Facts, Figure, Folded, Heading, Item, Part, Statements, Table

MAX_ROWS = 200
"""Of a table; a report that is mailed is read, not searched."""

MAX_FIGURES_BYTES = 800_000
"""Of all figures together: with plotly's 4.8 MB the file stays below 6 MB, which mail servers let through. Beyond it
the largest are left out, and it is said which."""

MAX_WINDOWS = 12
"""Profiler windows told in full, the last ones."""

_STATIC = importlib.resources.files(__package__) / "static"


def to_page(session: Session) -> str:
    """Return the whole diagnosis as one self-contained HTML page.

    Args:
        session: The session.
    """
    with warnings.catch_warnings():  # importing plotly adds filters, which the training's process must not keep
        return _page(session)


def _page(session: Session) -> str:
    drawn, left_out = _drawn(session)
    parts = [part for part in _parts(session, drawn, left_out) if part.items]
    scripts = [_plotly(), _static("report.js")] if drawn else []
    themes = {"light": figures.template("light"), "dark": figures.template("dark")}
    page: str = _template().render(
        title=f"PerfDoctor: {summary.verdict_text(session)}",
        verdict=summary.verdict_text(session),
        severity=_severity(session),
        facts=summary.run_facts(session),
        parts=parts,
        scripts=scripts,
        policy=_policy(scripts),
        css=_static("report.css"),
        data=_script_data({"figures": drawn, "themes": themes}),
    )
    return page


def _drawn(session: Session) -> tuple[dict[str, Any], dict[str, str]]:
    """The figures as JSON, by name, and why others are not there."""
    found: dict[str, Any] = {}
    absent: dict[str, str] = {}
    for name, (_, draw) in figures.FIGURES.items():
        figure = draw(session)
        if figure is None:
            absent[name] = figures.why_absent(name, session)
        else:
            document = figures.figure_json(figure)
            document["layout"].pop("template", None)  # the page has both themes once
            found[name] = document
    sizes = {name: len(_script_data(document)) for name, document in found.items()}
    while sum(sizes.values()) > MAX_FIGURES_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        absent[largest] = f"its {wording.size(sizes.pop(largest))} would make this file too large to be mailed"
        del found[largest]
    return found, absent


def _parts(session: Session, drawn: dict[str, Any], left_out: dict[str, str]) -> Iterator[Part]:
    word = summary.step_word(session)

    def show(*names: str) -> list[Item]:
        return [Figure(name, figures.FIGURES[name].title) for name in names if name in drawn]

    if session.steady is not None:
        items = [*show("breakdown"), *_stage(session.steady, word), *show("timeline", "epochs", "startup")]
        yield Part("time", summary.steady_title(session, session.steady), items)
    else:
        yield Part("time", "Up to the first step", show("startup"))
    found = summary.ordered_findings(session)
    yield Part("findings", "Findings", [*show("findings"), *(_finding(f, i == 0) for i, f in enumerate(found))])
    trials = [item for trial in session.trials for item in _trial(trial)]
    yield Part("trials", "Trials", [*show("trials"), *trials])
    if session.validation is not None:
        yield Part("validation", summary.validation_title(session.validation), _stage(session.validation, "batch"))
    yield Part("ranks", *_ranks(session, show("ranks")))
    yield Part("loader", *_loader(session, show("loader_curve")))
    yield Part("memory", *_memory(session, show))
    is_traced = figures.trace.trace_of(session) is not None
    yield Part("model", *_model(session, show("modules", "roofline", *(() if is_traced else ("operators",)))))
    yield Part("host", "Host code, waits, compiler and loss scaler", list(_host(session)))
    traced = show("trace_steps", "operators", "kernels") if is_traced else []
    yield Part("windows", "Profiler windows", [*traced, *_windows(session)])
    yield Part("about", "About this measurement", list(_about(session, left_out)))


def _stage(stage: StageTimes, word: str) -> list[Item]:
    facts = [*summary.rate_facts(stage, word), *filter(None, [summary.device_fact(stage)])]
    rows = summary.stage_rows(stage)
    if not rows:
        return [Facts(facts)]
    totals = wording.seconds_column([row.total_s for row in rows])
    p50s = wording.seconds_column([row.p50_s for row in rows])
    cells = [
        (row.name, wording.share(row.share, decimals=1), total, p50)
        for row, total, p50 in zip(rows, totals, p50s, strict=True)
    ]
    whole = sum(row.share for row in rows)
    bars = [(sum(row.share for row in rows[:i]) / whole, row.share / whole) for i, row in enumerate(rows)]
    return [Facts(facts), Table(("phase", "share", "total", f"p50 a {word}"), "lrrr", cells, bars)]


def _finding(finding: Finding, is_open: bool) -> Diagnosis:
    remarks = [f"{told} faster"] if (told := wording.gain(finding.gain)) else []
    remarks.append(f"confidence {finding.confidence}")
    if finding.is_preflight:
        remarks.append("from the settings alone: likely, not yet measured")
    evidence = [
        (wording.line(fact.metric, 120), wording.evidence_value(fact), wording.evidence_basis(fact))
        for fact in finding.evidence
    ]
    fixes = [
        (f"{wording.line(p.summary, 300)} ({p.effort}, {p.safety})", p.treatment, wording.block(p.code))
        for p in finding.prescriptions
    ]
    return Diagnosis(
        code=wording.line(finding.code, 16),
        title=summary.finding_title(finding),
        severity=finding.severity,
        remarks=", ".join(remarks),
        summary=wording.line(finding.summary, 600),
        evidence=Table(("evidence", "measured", "basis"), "lrl", evidence) if evidence else None,
        fixes=[(text, wording.line(treatment, 60), lines) for text, treatment, lines in fixes],
        gain=summary.gain_text(finding),
        is_open=is_open,
    )


def _trial(trial: Trial) -> Iterator[Item]:
    yield Heading(trial_rows.trial_title(trial))
    yield Facts([trial_rows.headline(trial)])
    yield Facts(trial_rows.trial_facts(trial))
    ladder, alone = trial_rows.ladder_rows(trial), trial_rows.alone_rows(trial)
    for name, rows in (("rung", ladder if len(ladder) > 1 else []), ("alone", alone)):
        if rows:
            yield _without_empty(Table((name, *trial_rows.HEADS[1:]), "lrrrrrll", rows))
    batches = trial_rows.batch_fact(trial)
    if batches:
        yield Facts([batches])
    out = trial_rows.left_out(trial)
    if out:
        yield Table(("left out", "why"), "ll", out)
    for label, _, lines in trial_rows.pasted(trial):
        yield Code(label, lines)


def _without_empty(table: Table) -> Table:
    """The table without the columns that are empty all the way down."""
    kept = [i for i in range(len(table.heads)) if any(row[i] for row in table.rows)]
    rows = [tuple(row[i] for i in kept) for row in table.rows]
    return Table([table.heads[i] for i in kept], "".join(table.alignments[i] for i in kept), rows)


def _ranks(session: Session, shown: list[Item]) -> tuple[str, list[Item]]:
    ranks = session.ranks
    if ranks is None or not rank_rows.is_worth_showing(ranks):
        return "Ranks", []
    heads, *rows = rank_rows.rank_table(ranks)
    items = [*shown, Table(heads, "l" + "r" * (len(heads) - 1), rows)]
    facts = rank_rows.rank_facts(ranks)
    return rank_rows.rank_title(ranks), [*items, Facts(facts)] if facts else items


def _loader(session: Session, shown: list[Item]) -> tuple[str, list[Item]]:
    probe = session.loader_probe
    if probe is None:
        return "Loader", []
    items = list(shown)
    ceilings = loader_rows.ceiling_facts(session)
    if ceilings:
        items.insert(0, Facts(ceilings))
    rows = loader_rows.curve_rows(session)
    if rows:
        cells = [(n, *rest) for n, _, *rest in loader_rows.curve_cells(rows, 1, "")]
        heads = tuple(head for i, head in enumerate(loader_rows.CURVE_HEADS) if i != 1)
        items.append(Table(heads, "rrrl", cells))
    functions = loader_rows.function_rows(probe)
    if functions:
        items.append(Table(("function", "takes"), "lr", functions))
    facts = loader_rows.sample_facts(probe)
    return loader_rows.loader_title(probe), [*items, Facts(facts)] if facts else items


def _memory(session: Session, show: Any) -> tuple[str, list[Item]]:
    breakdown = session.memory.breakdown
    rows = memory_rows.memory_rows(breakdown) if breakdown is not None else []
    items: list[Item] = show("memory_before_oom", "memory_peak")
    if rows:
        cells = [(row.name, wording.size(row.n_bytes), wording.share(row.share, decimals=1), row.note) for row in rows]
        items.append(Table(("component", "bytes", "share", "how known"), "lrrl", cells))
    items += show("memory_modules")
    if breakdown is not None and (modules := memory_rows.module_facts(breakdown)):
        items.append(Facts(modules))
    items += show("memory_phases")
    phases = memory_rows.phase_facts(session)
    if phases:
        items.append(Facts(phases))
    items += show("memory_growth")
    facts = [*memory_rows.growth_facts(session), *filter(None, [memory_rows.headroom_fact(session.memory.headroom)])]
    if facts:
        items.append(Facts(facts))
    return (memory_rows.memory_title(breakdown) if breakdown is not None and rows else "Memory"), items


def _model(session: Session, shown: list[Item]) -> tuple[str, list[Item]]:
    profile = session.model_profile
    if profile is None or profile.forward_flops is None:
        return "Model", shown
    told = (
        model_rows.facts(profile),
        model_rows.utilisation_facts(profile.utilisation),
        model_rows.bound_facts(profile),
    )
    tables = (model_rows.module_table(profile), model_rows.operator_table(profile))
    items = [*(Facts(facts) for facts in told if facts), *shown]
    return model_rows.title(profile), [*items, *(Table(*table) for table in tables if table is not None)]


def _host(session: Session) -> Iterator[Item]:
    calls, watch = session.sync_calls, session.compiler
    if lines := host_rows.line_rows(session):
        yield Heading(host_rows.LINES_TITLE)
        yield Table(host_rows.LINE_HEADS, host_rows.LINE_ALIGNS, lines)
    rows = host_rows.sync_rows(calls) if calls is not None else []
    if calls is not None and rows:
        yield Heading(host_rows.sync_title(calls))
        yield Table(host_rows.SYNC_HEADS, "llrrl", rows)
        note = host_rows.sync_note(calls)
        if note:
            yield Facts([note])
    if watch is not None:
        yield Heading(host_rows.compiler_title(watch))
        facts = host_rows.compiler_facts(watch)
        if facts:
            yield Facts(facts)
        rows = host_rows.compiler_rows(watch)
        if rows:
            yield Table(host_rows.COMPILER_HEADS, "llrl", rows)
    facts = host_rows.host_facts(session)
    if facts:
        yield Facts(facts)


def _windows(session: Session) -> Iterator[Item]:
    earlier = len(session.windows) - MAX_WINDOWS
    if earlier > 0:
        yield Facts([f"{wording.count(earlier, 'earlier window')} left out"])
    for window in session.windows[-MAX_WINDOWS:]:
        title = f"Window at step {window.first_step}: {wording.count(window.n_steps, 'step')}, {window.status}"
        yield Heading(title)
        yield Facts([wording.line(window.reason, 200), f"it cost {wording.seconds(window.cost_s)}"])
        if window.trace is None:
            continue
        for section in trace_console.sections(window.trace):
            if section.heads:
                yield Folded(section.title, Table(section.heads, "l" + "r" * (len(section.heads) - 1), section.rows))
            elif section.title == "Facts":
                yield Statements([wording.line(row[0], 600) for row in section.rows])


def _about(session: Session, left_out: dict[str, str]) -> Iterator[Item]:
    shown = summary.footer_facts(session, show_all=True)
    if shown:
        yield Table(("", ""), "ll", shown)
    if session.outcomes:
        yield Folded("Rules", Table(("rule", "status", "reason"), "lll", summary.outcome_rows(session)))
    if session.missing:
        yield Folded("Not measured", Table(("what", "why"), "ll", summary.missing_rows(session)))
    if left_out:
        rows = [(figures.FIGURES[name].title, wording.line(why, 300)) for name, why in left_out.items()]
        yield Folded("Figures that are not here", Table(("figure", "why"), "ll", rows))


def _severity(session: Session) -> str:
    code = session.verdict.code
    return next((f.severity for f in session.findings if f.code == code), session.verdict.category)


def _policy(scripts: Sequence[str]) -> str:
    """A content security policy that runs the given scripts and nothing else, and loads nothing from anywhere.

    Styles may stand in the document: plotly sets them. They can load nothing either.
    """
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{one}'" for one in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _script_data(document: Any) -> str:
    """JSON that no text in it can end or comment out the script element with."""
    text = json.dumps(document, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@functools.cache
def _plotly() -> str:
    """plotly's script from the installed wheel, as it may stand in a script element."""
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    return _inline(script)


@functools.cache
def _static(name: str) -> str:
    return _inline((_STATIC / name).read_text("utf-8"))


def _inline(text: str) -> str:
    # A parser of HTML reads every line end as \n before the script is hashed, and ends the element at its end tag
    # wherever that stands; in a string of a script the backslash means nothing.
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


@functools.cache
def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals["max_rows"] = MAX_ROWS
    environment.filters["kind"] = lambda item: type(item).__name__.lower()
    return environment.from_string((_STATIC / "report.html").read_text("utf-8"))
