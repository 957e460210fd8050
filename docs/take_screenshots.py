"""Take the screenshots of the documentation: the TensorBoard tab and the HTML report, light, dark and narrow.

    python docs/take_screenshots.py                    of a new demo run
    python docs/take_screenshots.py --session FOLDER   of an existing session

Needs chromium, chromedriver and the packages of the dev extra. Writes docs/images/*.png with a palette of 128 colors.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
IMAGES = REPOSITORY / "docs" / "images"
MAX_BYTES = 150_000

VARIANTS = (("", 1280, 960, False), ("-dark", 1280, 960, True), ("-narrow", 480, 960, False))
"""File name suffix, width and height in pixels, and whether the page is dark."""

sys.path.insert(0, str(REPOSITORY / "tests"))


def main() -> int:
    """Take all screenshots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--session", type=Path, help="folder with a perf_session.json (default: run a demo)")
    arguments = parser.parse_args()
    from browser.board import tensorboard
    from browser.conftest import Browser, started_chromium

    with tempfile.TemporaryDirectory(prefix="lightning-perf-screenshots-") as folder:
        logs = Path(folder, "logs")
        if arguments.session is None:
            from lightning_perf.demo import run_demo

            run_demo("slow-transform", logs / "demo")
        else:
            logs.mkdir()
            shutil.copy(arguments.session / "perf_session.json", _made(logs / "demo"))
        with started_chromium(_made(Path(folder, "chromium"))) as driver:
            browser = Browser(driver)
            shoot_report(browser, logs / "demo")
            with tensorboard(logs, Path(folder, "tensorboard.log")) as board:
                shoot_tab(browser, board)
    return 0


def shoot_report(browser: Any, session: Path) -> None:
    """Take screenshots of the HTML report."""
    from lightning_perf.records import load
    from lightning_perf.reports.html import to_page

    page = session / "report.html"
    page.write_text(to_page(load(session), "perf_logs/demo"), encoding="utf-8")
    for end, width, height, is_dark in VARIANTS:
        browser.size(width, height)
        browser.prefer_dark(is_dark)
        browser.open(page)
        browser.wait(lambda driver: driver.execute_script("return document.documentElement.dataset.drawn"))
        _save(browser, f"report{end}")


def shoot_tab(browser: Any, board: Any) -> None:
    """Take screenshots of the tab's overview, in TensorBoard."""
    for end, width, height, is_dark in VARIANTS:
        browser.size(width, height)
        browser.prefer_dark(False)  # TensorBoard has its own setting
        browser.open("about:blank")
        browser.open(f"{board.address}/?darkMode={str(is_dark).lower()}#perfdoctor")
        browser.driver.switch_to.frame(browser.find("iframe"))
        browser.find('main[data-view="overview"][aria-busy="false"]')
        browser.driver.switch_to.default_content()
        _save(browser, f"tab-overview{end}")


def _save(browser: Any, name: str) -> None:
    from PIL import Image

    time.sleep(1.0)  # wait for page transitions
    image = Image.open(io.BytesIO(browser.driver.get_screenshot_as_png())).convert("RGB")
    target = IMAGES / f"{name}.png"
    image.quantize(128, dither=Image.Dither.NONE).save(target, optimize=True)
    print(f"{target.relative_to(REPOSITORY)}: {target.stat().st_size / 1000:.0f} kB")
    if target.stat().st_size > MAX_BYTES:
        raise SystemExit(f"{target} is larger than {MAX_BYTES} bytes")


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    sys.exit(main())
