"""The site is built strictly, and nothing on it comes from the network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lightning_perf.rules.engine import all_rules
from tests.made_once import made_once

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="the extra docs is not installed")

    def build(folder: Path) -> None:
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
        environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False, env=environment
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return made_once(tmp_path_factory, "site", build)


class Fetched(HTMLParser):
    """Collects what a browser fetches by itself, and the code that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "embed"):
            self.addresses.append(named.get("src") or "")
        if tag == "link" and named.get("rel") in ("stylesheet", "preload", "preconnect", "icon", "prefetch"):
            self.addresses.append(named.get("href") or "")


def test_pages_fetch_nothing_from_the_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(all_rules())
    for page in pages:
        parser = Fetched()
        text = page.read_text(encoding="utf-8")
        parser.feed(text)
        assert not [address for address in parser.addresses if re.match(r"(\w+:)?//", address)], page
        # The theme loads its diagrams from a CDN where it finds this class.
        assert not re.search(r'class="[^"]*\bmermaid\b', text), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"@import|url\(\s*['\"]?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_every_rule_has_its_page_on_the_site(site: Path) -> None:
    index = (site / "rules" / "index.html").read_text(encoding="utf-8")
    for rule in all_rules():
        assert (site / "rules" / f"{rule.code}.html").exists()
        assert f'href="{rule.code}.html"' in index


def test_generated_pages_are_on_the_site(site: Path) -> None:
    for name, text in (("cli", "--format"), ("thresholds", "MIN_STEPS"), ("treatments", "loader-workers")):
        assert text in (site / "reference" / f"{name}.html").read_text(encoding="utf-8")
    assert "schema_version" in (site / "reference" / "session-schema.html").read_text(encoding="utf-8")
    assert '"$defs"' in (site / "reference" / "session-schema.json").read_text(encoding="utf-8")


def test_python_reference_lists_every_argument_of_the_callback(site: Path) -> None:
    page = (site / "reference" / "api.html").read_text(encoding="utf-8")
    for argument in ("schedule", "probe_data", "progress", "apply", "ceilings"):
        assert f"<code>{argument}</code>" in page or f">{argument}<" in page
