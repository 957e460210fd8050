"""Time a fixed piece of Python during training: how fast the machine is now, whatever the training does.

Other programs, and other virtual machines on the same host, slow cores down by far more than the changes between runs
that the history looks for. The piece runs right after a step, when caches hold the step's data, as most Python of a
training does.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from lightning_perf.records import Session
from lightning_perf.stats.next_run import midmean

from .base import Probe, RunContext

EVERY_STEPS = 8
"""Steps between the first measurements. To observe a step at all costs more than the piece takes."""

MAX_TIMES = 128
"""When there are so many, every second one is dropped, and the steps between measurements double."""

MIN_TIMES = 16

_TABLE = {n: str(n) for n in range(2000)}
_KEYS = range(0, len(_TABLE), 37)


class MachineSpeedProbe(Probe):
    """Times the piece after steps that are evenly spaced over the run."""

    name = "machine_speed"
    stages = ("fit",)
    after = ("steps",)

    def __init__(self, run: RunContext) -> None:
        self._loop, self._now_ns = run.loop, run.now_ns
        self._every, self._next_step = EVERY_STEPS, EVERY_STEPS
        self._times_ns: list[int] = []

    @property
    def next_step(self) -> int:
        return self._next_step

    def step_ends(self) -> None:
        n_steps = self._loop.main.n_steps
        if n_steps < self._next_step:  # another probe asked for this step
            return
        begin = self._now_ns()
        _fixed_piece()
        took_ns = self._now_ns() - begin
        self.step_cost_ns += took_ns
        self._times_ns.append(took_ns)
        if len(self._times_ns) == MAX_TIMES:
            self._times_ns = self._times_ns[::2]
            self._every *= 2
        self._next_step = n_steps + self._every

    def part(self, session: Session) -> Mapping[str, Any]:
        steady = session.steady
        if steady is None or len(self._times_ns) < MIN_TIMES:
            return {}
        fixed_s = float(np.exp(midmean(np.log(self._times_ns)))) / 1e9
        return {"steady": msgspec.structs.replace(steady, fixed_python_s=fixed_s)}


def _fixed_piece() -> int:
    """Read a table, which is not in caches, and once more, when it is."""
    length = 0
    for _ in range(2):
        for key in _KEYS:
            length += len(_TABLE[key])
    return length
