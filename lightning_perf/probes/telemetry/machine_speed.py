"""Time a small Python benchmark during training, which shows how fast the machine is now.

Other programs, and other virtual machines on the same host, slow a training down by far more than the changes between
runs that the history looks for. The benchmark runs right after a step, with the step's data in caches, as most Python
of a training does.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from lightning_perf.probes.base import Probe, RunContext
from lightning_perf.records import Session
from lightning_perf.stats.next_run import midmean

EVERY_STEPS = 7
"""Steps between the first measurements. It is prime, so that all accumulated batches are measured equally often. The
first comparison with earlier runs, after 200 steps, then has 28 of them."""

MAX_TIMES = 128
"""At this number of times, every second one is dropped, and the interval n between measurements becomes 2 n + 1."""

MIN_TIMES = 16
"""Fewer are not reported: the middle half of them would be fewer than eight."""

_TABLE = {n: str(n) for n in range(2000)}
_KEYS = range(0, len(_TABLE), 37)  # far apart in memory


class MachineSpeedProbe(Probe):
    """Probe that times the benchmark after steps that are evenly spaced over the run."""

    name = "machine_speed"
    stages = ("fit",)
    after = ("steps",)
    next_step = EVERY_STEPS

    def __init__(self, run: RunContext) -> None:
        self._loop, self._now_ns = run.loop, run.now_ns
        self._every = EVERY_STEPS
        self._times_ns: list[int] = []

    @classmethod
    def open(cls, run: RunContext) -> "MachineSpeedProbe | None":
        return cls(run) if run.has_history else None

    def step_ends(self) -> None:
        begin = self._now_ns()
        _run_benchmark()
        took_ns = self._now_ns() - begin
        self.step_cost_ns += took_ns
        self._times_ns.append(took_ns)
        if len(self._times_ns) == MAX_TIMES:
            self._times_ns = self._times_ns[::2]
            self._every = 2 * self._every + 1
        self.next_step = self._loop.main.n_steps + self._every

    def part(self, session: Session) -> Mapping[str, Any]:
        steady = session.steady
        if steady is None or len(self._times_ns) < MIN_TIMES:
            return {}
        fixed_s = float(np.exp(midmean(np.log(self._times_ns)))) / 1e9
        return {"steady": msgspec.structs.replace(steady, fixed_python_s=fixed_s)}


def _run_benchmark() -> int:
    """Read a table twice, first with cold caches, then with warm ones."""
    length = 0
    for _ in range(2):
        for key in _KEYS:
            length += len(_TABLE[key])
    return length
