"""Summarize the overhead benchmark: medians of paired differences, as text and as a page of the docs."""

from __future__ import annotations

import math
import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import parts
import simulated

TARGET_OVER_EMPTY_US = 20.0
TARGET_OVER_BARE_US = 40.0
TARGET_OF_TRACEML = 0.25


class Turn(NamedTuple):
    """Mean microseconds per step in a turn: wall time, and CPU time of the process."""

    wall_us: float
    process_us: float


class Median(NamedTuple):
    """A median and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"


class Comparison(NamedTuple):
    """One arm compared with another.

    Attributes:
        wall_us: Added wall time per step.
        process_us: Added CPU time per step.
        ratio: Ratio of wall times, the median over rounds.
    """

    arm: str
    base: str
    wall_us: Median
    process_us: Median
    ratio: float


def median_of(values: Sequence[float]) -> Median:
    """Return the median with a distribution-free 95 % confidence interval.

    The interval is between two order statistics, by the binomial distribution with p = 1/2 (normal approximation). With
    fewer than six values it is the range.
    """
    ordered = sorted(values)
    n = len(ordered)
    reach = 0.98 * math.sqrt(n)  # 1.96 standard deviations of Binomial(n, 1/2)
    low = max(0, math.floor(n / 2 - reach))
    high = min(n - 1, math.ceil(n / 2 + reach) - 1)
    return Median(statistics.median(ordered), ordered[low], ordered[max(high, low)])


def compare(arm: str, base: str, of_arm: Sequence[Turn], of_base: Sequence[Turn]) -> Comparison:
    """Compare two arms, paired by round."""
    pairs = list(zip(of_arm, of_base, strict=True))
    return Comparison(
        arm,
        base,
        median_of([a.wall_us - b.wall_us for a, b in pairs]),
        median_of([a.process_us - b.process_us for a, b in pairs]),
        statistics.median(a.wall_us / b.wall_us for a, b in pairs),
    )


def as_text(
    taken: Mapping[str, Sequence[Turn]], found: Sequence[Comparison], once: Sequence[Comparison], n_warmup_steps: int
) -> str:
    """Return all results as text for a terminal."""
    lines = [f"{'arm':34}{'µs per step':>12}{'CPU':>12}"]
    for arm, turns in taken.items():
        wall, process = (statistics.median(column) for column in zip(*turns, strict=True))
        lines.append(f"{arm:34}{wall:12.1f}{process:12.1f}")
    lines += ["", f"{'arm':34}{'compared with':30}{'wall, µs per step':>26}{'CPU, µs per step':>26}{'ratio':>8}"]
    lines += [f"{c.arm:34}{c.base:30}{c.wall_us!s:>26}{c.process_us!s:>26}{c.ratio:8.3f}" for c in found]
    lines += [
        "",
        *(f"{arm}: {cost} in its first {n_warmup_steps} steps" for arm, cost in _paid_once(once, n_warmup_steps)),
    ]
    return "\n".join([*lines, "", *(f"{claim}: {figure} {verdict}" for claim, figure, verdict in targets(found))])


def targets(found: Sequence[Comparison]) -> list[tuple[str, str, str]]:
    """Return (target, figures, verdict) for each target that was measured."""
    by_names = {(c.arm, c.base): c for c in found}
    rows = []
    for base, most_us in (("empty callback", TARGET_OVER_EMPTY_US), ("bare", TARGET_OVER_BARE_US)):
        comparison = by_names.get(("PerfDoctor()", base))
        if comparison is not None:
            wall_us, process_us = comparison.wall_us.value, comparison.process_us.value
            rows.append(
                (
                    f"at most {most_us:.0f} µs over {base}",
                    f"{wall_us:+.1f} µs wall, {process_us:+.1f} µs CPU",
                    _verdict(max(wall_us, process_us) <= most_us),
                )
            )
    ours = by_names.get(("PerfDoctor()", "bare"))
    theirs = by_names.get(("TraceML launcher", "bare, TraceML's environment"))
    if ours is not None and theirs is not None:
        wall = ours.wall_us.value / theirs.wall_us.value
        process = ours.process_us.value / theirs.process_us.value
        rows.append(
            (
                "at most a quarter of the overhead of TraceML's launcher",
                f"{wall:.2f} wall, {process:.2f} CPU",
                _verdict(max(wall, process) <= TARGET_OF_TRACEML),
            )
        )
    return rows


def _paid_once(once: Sequence[Comparison], n_warmup_steps: int) -> list[tuple[str, str]]:
    """Return (arm, milliseconds that its first steps took beyond those of its base)."""
    return [
        (f"{c.arm} over {c.base}", str(Median(*(us * n_warmup_steps / 1e3 for us in c.wall_us))) + " ms") for c in once
    ]


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


# -- the page ------------------------------------------------------------

_HEAD = """# Overhead per step{title}

Written by `python benchmarks/overhead/run.py {options}--write`; do not edit. The method is described at the top of that
script: {method} figures are medians of the differences within a round, with a 95 % interval.

Machine: {machine}. {versions}.

## Time per step

{arms}

## Added by each arm

{comparisons}

## Targets

{targets}
"""

_ONCE = """
## One-time overhead

Added time of the first {n_warmup_steps} steps, which the figures above leave out: the first profiler window, the first
sampled steps, the first memory readings, and the per-step overhead of these steps.

{once}
"""

_MORE = """
## A million simulated steps

{simulation}

## PerfDoctor's overhead by part

{parts}
"""

_TAIL = """
## How to read this

The model is a single linear layer, so a step is almost entirely Lightning's own loop. The added microseconds matter,
not the ratio, which shrinks as the model grows. Wall times include the effect of other programs on the machine; CPU
times do not. TraceML's aggregator process is not counted. {other}
"""

_ALTERNATING = (
    "all arms run as processes that alternate in turns of 64 steps, {n_rounds} rounds of 2048 steps\n"
    "per arm, restarted {n_starts} times;"
)
_WITHIN = (
    "PerfDoctor, an empty callback and no callback alternate in turns of 67 steps within one\ntraining, {n_rounds} "
    "rounds of 2144 steps each, restarted {n_starts} times; TraceML's arms are separate\nprocesses;"
)
_OF_ALTERNATING = """Neither is the work that its threads do between turns. Each turn starts with
caches filled by fifteen other trainings, which slows down arms with more state the most. [Within one
training](overhead-within.md) measures PerfDoctor's overhead more exactly. Full profilers collect data that PerfDoctor's
steady-state probes do not; they show the overhead of always-on profiling."""
_OF_WITHIN = """The CPU time of
PerfDoctor's background thread is added to its arm. [All arms](overhead.md) compares more tools and shows the one-time
overhead."""


class Page(NamedTuple):
    """A page of the docs.

    Attributes:
        taken: Times per step of each round, by arm.
        found: Comparisons of arms.
        once: Comparisons of their warm-ups.
        n_warmup_steps: Steps per warm-up.
        venv: TraceML's environment.
    """

    taken: Mapping[str, Sequence[Turn]]
    found: Sequence[Comparison]
    once: Sequence[Comparison]
    n_warmup_steps: int
    venv: Path

    def write(self, path: Path, n_starts: int, simulation: simulated.Simulation, costs: Sequence[parts.Part]) -> None:
        """Write the page of arms that alternate as processes."""
        more = _MORE.format(
            simulation=simulated.as_text(simulation),
            parts=_table(("part", "µs per step"), [(part.name, f"{part.step_us:.2f}") for part in costs]),
        )
        method = _ALTERNATING.format(n_rounds=self._n_rounds(), n_starts=n_starts)
        self._put(path, self._head("", "", method) + self._once() + more + _TAIL.format(other=_OF_ALTERNATING))

    def write_within(self, path: Path, n_starts: int) -> None:
        """Write the page of arms that alternate within one training."""
        method = _WITHIN.format(n_rounds=self._n_rounds(), n_starts=n_starts)
        self._put(path, self._head(", within one training", "--within ", method) + _TAIL.format(other=_OF_WITHIN))

    def _n_rounds(self) -> int:
        return len(next(iter(self.taken.values())))

    def _head(self, title: str, options: str, method: str) -> str:
        steps = [
            (arm, *(f"{statistics.median(column):.1f}" for column in zip(*turns, strict=True)))
            for arm, turns in self.taken.items()
        ]
        added = [(c.arm, c.base, str(c.wall_us), str(c.process_us), f"{c.ratio:.3f}") for c in self.found]
        return _HEAD.format(
            title=title,
            options=options,
            method=method,
            machine=_machine(),
            versions=_versions(self.venv),
            arms=_table(("arm", "wall, µs per step", "CPU, µs per step"), steps),
            comparisons=_table(("arm", "compared with", "wall, µs per step", "CPU, µs per step", "wall ratio"), added),
            targets=_table(("target", "measured", ""), targets(self.found)),
        )

    def _once(self) -> str:
        table = _table(("arm", "wall"), _paid_once(self.once, self.n_warmup_steps))
        return _ONCE.format(n_warmup_steps=self.n_warmup_steps, once=table)

    @staticmethod
    def _put(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.name}")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _machine() -> str:
    cpu = platform.processor() or platform.machine()
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    for line in lines:
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    load = os.getloadavg()[0]
    return f"{cpu}, {os.cpu_count()} cores, {platform.system()}, load {load:.1f} at the end of the run"


def _versions(venv: Path) -> str:
    ours = ", ".join(f"{name} {version(name)}" for name in ("torch", "lightning", "lightning-perf"))
    text = f"Python {platform.python_version()}, {ours}"
    python = venv / "bin" / "python"
    if not python.exists():
        return text
    names = ("torch", "lightning", "traceml-ai")
    code = f"from importlib.metadata import version; print(*(n + ' ' + version(n) for n in {names!r}), sep=', ')"
    theirs = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    return f"{text}; TraceML's environment: {theirs}"
