"""Time the lines of one function with a trace function, in the probe's child."""

import functools
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from types import FrameType
from typing import Any

from lightning_perf.probes.host_lines.profile import COMPREHENSIONS, Line, UserLine
from lightning_perf.probes.sampled_steps.code_lines import USER, owner_of
from lightning_perf.records.loader_probe import HotFunction

_MAX_TRACED_EVENTS = 200_000
_TIMED_S = 0.05


class LineTimer:
    """Timer of the lines of one function, without the user's functions that they call.

    Attributes:
        n_lines: Lines run, with those of comprehensions.
        n_calls: Calls of the work in which they were run.
        function: Its file and first line.
    """

    def __init__(self, function: HotFunction) -> None:
        self.n_lines = self.n_calls = 0
        self.function = function.file, function.line
        self._line = 0  # 0 outside of the function
        self._since_s = 0.0
        self._n_events = 0
        self._seconds: defaultdict[int, float] = defaultdict(float)
        self._whole: dict[int, float] = {}  # of the calls that were traced to their end

    def run(self, work: Callable[[], Any]) -> None:
        """Call ``work`` once, and again for ``_TIMED_S`` seconds; trace a limited number of lines and calls."""
        until_s = time.perf_counter() + _TIMED_S
        sys.settrace(self._at_call)
        try:
            while not self.n_calls or (sys.gettrace() is not None and time.perf_counter() < until_s):
                work()
                self.n_calls += 1
                if sys.gettrace() is not None:
                    self._whole = dict(self._seconds)
        finally:
            sys.settrace(None)

    def redistribute(self, sampled: dict[UserLine, Line]) -> None:
        """Divide samples without a call among the timed lines, so that each line's share approaches its timed share.

        ``sampled`` are the function's lines; lines that were timed but not sampled are added. Samples with a call stay
        with their line, as do those of lines that did not run while they were timed.
        """
        place, first = next(iter(sampled.items()))
        timed_s = sum(self._whole.values()) or 1.0
        known = {line: sampled.get(place._replace(line=line)) for line in self._whole}
        in_calls = {line: one.ns - one.calls.get("", 0.0) if one is not None else 0.0 for line, one in known.items()}
        total_s = sum(one.ns for one in known.values() if one is not None)
        lacking = {line: max(0.0, self._whole[line] / timed_s * total_s - in_calls[line]) for line in known}
        part = (total_s - sum(in_calls.values())) / (sum(lacking.values()) or 1.0)
        n = sum(one.n for one in known.values() if one is not None)
        for number, one in known.items() if total_s else ():
            at = place._replace(line=number)
            line = one or sampled.setdefault(at, Line(at, first.entry))
            line.ns = in_calls[number] + part * lacking[number]
            line.n = round(n * line.ns / total_s)

    def _at_call(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Trace the function with its comprehensions, and pause in other functions of the user's."""
        code, caller = frame.f_code, self._line
        self._n_events += caller > 0
        is_timed = (code.co_filename, code.co_firstlineno) == self.function
        is_timed = is_timed or bool(caller and code.co_name in COMPREHENSIONS)
        if not is_timed and not (caller and _is_users(code.co_filename)):
            frame.f_trace = None  # a generator's may be left from a call in which it was traced
            return None
        self._switch_to(0)
        frame.f_trace_lines = is_timed

        def inside(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "return":
                self._switch_to(caller)
            elif is_timed:
                self.n_lines += event == "line"
                self._switch_to(frame.f_lineno)
            return inside

        return inside

    def _switch_to(self, line: int) -> None:
        """Add the time since the last event to the current line, and make ``line`` the current one; 0 for none."""
        now_s = time.perf_counter()
        if self._line:
            self._seconds[self._line] += now_s - self._since_s
        self._line = line
        self._n_events += 1
        if self._n_events >= _MAX_TRACED_EVENTS:
            sys.settrace(None)
        self._since_s = time.perf_counter()


@functools.cache
def _is_users(file: str) -> bool:
    return owner_of(file) == USER
