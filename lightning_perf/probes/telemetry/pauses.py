"""Measure pauses of Python's garbage collector: automatic ones, and those that a line of code requests."""

import gc
import sys
import threading
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any

import msgspec

from lightning_perf.interrupts import RaisesWhenFreed, is_from_signal, is_raised_again
from lightning_perf.probes.atomic_reads import n_live_objects
from lightning_perf.probes.base import Probe, RunContext
from lightning_perf.probes.host_lines.calls import OwnCode, shown_file
from lightning_perf.probes.sampled_steps.code_lines import LIGHTNING, USER, owner_of
from lightning_perf.probes.timeline.spans import OWN
from lightning_perf.records import AskedCollection, Collections, Generation, Session

_COUNT_SHARE = 0.01
"""Share of time in collections above which objects are counted, which takes as long as a small collection."""

_MAX_REQUESTED = 8
_REPLACING = threading.Lock()  # of sys.unraisablehook
Site = tuple[CodeType, int]


class GarbagePauses(Probe):
    """Probe of the time spent in garbage collections, through ``gc.callbacks``.

    ``is_counted`` returns whether a collection that starts now counts; ``counted_s`` the seconds in which collections
    count.
    """

    name = "collections"
    after = ("steps",)

    def __init__(
        self,
        now_ns: Callable[[], int],
        is_counted: Callable[[], bool] = lambda: True,
        phase: Callable[[], str] = lambda: "other",
        counted_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.total_ns = 0
        self.automatic_ns = 0
        self._now_ns = now_ns
        self._is_counted = is_counted
        self._phase, self._counted_s = phase, counted_s
        self._automatic_by_phase: dict[str, int] = {}
        self._started_ns = 0
        self._counts_this = False
        self._site: Site | None = None
        self._is_call: dict[Site, bool] = {}
        self._generations: dict[int, list[int]] = {}  # collections, nanoseconds, nanoseconds of automatic ones
        self._requested: dict[tuple[Site, str], list[int]] = {}
        self._n_objects: int | None = None
        self._counted_at_ns = 0  # ``total_ns`` when objects were last counted
        self._previous_hook = sys.unraisablehook

    @classmethod
    def open(cls, run: RunContext) -> "GarbagePauses":
        """Count from the end of the first step on, without PerfDoctor's own hooks and steps that statistics exclude."""
        loop = run.loop

        def is_counted() -> bool:
            is_own = loop.timeline.current.phase == OWN
            return loop.first_step_end_ns is not None and not (is_own or loop.main.is_left_out)

        return cls(run.now_ns, is_counted, loop.current_phase, loop.included_s)

    def start(self) -> None:
        with _REPLACING:
            self._previous_hook = sys.unraisablehook
            sys.unraisablehook = self._on_unraisable
        gc.callbacks.append(self._on_collection)

    def close(self) -> None:
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)
        with _REPLACING:
            self._restore_hook()

    def _restore_hook(self) -> None:
        """Remove this run's hook, even below hooks of runs in other threads; leave a hook that other code set."""
        owner: Any = sys
        name = "unraisablehook"
        while getattr(owner, name) != self._on_unraisable:
            owner, name = getattr(getattr(owner, name), "__self__", None), "_previous_hook"
            if not isinstance(owner, GarbagePauses):
                return
        setattr(owner, name, self._previous_hook)

    def _on_unraisable(self, unraisable: Any) -> None:
        """Raise again what a signal handler raised in ``_on_collection``: the signal came during the collection.

        It may then be raised within a callback of others, which is called next.
        """
        error = unraisable.exc_value
        # Python 3.14 has the callback in the message only.
        is_callback = unraisable.object is None and repr(self._on_collection) in (unraisable.err_msg or "")
        is_ours = is_callback or unraisable.object == self._on_collection or is_raised_again(error)
        if is_ours and (not isinstance(error, Exception) or is_from_signal(error)):
            _held = RaisesWhenFreed(error)  # a local variable: raised once this function has returned
        else:
            self._previous_hook(unraisable)

    def automatic_so_far_ns(self) -> int:
        """Return nanoseconds in all automatic collections, counted or not, including one under way.

        Other threads run as soon as a collection ends, before its end is counted here.
        """
        started_ns = self._started_ns
        is_under_way = started_ns and self._site is None
        return self.automatic_ns + (self._now_ns() - started_ns if is_under_way else 0)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._counts_this = self._is_counted()
            self._site = self._requesting(sys._getframe().f_back)
            self._started_ns = self._now_ns()
        elif self._started_ns:
            passed = self._now_ns() - self._started_ns
            if self._site is None:
                self.automatic_ns += passed
            self._started_ns = 0
            if not self._counts_this:
                return
            self.total_ns += passed
            sums = self._generations.setdefault(info.get("generation", 2), [0, 0, 0])
            sums[0] += 1
            sums[1] += passed
            phase = self._phase()
            if self._site is None:
                self._automatic_by_phase[phase] = self._automatic_by_phase.get(phase, 0) + passed
                sums[2] += passed
            else:
                requested = self._requested.setdefault((self._site, phase), [0, 0])
                requested[0] += 1
                requested[1] += passed

    def _requesting(self, frame: FrameType | None) -> Site | None:
        """Return the code and line that call ``gc.collect``, preferably the user's; None for automatic collections."""
        if frame is None or "collect" not in frame.f_code.co_names:
            return None
        code = frame.f_code
        at = code, frame.f_lasti
        is_call = self._is_call.get(at)
        if is_call is None:
            called = OwnCode(code, frame.f_lasti, frame.f_lineno or 0, frame.f_globals).call
            is_call = self._is_call[at] = called.rpartition(".")[2] == "collect"
        if not is_call:
            return None
        outer: FrameType | None = frame
        while outer is not None and (owner := owner_of(outer.f_code.co_filename)) != LIGHTNING:
            if owner == USER:
                return outer.f_code, outer.f_lineno or 0
            outer = outer.f_back
        return code, frame.f_lineno or 0

    def part(self, session: Session) -> Mapping[str, Any]:
        steady = session.steady
        if steady is not None:
            steady = msgspec.structs.replace(steady, gc_s=self.total_ns / 1e9)
        return {"collections": self.record(), "steady": steady}

    def record(self) -> Collections | None:
        if not self._generations:
            return None
        span_s = self._counted_s()
        if self.total_ns > max(_COUNT_SHARE * span_s * 1e9, 2 * self._counted_at_ns):
            self._counted_at_ns = self.total_ns
            self._n_objects = n_live_objects()
        requested = sorted(self._requested.items(), key=lambda item: -item[1][1])[:_MAX_REQUESTED]
        return Collections(
            span_s=span_s,
            automatic_by_phase_s={name: ns / 1e9 for name, ns in self._automatic_by_phase.items()},
            generations=tuple(
                Generation(generation=number, n=n, total_s=ns / 1e9, automatic_s=automatic_ns / 1e9)
                for number, (n, ns, automatic_ns) in sorted(self._generations.items())
            ),
            thresholds=gc.get_threshold(),
            n_objects=self._n_objects,
            asked=tuple(
                AskedCollection(
                    file=shown_file(code.co_filename),
                    line=line,
                    function=code.co_name,
                    phase=phase,
                    is_users=owner_of(code.co_filename) == USER,
                    n=n,
                    total_s=ns / 1e9,
                )
                for ((code, line), phase), (n, ns) in requested
            ),
        )
