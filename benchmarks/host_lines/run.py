"""Measure the error of each way to sample a thread's stack against the true share of planted lines.

    python benchmarks/host_lines/run.py [--seconds 3]              steps of about 2.5 ms
    SCALE=10 python benchmarks/host_lines/run.py [--seconds 3]     steps of about 25 ms

A loop runs seven kinds of work, each in a function of its own and timed around it: torch operators, JSON parsing and
sorting (C calls that hold the GIL), a Python loop, a sleep, and, in turns, short Python loops of about 0.1 ms and short
tensors, whose creation releases the GIL. Each sampler observes the same loop in turn. The script prints the true and
the sampled shares, the largest error, and the slowdown of the loop.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

import torch

from lightning_perf.probes.host_lines.sampler import _sharpen_timers

SCALE = int(os.environ.get("SCALE", "1"))
DOCUMENT = json.dumps([{"name": f"sample {i}", "values": list(range(20))} for i in range(200 * SCALE)])
NUMBERS = [(i * 7919) % 10007 for i in range(8000 * SCALE)]
PERIOD_S = 2e-3
LINES = ("operators", "json", "sorting", "python", "sleep", "short_python", "short_tensor")
Shares = dict[str, float]


def operators(x: torch.Tensor) -> torch.Tensor:
    for _ in range(30 * SCALE):
        x = torch.tanh(x @ x)
    return x


def parsing() -> Any:
    return json.loads(DOCUMENT)


def sorting() -> list[int]:
    return sorted(NUMBERS)


def python() -> int:
    total = 0
    for i in range(8_000 * SCALE):
        total += i & 3
    return total


def sleep() -> None:
    time.sleep(0.3e-3 * SCALE)


def short_python() -> int:
    total = 0
    for i in range(2_000):
        total += i & 3
    return total


def short_tensor() -> torch.Tensor:
    return torch.tensor([1, 2, 3])


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "operators": operators, "json": parsing, "sorting": sorting, "python": python, "sleep": sleep,
    "short_python": short_python, "short_tensor": short_tensor,
}  # fmt: skip
NAMES = {function.__name__: name for name, function in FUNCTIONS.items()}


def loop(seconds: float) -> tuple[Shares, int]:
    """Return the true share of each line, and the number of rounds."""
    x = torch.randn(64, 64)
    spent = dict.fromkeys(LINES, 0)
    rounds, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        rounds += 1
        for name in (*LINES[:5], *SCALE * 10 * LINES[5:]):
            begin = time.perf_counter_ns()
            FUNCTIONS[name](x) if name == "operators" else FUNCTIONS[name]()
            spent[name] += time.perf_counter_ns() - begin
    total = sum(spent.values())
    return {name: ns / total for name, ns in spent.items()}, rounds


def line_of(frame: FrameType | None) -> str:
    while frame is not None:
        name = NAMES.get(frame.f_code.co_name)
        if name is not None and frame.f_code.co_filename == __file__:
            return name
        frame = frame.f_back
    return ""


@contextmanager
def nothing(_: Counter[str]) -> Any:
    yield


def equal(_: Callable[[], float]) -> float:
    return PERIOD_S


def uniform(draw: Callable[[], float]) -> float:
    return PERIOD_S * (0.2 + 1.6 * draw())


def exponential(draw: Callable[[], float]) -> float:
    return -PERIOD_S * math.log(1.0 - draw())


def by_thread(
    switch_s: float | None, pause_of: Callable[[Callable[[], float]], float] = uniform, is_sharp: bool = False
) -> Callable[[Counter[str]], AbstractContextManager[None]]:
    """Return a sampler; ``is_sharp``: its timers have no slack, as those of PerfDoctor."""

    @contextmanager
    def sampling(seen: Counter[str]) -> Any:
        draw = random.Random(1).random
        target_thread, stopping = threading.get_ident(), threading.Event()
        usual_s = sys.getswitchinterval()

        def run() -> None:
            if is_sharp:
                _sharpen_timers()
            while not stopping.is_set():
                pause_s = pause_of(draw)
                begin = time.perf_counter_ns()
                if switch_s is not None:
                    sys.setswitchinterval(switch_s)
                time.sleep(pause_s)
                if switch_s is not None:
                    sys.setswitchinterval(usual_s)
                late_ns = time.perf_counter_ns() - begin - pause_s * 1e9
                seen[line_of(sys._current_frames().get(target_thread))] += int(PERIOD_S * 1e9 + max(0, late_ns))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join()
            sys.setswitchinterval(usual_s)

    return sampling


@contextmanager
def by_profile_function(seen: Counter[str]) -> Any:
    from pyinstrument.low_level.stat_profile import setstatprofile

    last = time.perf_counter_ns()

    def sample(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal last
        now = time.perf_counter_ns()
        seen[line_of(frame)] += now - last
        last = now

    setstatprofile(sample, PERIOD_S)
    try:
        yield
    finally:
        setstatprofile(None)


SAMPLERS: dict[str, Callable[[Counter[str]], AbstractContextManager[None]]] = {
    "none": nothing,
    "thread, equal pauses": by_thread(None, equal),
    "thread": by_thread(None),
    "thread, switch interval 0.1 ms": by_thread(1e-4),
    "the same, exponential pauses": by_thread(1e-4, exponential),
    "the same, timers without slack": by_thread(1e-4, exponential, is_sharp=True),
    "the same at 0.05 ms (PerfDoctor)": by_thread(5e-5, exponential, is_sharp=True),
    "the same at 0.02 ms": by_thread(2e-5, exponential, is_sharp=True),
    "pyinstrument's profile function": by_profile_function,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    loop(0.5)
    rates: dict[str, list[float]] = {name: [] for name in SAMPLERS}
    for repeat in range(arguments.repeats):
        for name, sampler in SAMPLERS.items():
            seen: Counter[str] = Counter()
            with sampler(seen):
                true, rounds = loop(arguments.seconds)
            rates[name].append(rounds / arguments.seconds)
            if name == "none":
                continue
            total = sum(seen[line] for line in LINES) or 1
            sampled = {line: seen[line] / total for line in LINES}
            worst = max(abs(sampled[line] - true[line]) for line in LINES)
            shares = "  ".join(f"{line} {100 * true[line]:.0f}/{100 * sampled[line]:.0f}" for line in LINES)
            print(
                f"{repeat} {name:32s} largest error {100 * worst:4.1f} points   true/sampled in %: {shares}", flush=True
            )
    base = statistics.median(rates["none"])
    for name, each in rates.items():
        print(f"{name:32s} {100 * (base / statistics.median(each) - 1):+.1f} % time per round")


if __name__ == "__main__":
    main()
