"""Time work without and with a treatment, alternately, until the ratio is known or time is up."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from statistics import fmean, median, stdev
from typing import Any, NamedTuple, Protocol

import msgspec
from scipy.special import stdtrit

from lightning_perf.probes.clock import DeviceEvent
from lightning_perf.records import Interval

MIN_ROUNDS = 4
LEVEL = 0.99
"""Confidence level of each interval. Rounds end once an interval decides, which favors intervals that are narrow by
chance. With at least four rounds at 99 %, the last interval still contains the ratio in at least 96 % of simulated
comparisons, whether passes vary normally, with heavy tails or with interruptions; at 95 %, it would contain it in 80 to
90 % (tests/probes/replay)."""

MIN_TRIMMED_ROUNDS = 10
"""Fewer rounds are not trimmed, which would leave Student's t with too few degrees of freedom."""

MAX_ROUNDS = 60
HALF_WIDTH = 0.05
"""Relative half width of the interval at which it is narrow enough."""

MAX_SLOWDOWN = 2.0
"""Passes with the treatment end when they take this many times as long as one without it."""

HOPELESS_SLOWDOWN, HOPELESS_ROUNDS = 1.5, 2
"""After so many rounds, stop if the shortest treated pass takes this many times as long as the longest without it."""

SHORT_S = 0.01
"""Seconds below which allocating and choosing a kernel may take most of an operator's first run."""

_DEVICE_TIMEOUT_S = 30.0


class Stopwatch(Protocol):
    """Clock whose marks are compared later."""

    def mark(self) -> Any:
        """Return a mark behind all work started so far."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the time between two marks; wait until the second is reached."""


class HostWatch:
    """The host's clock, for operators on the CPU."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.mark = now_ns

    def seconds(self, begin: int, end: int) -> float:
        return (end - begin) / 1e9


class DeviceWatch:
    """Events in the device's queue; ``make_event`` as in ``DeviceClock``."""

    def __init__(self, make_event: Callable[[], DeviceEvent]) -> None:
        self._make_event = make_event

    def mark(self) -> DeviceEvent:
        event = self._make_event()
        event.record()
        return event

    def seconds(self, begin: DeviceEvent, end: DeviceEvent) -> float:
        """Return the device's time between two events; poll until the second is reached.

        Raises:
            TimeoutError: It was not reached within ``_DEVICE_TIMEOUT_S``.
        """
        until = time.monotonic() + _DEVICE_TIMEOUT_S
        while not end.query():
            if time.monotonic() > until:
                raise TimeoutError(f"the device did not finish a replayed operator within {_DEVICE_TIMEOUT_S:.0f} s")
            time.sleep(1e-4)
        return begin.elapsed_time(end) / 1e3


class Item(Protocol):
    """A piece of the step's work.

    ``weight`` is its number of runs per step, ``treated_weight`` the same with the treatment.
    """

    weight: float
    treated_weight: float

    def run(self, is_treated: bool, watch: Stopwatch) -> list[tuple[Any, Any]]:
        """Do the work once; return the pair of marks around each timed part."""


class Comparison(NamedTuple):
    """Result of a comparison: seconds per step without and with the treatment, and the number of pairs of passes.

    These are fields of ``Replayed``. After too few rounds ``speedup`` is None, and ``reason`` says why.
    """

    before_s: float | None = None
    after_s: float | None = None
    n_rounds: int = 0
    speedup: Interval | None = None
    reason: str = ""


def compare(
    items: Sequence[Item],
    treated: Callable[[], AbstractContextManager[Any]],
    watch: Stopwatch,
    limit_s: float,
    now_ns: Callable[[], int],
    least_speedup: float = 1.0,
    enough_s: float = math.inf,
) -> Comparison:
    """Compare all items without and with a treatment, for at most ``limit_s`` seconds.

    ``treated`` makes the context of a treated pass. Rounds end early once the interval is narrow, or lies below
    ``least_speedup``, the lowest that matters in a step; after ``enough_s`` seconds if there are enough of them for an
    interval, or, if that includes 1, halfway from there to ``limit_s``. The result holds medians of the passes, and
    Student's interval of the logarithm of their ratios by pair.
    """
    if limit_s <= 0:
        return Comparison(reason="preparing the operators took all of the time")
    enough_s = min(enough_s, limit_s)
    times_s = limit_s, enough_s, (enough_s + limit_s) / 2
    until, enough, undecided = (now_ns() + round(seconds * 1e9) for seconds in times_s)
    before, after = _Passes(items, watch, False), _Passes(items, watch, True)
    if not before.run(until, now_ns, is_first=True):
        return Comparison(reason=f"one pass over the operators takes longer than the {limit_s:.1f} s left")
    with treated():
        after.run(until, now_ns, MAX_SLOWDOWN * before.last_s, is_first=True)
    logs: list[float] = []
    all_before, all_after = [before.last_s], [after.last_s]
    found: Interval | None = None
    end = until
    before.forget()
    after.forget()
    before.is_warmed = after.is_warmed = 4 * MIN_TRIMMED_ROUNDS * (before.last_s + after.last_s) < enough_s
    while len(logs) < MAX_ROUNDS and now_ns() < end:
        is_whole = True
        for is_treated in (False, True) if len(logs) % 2 == 0 else (True, False):  # A B B A
            if not is_treated:
                is_whole &= before.run(until, now_ns)
            else:
                with treated():
                    is_whole &= after.run(until, now_ns, MAX_SLOWDOWN * before.last_s)
        if not is_whole:
            break
        logs.append(math.log(before.last_s / after.last_s))
        all_before.append(before.last_s)
        all_after.append(after.last_s)
        found = interval_of(logs)
        if found is not None:
            end = undecided if found.low < 1.0 < found.high else enough
        if len(logs) >= HOPELESS_ROUNDS and min(all_after) > HOPELESS_SLOWDOWN * max(all_before):
            found = Interval(value=math.exp(fmean(logs)), low=0.0, high=max(all_before) / min(all_after))
            break
        if found is not None and (found.high < least_speedup or found.high / found.low < (1 + HALF_WIDTH) ** 2):
            break
    if found is None:
        rounds = f"only {len(logs)} round{'s' * (len(logs) > 1)}" if logs else "no round"
        reason = f"{rounds} fit in {max(limit_s, 0.0):.1f} s: too few to decide"
        return Comparison(n_rounds=len(logs), reason=reason)
    if after.n_cut > len(logs) // 5:  # more than are trimmed: a pass that was cut off would have taken longer
        found = msgspec.structs.replace(found, low=0.0)
    return Comparison(before.per_step_s(len(logs)), after.per_step_s(len(logs)), len(logs), found)


def widen_interval(cold: Comparison, warm: Comparison) -> Comparison:
    """Return the first comparison with an interval that includes the second one's, with its tensors in caches.

    In a training, some results are still in caches when the next operator reads them, and others are not.
    """
    if cold.speedup is None or warm.speedup is None:
        return cold
    low, high = min(cold.speedup.low, warm.speedup.low), max(cold.speedup.high, warm.speedup.high)
    return cold._replace(speedup=msgspec.structs.replace(cold.speedup, low=low, high=high))


def interval_of(logs: Sequence[float]) -> Interval | None:
    """Return the ratio with its interval, from logarithms of single ratios; None from too few.

    Single passes may be slow because another program had the core, so the highest and lowest fifth of many are trimmed:
    the interval of a trimmed mean (Tukey and McLaughlin, Sankhya 25, 1963).
    """
    n = len(logs)
    if n < MIN_ROUNDS:
        return None
    n_cut = n // 5 if n >= MIN_TRIMMED_ROUNDS else 0
    ordered = sorted(logs)
    kept = ordered[n_cut : n - n_cut]
    winsorized = [kept[0]] * n_cut + kept + [kept[-1]] * n_cut
    error = stdev(winsorized) / ((1 - 2 * n_cut / n) * math.sqrt(n))
    centre, reach = fmean(kept), float(stdtrit(len(kept) - 1, (1 + LEVEL) / 2)) * error
    return Interval(value=math.exp(centre), low=math.exp(centre - reach), high=math.exp(centre + reach))


class _Passes:
    """Passes over all items, either all without the treatment or all with it."""

    def __init__(self, items: Sequence[Item], watch: Stopwatch, is_treated: bool) -> None:
        self._items, self._watch, self._is_treated = items, watch, is_treated
        self._weights = [item.treated_weight if is_treated else item.weight for item in items]
        self._times: list[list[float]] = [[] for _ in items]
        self.last_s = 0.0
        self.n_cut = 0
        self.is_warmed = False
        """Whether each pass is preceded by an untimed one, which fills the caches with this side's data."""

    def run(self, until: int, now_ns: Callable[[], int], most_s: float = math.inf, is_first: bool = False) -> bool:
        """Run all items; in the first pass, run short ones twice, since the first run allocates and tunes.

        Return False if time was up before the last item, or if no time passed. A sum above ``most_s`` ends the pass and
        counts in ``n_cut``.
        """
        if self.is_warmed:
            for item in self._items:
                self._timed(item)
        self.last_s = 0.0
        for place, (item, times) in enumerate(zip(self._items, self._times, strict=True)):
            seconds = self._timed(item)
            if is_first and seconds < SHORT_S:
                seconds = self._timed(item)
            times.append(seconds)
            self.last_s += self._weights[place] * times[-1]
            is_last = place + 1 == len(self._items)
            if not is_last and now_ns() > until:
                return False
            if not is_last and self.last_s > most_s:
                self.n_cut += 1
                return True
        return self.last_s > 0

    def _timed(self, item: Item) -> float:
        return sum(self._watch.seconds(*pair) for pair in item.run(self._is_treated, self._watch))

    def forget(self) -> None:
        self.n_cut = 0
        for times in self._times:
            times.clear()

    def per_step_s(self, n_rounds: int) -> float:
        """Return seconds per step: for each item the median of the rounds."""
        pairs = zip(self._weights, self._times, strict=True)
        return sum(weight * median(times[:n_rounds]) for weight, times in pairs if times)
