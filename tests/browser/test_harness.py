from __future__ import annotations

from pathlib import Path

import pytest

from browser.conftest import Browser, _is_inside

pytestmark = pytest.mark.browser


def test_browser_shows_a_page_from_disk(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><p id=said>hello</p>")
    browser.open(page)
    assert browser.find("#said").text == "hello"
    assert browser.asked_outside() == []


def test_browser_names_what_a_page_asks_of_others(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><img src='https://example.com/one.png'><p id=said>hello</p>")
    browser.open(page)
    browser.find("#said")
    assert browser.asked_outside() == ["https://example.com/one.png"]
    browser.forget()  # it was asked for on purpose


def test_browser_leaves_out_what_the_policy_of_the_page_keeps_inside(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    policy = "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'\">"
    page.write_text(f"<!doctype html>{policy}<img src='https://example.com/one.png'><p id=said>hello</p>")
    browser.open(page)
    browser.find("#said")
    assert browser.asked_outside() == []


@pytest.mark.parametrize("address", ["https://example.com/", "ws://10.0.0.1/", "http://127.0.0.1.example.com/"])
def test_address_of_another_machine_is_outside(address: str) -> None:
    assert not _is_inside(address)


@pytest.mark.parametrize("address", ["http://127.0.0.1:6006/x", "http://localhost/", "file:///a.html", "blob:null/1"])
def test_address_of_this_machine_is_inside(address: str) -> None:
    assert _is_inside(address)
