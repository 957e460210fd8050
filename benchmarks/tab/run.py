"""Measure the cost of the PERFDOCTOR tab: TensorBoard's start-up, and the first view of a session of 10 MB.

    python benchmarks/tab/run.py             print the table
    python benchmarks/tab/run.py --write     and write docs/benchmarks/tab.md

Start-up: TensorBoard is started on the same log directory alternately with and without the tab, timed from the start of
the process to the first response. First view: a session with many profiler windows is written to a file of 10 MB. Each
round starts TensorBoard again and times the list of runs plus the first overview (which loads the whole file), the same
overview again, and the slowest of the other views. If chromium and selenium are installed, the script also times how
long a browser with an empty cache takes from opening the tab to showing the overview and its first figure. Figures are
medians, with the slowest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "benchmarks" / "tab.md"
ROUNDS = 5
SESSION_BYTES = 10_000_000
ALLOWED_START_S, ALLOWED_VIEW_S = 0.3, 1.0
LIMIT_S = 60

SHOW_FIGURE = """
for (const each of document.querySelectorAll('details')) each.open = true
document.querySelector('.plot.waiting')?.scrollIntoView()
"""
"""A figure is drawn once a reader unfolds its section and scrolls to it."""

START = """
import sys
from tensorboard import default
if sys.argv.pop(1) == "without":  # leave out only this plugin; TensorBoard looks for plugins in any case
    every = default._iter_entry_points
    default._iter_entry_points = lambda group: [one for one in every(group) if one.name != "perfdoctor"]
from tensorboard.main import run_main
sys.argv[0] = "tensorboard"
run_main()
"""


class Taken(NamedTuple):
    """Wall time, and CPU time of the server (NaN if not measured), both in seconds."""

    wall_s: float
    cpu_s: float


def large_session():  # type: ignore[no-untyped-def]
    """Return a session of ``SESSION_BYTES``: a real one with many windows of a large model."""
    sys.path.insert(0, str(REPOSITORY / "tests"))
    from reports.sessions import SESSIONS

    from lightning_perf.records import Kernels, KernelTime, OperatorTime, TraceRecord, TraceStep, Window

    operators = tuple(
        OperatorTime(name=f"aten::operator_{i}_of_a_large_model", calls=i, host_total_s=1e-3 * i, host_self_s=5e-4 * i,
                     device_total_s=2e-3 * i, device_self_s=1e-3 * i)
        for i in range(400)
    )  # fmt: skip
    top = tuple(
        KernelTime(name=f"void at::native::kernel_{i}<float, {'x' * 80}>", kind="elementwise", total_s=1e-3 * i, n=i,
                   share=0.01)
        for i in range(200)
    )  # fmt: skip
    step = TraceStep(name="ProfilerStep#1", duration_s=0.1, device_busy_s=0.05, busy_fraction=0.5,
                     categories={"kernel": 0.05, "other": 0.05})  # fmt: skip
    trace = TraceRecord(
        source="w.pt.trace.json.gz", rank=0, world_size=1, device_name="a device", n_events=10**6, n_kernels=10**5,
        steps=(step,) * 8, idle=None, communication=None, copies=None, syncs=None,
        kernels=Kernels(median_s=1e-5, tensor_core_fraction=0.2, top=top), operators=operators,
    )  # fmt: skip
    window = Window(first_step=1, n_steps=8, status="recorded", reason="by schedule", cost_s=1.0, trace=trace)
    session = SESSIONS["twelve_findings"]()
    n = 1
    while True:
        large = msgspec.structs.replace(session, windows=(window,) * n)
        size = len(large.to_json())
        if size >= SESSION_BYTES:
            return large
        n += max(1, round((SESSION_BYTES - size) / (size / n)))


@contextlib.contextmanager
def board(logdir: Path, arm: str) -> Iterator[tuple[str, Taken, psutil.Process]]:
    """Start TensorBoard ``with`` or ``without`` the tab; yield its address, its start-up time and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-c", START, arm, "--logdir", str(logdir), "--host", "127.0.0.1", "--port", str(port)]
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                urllib.request.urlopen(f"{address}/data/environment", timeout=5).read()
                break
            except (urllib.error.URLError, OSError):
                if process.poll() is not None or time.perf_counter() - begin > 120:
                    raise RuntimeError("TensorBoard did not start") from None
                time.sleep(0.005)
        server = psutil.Process(process.pid)
        yield address, Taken(time.perf_counter() - begin, _cpu_s(server)), server
    finally:
        process.terminate()
        process.wait()


def ask(address: str, server: psutil.Process, route: str, **parameters: str) -> tuple[Taken, bytes]:
    """Return the response time and the response."""
    url = f"{address}/data/plugin/perfdoctor/{route}?{urllib.parse.urlencode(parameters)}"
    before, begin = _cpu_s(server), time.perf_counter()
    with urllib.request.urlopen(url, timeout=60) as response:
        content: bytes = response.read()
    return Taken(time.perf_counter() - begin, _cpu_s(server) - before), content


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def starts(logdir: Path) -> dict[str, list[Taken]]:
    taken: dict[str, list[Taken]] = {"with": [], "without": []}
    with board(logdir, "with"), board(logdir, "without"):
        pass  # fill the disk cache
    for i in range(ROUNDS):
        for arm in ("with", "without") if i % 2 else ("without", "with"):
            with board(logdir, arm) as (_, until_ready, _):
                taken[arm].append(until_ready)
    return taken


def views(logdir: Path) -> dict[str, list[Taken]]:
    taken: dict[str, list[Taken]] = {"runs and overview": [], "overview again": [], "slowest other view": []}
    for _ in range(ROUNDS):
        with board(logdir, "with") as (address, _, server):
            runs, answer = ask(address, server, "runs")
            listed = json.loads(answer)
            run = listed["runs"][0]["id"]
            first, answer = ask(address, server, "view", run=run, view="overview")
            assert json.loads(answer)["state"] == "ready"
            taken["runs and overview"].append(Taken(runs.wall_s + first.wall_s, runs.cpu_s + first.cpu_s))
            taken["overview again"].append(ask(address, server, "view", run=run, view="overview")[0])
            others = [name for name, _ in listed["views"] if name != "overview"]
            taken["slowest other view"].append(
                max(ask(address, server, "view", run=run, view=name)[0] for name in others)
            )
    return taken


def in_browser(logdir: Path) -> dict[str, list[Taken]]:
    """Return page load times; empty without a browser."""
    binary = shutil.which("chromium")
    if binary is None or shutil.which("chromedriver") is None:
        return {}
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    taken: dict[str, list[Taken]] = {"page to overview": [], "page to first figure": []}
    for _ in range(ROUNDS):
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            driver.get("about:blank")
            with board(logdir, "with") as (address, _, _):
                begin = time.perf_counter()
                driver.get(f"{address}/data/plugin_entry.html?name=perfdoctor")
                for name, selector in (
                    ("page to overview", "main[data-view=overview]"),
                    ("page to first figure", ".plot svg.main-svg"),
                ):
                    while not driver.find_elements("css selector", selector):
                        if time.perf_counter() - begin > LIMIT_S:
                            raise TimeoutError(f"the page has no {selector} after {LIMIT_S} s")
                        driver.execute_script(SHOW_FIGURE)
                        time.sleep(0.005)
                    taken[name].append(Taken(time.perf_counter() - begin, math.nan))
        finally:
            driver.quit()
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(REPOSITORY)}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lightning-perf-tab-") as folder:
        logdir = Path(folder) / "logs"
        path = large_session().save(logdir / "run")
        size = path.stat().st_size
        started = starts(logdir)
        seen = views(logdir) | in_browser(logdir)
    text = page(started, seen, size)
    print(text)
    if arguments.write:
        PAGE.write_text(text, encoding="utf-8")
    return 0


def page(started: dict[str, list[Taken]], seen: dict[str, list[Taken]], size: int) -> str:
    added = [
        Taken(one.wall_s - other.wall_s, one.cpu_s - other.cpu_s)
        for one, other in zip(started["with"], started["without"], strict=True)
    ]
    start = Taken(*(statistics.median(figures) for figures in zip(*added, strict=True)))
    first = statistics.median(one.wall_s for one in seen["runs and overview"])
    heads = "| | wall | slowest | CPU |\n|:--|--:|--:|--:|\n"
    missing = "" if "page to overview" in seen else "\nNo browser was installed; only the server was timed.\n"
    return f"""# Cost of the PERFDOCTOR tab

Written by `python benchmarks/tab/run.py --write`; do not edit. The method is described at the top of that script.

Machine: {os.cpu_count()} cores, {platform.system()}, load {os.getloadavg()[0]:.1f} at the end of the run. Python
{platform.python_version()}, TensorBoard {version("tensorboard")}. {ROUNDS} rounds.

## TensorBoard's start-up

{heads}{_row("without the tab", started["without"])}
{_row("with the tab", started["with"])}

The tab adds {start.wall_s:+.2f} s of wall time (median of the differences within a round, from
{min(added).wall_s:+.2f} to {max(added).wall_s:+.2f} s) and {start.cpu_s:+.3f} s of CPU time. Limit
{ALLOWED_START_S} s: {"met" if start.wall_s < ALLOWED_START_S else "missed"}.

## First view of a session of {size / 1e6:.1f} MB

{heads}{chr(10).join(_row(name, taken) for name, taken in seen.items())}
{missing}
The server's first view takes {first:.2f} s. Limit {ALLOWED_VIEW_S:.0f} s:
{"met" if first < ALLOWED_VIEW_S else "missed"}.
"""


def _row(name: str, taken: list[Taken]) -> str:
    wall_s, cpu_s = (statistics.median(figures) for figures in zip(*taken, strict=True))
    cpu = "" if math.isnan(cpu_s) else f"{cpu_s:.2f} s"
    return f"| {name} | {wall_s:.2f} s | {max(taken).wall_s:.2f} s | {cpu} |"


if __name__ == "__main__":
    sys.exit(main())
