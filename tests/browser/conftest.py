"""A headless Chromium for tests of pages. A request to another machine fails the test that made it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

ARTIFACTS = Path(os.environ.get("SCREENSHOTS_DIR") or Path(__file__).parents[2] / "build" / "screenshots")
"""Where screenshots are kept; a CI run that sets ``SCREENSHOTS_DIR`` finds them there."""

_CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
# What these name never leaves the browser.
_INNER_SCHEMES = {"file", "data", "blob", "about", "chrome", "chrome-extension", "devtools"}


class Browser:
    """A chromium with what the tests ask of it.

    Attributes:
        driver: selenium's.
    """

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self._asked: list[tuple[str, str]] = []
        self._blocked: set[str] = set()
        self.messages: list[str] = []

    def open(self, address: str | Path) -> None:
        """Opens an address, or a file from disk."""
        self.driver.get(address.resolve().as_uri() if isinstance(address, Path) else address)

    def wait(self, condition: Callable[[Any], Any], seconds: float = 60.0) -> Any:
        """Waits until ``condition(driver)`` is true, and returns what it returned.

        Raises:
            TimeoutException: It never was; the message has the log of the page.
        """
        from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
        from selenium.webdriver.support.wait import WebDriverWait

        waiting = WebDriverWait(self.driver, seconds, 0.1, ignored_exceptions=[StaleElementReferenceException])
        try:
            return waiting.until(condition)
        except TimeoutException as error:
            raise TimeoutException(f"{error.msg}; the page logged {self.logged()}") from None

    def find(self, selector: str) -> Any:
        """The first element of a CSS selector, once it is there."""
        from selenium.webdriver.common.by import By

        return self.wait(lambda driver: next(iter(driver.find_elements(By.CSS_SELECTOR, selector)), None))

    def all(self, selector: str) -> list[Any]:
        """All elements of a CSS selector, at once."""
        from selenium.webdriver.common.by import By

        return list(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def size(self, width: int, height: int) -> None:
        """Makes the page itself, not the window, this large."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer_dark(self, is_dark: bool) -> None:
        """What ``prefers-color-scheme`` answers."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def network(self, is_on: bool) -> None:
        """Cuts the page off from every network, this machine's own included, or joins it again."""
        self.driver.execute_cdp_cmd("Network.enable", {})
        conditions = {"offline": not is_on, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.driver.execute_cdp_cmd("Network.emulateNetworkConditions", conditions)

    def shot(self, name: str) -> Path:
        """Keeps a screenshot of what is on show, as ``name.png``."""
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        target = ARTIFACTS / f"{name}.png"
        self.driver.save_screenshot(str(target))
        return target

    def asked(self) -> list[str]:
        """Every address that was asked for since the test began."""
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            told = message["params"]
            if message["method"] == "Network.requestWillBeSent":
                self._asked.append((told["requestId"], told["request"]["url"]))
            elif message["method"] == "Network.webSocketCreated":
                self._asked.append((told["requestId"], told["url"]))
            elif message["method"] == "Network.loadingFailed" and told.get("blockedReason") == "csp":
                self._blocked.add(told["requestId"])  # by the page's own policy: it never left the browser
        return [address for request, address in self._asked if request not in self._blocked]

    def forget(self) -> None:
        """Forget all requests and log messages so far."""
        self.asked()
        self.logged()
        self._asked.clear()
        self._blocked.clear()
        self.messages.clear()

    def logged(self) -> list[str]:
        """Errors and warnings that pages wrote to the console since the test began."""
        self.messages += [f"{one['level']}: {one['message']}" for one in self.driver.get_log("browser")]
        return self.messages

    def asked_outside(self) -> list[str]:
        """Of these, the addresses that are not of this machine."""
        return [address for address in self.asked() if not _is_inside(address)]


def _is_inside(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme in _INNER_SCHEMES or parts.hostname in _LOOPBACK


@contextlib.contextmanager
def started_chromium(profile: Path) -> Iterator[Any]:
    """Start a headless chromium and yield selenium's driver.

    Args:
        profile: Folder for the browser's own files.

    Raises:
        FileNotFoundError: Chromium or its driver is not installed.
    """
    from selenium import webdriver

    binary = next(filter(None, map(shutil.which, _CHROMIUMS)), None)
    driver_binary = shutil.which("chromedriver")
    if binary is None or driver_binary is None:
        missing = "chromium" if binary is None else "chromedriver"
        raise FileNotFoundError(f"{missing} is not installed: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-default-apps",
        "--no-first-run",
        "--no-proxy-server",
        "--lang=en",
        # Requests for other hosts fail; the log shows that they were made.
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_binary))
    try:
        driver.set_page_load_timeout(60)
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Selenium's driver of one chromium for all tests; skips where chromium or selenium is not installed."""
    pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install -e '.[dev]'")
    with contextlib.ExitStack() as stack:
        try:
            driver = stack.enter_context(started_chromium(tmp_path_factory.mktemp("chromium")))
        except FileNotFoundError as error:
            pytest.skip(str(error))
        yield driver


@pytest.fixture
def browser(chromium: Any) -> Iterator[Browser]:
    """A page of 1400 × 900, light, with an empty history; the test fails where it asked for anything outside."""
    one = Browser(chromium)
    chromium.get("about:blank")
    one.network(True)
    one.size(1400, 900)
    one.prefer_dark(False)
    one.forget()
    yield one
    outside = one.asked_outside()
    chromium.get("about:blank")
    assert not outside, f"the page asked for what is not on this machine: {outside[:5]}"
