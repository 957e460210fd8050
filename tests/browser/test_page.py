"""The mailed report in a browser, opened from disk with the network off."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from reports.sessions import hostile, starved
from reports.test_html import everything

from browser.conftest import Browser
from lightning_perf.records import Evidence, Session, load
from lightning_perf.reports import wording
from lightning_perf.reports.render.html import to_page

pytestmark = pytest.mark.browser

NARROW = 390

INK = "return getComputedStyle(document.querySelector('figure[data-figure=epochs] .ytick text')).fill"

# Texts in the cells of a heat map and on bars stand on grounds of their own.
COLORS = """
const found = {};
for (const e of document.querySelectorAll("h1, h2, h3, td, th, p, summary, figcaption, code, li, .plot text")) {
  const isSvg = e.tagName === "text";
  if (isSvg && e.closest(".heatmaplayer, .bartext, .hoverlayer, .point")) continue;
  const style = getComputedStyle(e);
  found[isSvg ? style.fill : style.color] = e.textContent.slice(0, 40);
}
return found;
"""

LINES = """
return [...document.querySelectorAll(arguments[0])].filter((cell) => cell.textContent).map((cell) => {
  const text = document.createRange();
  text.selectNodeContents(cell);
  return text.getClientRects().length;
});
"""


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """The session of a real fit that waits for its data."""
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from torch.utils.data import DataLoader, Dataset

    from lightning_perf import PerfDoctor

    class Slow(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 80

        def __getitem__(self, index: int) -> torch.Tensor:
            time.sleep(0.002)
            return torch.full((8,), float(index))

    class Net(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 4)

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            return self.layer(batch).square().mean()  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-6)

    folder = tmp_path_factory.mktemp("fit")
    Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[PerfDoctor(out_dir=folder, reports=["json"], ceilings=False)],
    ).fit(Net(), DataLoader(Slow(), batch_size=2))  # fmt: skip
    return load(folder)


def show(browser: Browser, session: Session, folder: Path, unfold: bool = True) -> None:
    """Opens the page of the session from disk, with the network off; opens all sections and waits for their figures."""
    page = folder / "report.html"
    page.write_text(to_page(session), encoding="utf-8")
    browser.network(False)
    browser.open(page)
    browser.wait(lambda driver: driver.execute_script("return document.documentElement.dataset.drawn"))
    if unfold:
        browser.driver.execute_script("for (const each of document.querySelectorAll('details')) each.open = true")
        n_figures = len(browser.all("figure[data-figure]"))
        script = "return Number(document.documentElement.dataset.drawn)"
        browser.wait(lambda driver: driver.execute_script(script) == n_figures)


def plotted(browser: Browser, name: str) -> list[dict[str, Any]]:
    """What plotly has drawn for a figure."""
    script = (
        "return document.querySelector(`figure[data-figure='${arguments[0]}'] .plot`)"
        ".data.map(t => ({type: t.type, name: t.name, x: t.x, y: t.y, base: t.base}))"
    )
    found: list[dict[str, Any]] = browser.driver.execute_script(script, name)
    return found


def test_page_shows_the_sessions_figures_when_opened_from_disk(
    browser: Browser, fitted: Session, tmp_path: Path
) -> None:
    show(browser, fitted, tmp_path)
    assert fitted.verdict.text in browser.find("h1").text
    steady = fitted.steady
    assert steady is not None
    largest = max(steady.phases.values(), key=lambda phase: phase.share)
    assert wording.share(largest.share, decimals=1) in browser.find("#time table").text
    bars = browser.all("#time td.bar span")
    assert bars[0].size["width"] == max(bar.size["width"] for bar in bars) > 0
    assert len({bar.location["x"] for bar in bars}) == 1
    epochs = plotted(browser, "epochs")
    heights = [sum(values) for values in zip(*(trace["y"] for trace in epochs), strict=True)]
    scale = 1.0 if max(epoch.wall_s for epoch in fitted.epochs) >= 1 else 1e3
    assert heights == pytest.approx([scale * sum(epoch.phases.values()) for epoch in fitted.epochs], rel=1e-6)
    # What was drawn can be seen: bars with a length, and their labels.
    assert browser.all("figure[data-figure=epochs] .point path")
    assert "data wait" in browser.find("figure[data-figure=epochs] .legend").text
    assert browser.logged() == []
    browser.size(1400, 4000)
    browser.shot("page-fit")


def test_click_on_a_finding_shows_its_evidence(browser: Browser, tmp_path: Path) -> None:
    show(browser, starved(), tmp_path, unfold=False)
    closed = browser.find("#PD502")
    assert "share of logging" not in closed.text
    browser.find("#PD502 summary").click()
    assert "share of logging" in closed.text
    assert "3.4 %" in closed.text
    assert "Trainer(log_every_n_steps=50)" in closed.text


def test_page_logs_no_error_when_every_section_is_clicked(browser: Browser, tmp_path: Path) -> None:
    browser.size(NARROW, 900)
    show(browser, everything(), tmp_path, unfold=False)
    summaries = browser.all("main summary")
    assert len(summaries) > 10
    for summary in summaries:
        is_open = summary.find_element("xpath", "..").get_attribute("open")
        if summary.is_displayed() and not is_open:
            browser.driver.execute_script("arguments[0].scrollIntoView()", summary)
            summary.click()
    assert browser.all("figure[data-figure]")
    browser.wait(lambda _: not browser.all("figure[data-figure] .plot:empty"))
    assert browser.driver.execute_script("return document.documentElement.scrollWidth") <= NARROW
    assert browser.logged() == []


def test_link_opens_the_section_that_it_leads_to(browser: Browser, tmp_path: Path) -> None:
    show(browser, everything(), tmp_path, unfold=False)
    assert not browser.find("#memory table").is_displayed()
    browser.find("nav a[href='#memory']").click()
    browser.wait(lambda _: browser.find("#memory table").is_displayed())
    assert not browser.find("#PD502 table").is_displayed()
    browser.driver.execute_script("location.hash = '#PD502'")
    browser.wait(lambda _: browser.find("#PD502 table").is_displayed())


def test_verdict_time_and_fixes_are_visible_without_a_click_on_the_first_screen(
    browser: Browser, tmp_path: Path
) -> None:
    show(browser, starved(), tmp_path, unfold=False)
    for selector in ("h1", "#time table", "#fixes table"):
        bottom = browser.driver.execute_script(
            "return document.querySelector(arguments[0]).getBoundingClientRect().bottom", selector
        )
        assert bottom < 900, selector


def test_nothing_foreign_runs(browser: Browser, tmp_path: Path) -> None:
    show(browser, hostile(), tmp_path)
    assert "<script>alert(1)</script>" in browser.find("h1").text
    assert browser.driver.execute_script("return document.scripts.length") == 3
    assert browser.logged() == []


def test_policy_stops_scripts_that_are_not_the_pages_own(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(to_page(starved()).replace("</main>", "</main><script>window.ran = 1</script>"), encoding="utf-8")
    browser.open(page)
    browser.wait(lambda driver: driver.execute_script("return document.documentElement.dataset.drawn"))
    assert browser.driver.execute_script("return window.ran") is None
    assert any("Content Security Policy" in message for message in browser.logged())


def test_page_is_readable_without_scripts(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(to_page(starved()), encoding="utf-8")
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.open(page)
        assert "The loader starves the model" in browser.find("h1").text
        assert "54.1 %" in browser.find("#time table").text
        assert not any(figure.is_displayed() for figure in browser.all("figure"))
        bars = [bar.size["width"] for bar in browser.all("#time td.bar span")]
        assert bars[0] > bars[1] > 0
        browser.find("#PD502 summary").click()
        assert "share of logging" in browser.find("#PD502").text
        browser.shot("page-without-scripts")
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.parametrize("width", [1400, NARROW])
def test_every_text_has_enough_contrast_in_both_themes(browser: Browser, tmp_path: Path, width: int) -> None:
    browser.size(width, 900)
    show(browser, everything(), tmp_path)
    wide = browser.driver.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width, "nothing scrolls sideways but the tables that say so"
    for is_dark in (False, True):
        browser.prefer_dark(is_dark)
        browser.wait(lambda driver, dark=is_dark: (_luminance(driver.execute_script(INK)) > 0.5) is dark)
        ground = browser.driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (_luminance(ground) < 0.1) is is_dark
        colors = browser.driver.execute_script(COLORS)
        assert colors
        for color, text in colors.items():
            # 4.5: what WCAG 2.2 asks of text at level AA.
            assert _contrast(color, ground) >= 4.5, (color, ground, text)
        browser.size(width, 4000)
        browser.shot(f"page-{width}-{'dark' if is_dark else 'light'}")


def test_notebook_output_fits_a_narrow_cell(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "cell.html"
    page.write_text(f"<!doctype html><meta charset=utf-8>{starved()._repr_html_()}", encoding="utf-8")
    browser.size(480, 900)
    browser.open(page)
    browser.driver.execute_script("for (const each of document.querySelectorAll('details')) each.open = true")
    assert browser.driver.execute_script("return document.documentElement.scrollWidth") <= 480
    assert set(browser.driver.execute_script(LINES, "td.r")) == {1}, "a number and its unit are on two lines"
    browser.shot("notebook-480")


def test_narrow_page_leaves_out_what_a_fix_does_not_have(browser: Browser, tmp_path: Path) -> None:
    session = starved()
    first, *others = session.findings
    browser.size(NARROW, 900)
    without_speedup = msgspec.structs.replace(first, gain=None)
    show(browser, msgspec.structs.replace(session, findings=(without_speedup, *others)), tmp_path)
    assert "speedup:\n" not in browser.find("#fixes").text
    empty = [cell for cell in browser.all("#fixes td") if not cell.text]
    assert not any(cell.is_displayed() for cell in empty)


def test_long_text_of_evidence_leaves_room_for_its_name(browser: Browser, tmp_path: Path) -> None:
    session = starved()
    evidence = (Evidence(metric="why the speedup was not measured", value="not enough memory for the operator " * 4),)
    findings = (msgspec.structs.replace(session.findings[0], evidence=evidence),)
    browser.size(900, 900)
    show(browser, msgspec.structs.replace(session, findings=findings), tmp_path)
    assert max(browser.driver.execute_script(LINES, ".finding td:first-child")) <= 2


def test_print_shows_all_evidence_on_white(browser: Browser, tmp_path: Path) -> None:
    browser.prefer_dark(True)
    show(browser, starved(), tmp_path, unfold=False)
    browser.driver.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert all(browser.driver.execute_script("return [...document.querySelectorAll('details')].map(d => d.open)"))
    assert _luminance(browser.driver.execute_script(INK)) < 0.1


def _luminance(color: str) -> float:
    """Relative luminance of ``rgb(…)``, WCAG 2.2."""
    channels = [float(part) / 255 for part in color[color.index("(") + 1 : color.index(")")].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)
