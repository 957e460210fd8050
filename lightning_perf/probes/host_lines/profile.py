"""Aggregate samples by stack, and build the record from them."""

import linecache
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from lightning_perf.records import HostLine, HostPhase, HostProfile, StageTimes
from lightning_perf.records.host_profile import InnerLine

from .calls import OwnCode, library_call, shown_file
from .stacks import OPERATOR, Position, Stack, StackReader

MAX_STACKS = 4096
"""Most distinct stacks kept; of further ones, only the outermost line is kept."""

_MAX_LINES, _MAX_OUTER_LINES = 8, 4
_MIN_LINE_SHARE = 0.01
_DESCENT_SHARE = 0.5  # report the called function's lines if one holds most of a line's time
_HOST_PART = 0.2  # most of a line that is training, and most operators in what a line around host code adds
_MUCH_LONGER = 1.5  # a line around a line is reported with it if it takes so much longer
COMPREHENSIONS = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")
_LATE_NS = 100_000
"""A sample this late had to wait for the interpreter lock: a thread that runs Python releases it after the switch
interval of 0.05 ms, and the sampler then has to wake; one inside an operator does at once (benchmarks/host_lines)."""


@dataclass(slots=True)
class StackSamples:
    """Samples of one stack."""

    n: int = 0
    n_late: int = 0
    ns: float = 0.0
    gc_ns: float = 0.0
    step_ns: float = 0.0  # the sum of nanoseconds × finished steps
    n_steps: int = 0
    last_step: int = -1

    def add(self, ns: float, gc_ns: float, late_ns: float, step: int) -> None:
        self.n += 1
        self.n_late += late_ns > _LATE_NS
        self.ns += ns
        self.gc_ns += gc_ns
        self.step_ns += ns * step
        self.n_steps += step != self.last_step  # steps only grow
        self.last_step = step


class PhaseSamples:
    """Samples of one phase, by stack."""

    def __init__(self) -> None:
        self.stacks: dict[Stack, StackSamples] = {}
        self.n = self.n_steps = 0
        self._last_step = -1
        self.ns = self.squares = 0.0

    def add(self, stack: Stack, ns: float, gc_ns: float, late_ns: float, step: int) -> None:
        """Count one sample, taken after ``step`` steps."""
        sums = self.stacks.get(stack)
        if sums is None:
            if len(self.stacks) >= MAX_STACKS:
                stack = Stack(stack.lines[:1], None, stack.leaf)
            sums = self.stacks.setdefault(stack, StackSamples())
        sums.add(ns, gc_ns, late_ns, step)
        self.n_steps += step != self._last_step
        self._last_step = step
        self.n += 1
        self.ns += ns + gc_ns
        self.squares += (ns + gc_ns) ** 2


class UserLine(NamedTuple):
    """A line of a user's function."""

    file: str
    line: int
    function: str


class Line:
    """A line with everything below it: a node of the call tree."""

    def __init__(self, place: UserLine, entry: str, parent: "Line | None" = None) -> None:
        self.place = place
        self.entry = entry
        self.parent = parent
        self.ns = self.operator_ns = self.step_ns = 0.0
        self.n = self.n_steps = 0
        self.calls: defaultdict[str, float] = defaultdict(float)
        self.children: dict[UserLine, Line] = {}

    @property
    def host_ns(self) -> float:
        return self.ns - self.operator_ns

    def add(self, ns: float, n: int, call: str, is_operator: bool = False) -> None:
        """Count ``n`` samples of stacks that contain the line."""
        self.ns += ns
        self.n += n
        self.operator_ns += ns * is_operator
        self.calls[call] += ns

    def costly(self, least_ns: float) -> "Iterator[Line]":
        """Yield the lines to report: those of the called function if one holds most of the time, else this one.

        That may also be most of the time outside torch operators, if this is a noticeable part.
        """
        if self.ns < least_ns:
            return
        inner = self.children.values()
        most_ns = max((child.ns for child in inner), default=0.0)
        most_host_ns = max((child.host_ns for child in inner), default=0.0)
        is_host = most_host_ns >= _DESCENT_SHARE * self.host_ns and self.host_ns >= _HOST_PART * self.ns
        if most_ns < _DESCENT_SHARE * self.ns and not (is_host and inner):
            yield self
            return
        for child in inner:
            yield from child.costly(least_ns)

    def within(self) -> "Line | None":
        """Return the outermost line around this one that adds host code and takes much longer, if there is one.

        A line that also adds operators calls the training, too, as one that calls a step shared by several hooks.
        """
        found, line = None, self
        while (outer := line.parent) is not None:
            if outer.operator_ns - line.operator_ns > _HOST_PART * (outer.ns - line.ns):
                break
            if outer.host_ns >= _MUCH_LONGER * self.host_ns:
                found = outer
            line = outer
        return found

    def record(self, total_ns: float, timed: tuple[float, float] | None = None) -> HostLine:
        """Return the record; ``timed`` are the seconds per step and the share of the span of all lines together."""
        share = self.ns / total_ns
        caller = self.parent.place if self.parent is not None else None
        return HostLine(
            file=shown_file(self.place.file),
            line=self.place.line,
            function=self.place.function,
            entry=self.entry,
            call=max(self.calls, key=lambda name: self.calls[name], default=""),
            share=share,
            operator_fraction=self.operator_ns / self.ns if self.ns else 0.0,
            per_step_s=None if timed is None else share * timed[0],
            span_share=None if timed is None else share * timed[1],
            n_samples=self.n,
            n_steps=self.n_steps,
            mean_step=self.step_ns / self.ns if self.n_steps else None,
            code=linecache.getline(self.place.file, self.place.line).strip()[:120],
            called_at=f"{os.path.basename(caller.file)}:{caller.line}" if caller is not None else "",
        )

    def inner_record(self, total_ns: float, timed: tuple[float, float] | None = None) -> InnerLine:
        """Return the record with that of the line around it."""
        within, fields = self.within(), msgspec.structs.asdict(self.record(total_ns, timed))
        return InnerLine(**fields, within=within.record(total_ns, timed) if within is not None else None)


class ProfileBuilder:
    """Builder of the record from the samples of each phase; ``reader`` has read their stacks."""

    def __init__(self, reader: StackReader) -> None:
        self._reader = reader
        self._own: dict[Position, OwnCode] = {}

    def build(
        self,
        phases: dict[str, PhaseSamples],
        slow: dict[str, PhaseSamples],
        steps: tuple[int, int],
        cost_s: float,
        steady: StageTimes | None,
    ) -> HostProfile:
        """Return the record.

        ``slow`` holds the samples of slow steps only, ``steps`` the finished steps at the first and the last sample.
        """
        return HostProfile(
            n_samples=sum(phase.n for phase in phases.values()),
            sampled_s=sum(phase.ns for phase in phases.values()) / 1e9,
            first_step=steps[0],
            last_step=steps[1],
            cost_s=cost_s,
            phases=self._all(phases, steady),
            slow_steps=self._all(slow, None),
        )

    def _all(self, phases: dict[str, PhaseSamples], steady: StageTimes | None) -> dict[str, HostPhase]:
        total_ns = sum(phase.ns for phase in phases.values())
        return {name: self._phase(name, phase, total_ns, steady) for name, phase in phases.items()}

    def _phase(self, name: str, samples: PhaseSamples, total_ns: float, steady: StageTimes | None) -> HostPhase:
        roots: dict[UserLine, Line] = {}
        late = _late_operator_share(samples)
        operator_ns = 0.0
        for stack, sums in samples.stacks.items():
            call, is_operator = self._running(stack, sums, late)
            operator_ns += sums.ns * is_operator
            level, parent = roots, None
            places = _places(stack.lines)
            for depth, place in enumerate(places):
                line = level.get(place)
                if line is None:
                    line = level[place] = Line(place, places[0].function, parent)
                below = call if depth == len(places) - 1 else places[depth + 1].function
                line.add(sums.ns, sums.n, below, is_operator)
                line.step_ns += sums.step_ns
                line.n_steps = max(line.n_steps, sums.n_steps)
                level, parent = line.children, line
        least_ns = _MIN_LINE_SHARE * samples.ns
        found: dict[UserLine, Line] = {}
        for root in roots.values():
            for line in root.costly(least_ns):
                known = found.setdefault(line.place, line)
                if known is not line:
                    _merge(known, line)
        lines = sorted(found.values(), key=lambda line: -line.ns)[:_MAX_LINES]
        outer = sorted(roots.values(), key=lambda line: -line.ns)[:_MAX_OUTER_LINES]
        phase_s = steady.phases[name].total_s if steady is not None and name in steady.phases else None
        timed = None if steady is None or phase_s is None else (phase_s / steady.n_span_steps, phase_s / steady.span_s)
        return HostPhase(
            n_samples=samples.n,
            n_effective=samples.ns**2 / samples.squares,
            share=samples.ns / total_ns,
            operator_fraction=operator_ns / samples.ns,
            gc_fraction=sum(sums.gc_ns for sums in samples.stacks.values()) / samples.ns,
            n_steps=samples.n_steps,
            mean_step=sum(sums.step_ns for sums in samples.stacks.values()) / samples.ns,
            lines=tuple(line.inner_record(samples.ns, timed) for line in lines),
            outer_lines=tuple(line.record(samples.ns, timed) for line in outer if line.ns >= least_ns),
        )

    def _running(self, stack: Stack, sums: StackSamples, late: float) -> tuple[str, bool]:
        """Return what ran below the innermost line, and whether it was an operator."""
        if stack.below is not None:
            name = library_call(stack.below, self._reader.modules.get(stack.below, ""))
            if stack.inner is None:
                return name, stack.leaf == OPERATOR
            return name, self._own_code(stack.inner, sums, late)[1]
        if not stack.lines or stack.leaf != "user":
            return "", stack.leaf == OPERATOR
        return self._own_code(stack.lines[-1], sums, late)

    def _own_code(self, position: Position, sums: StackSamples, late: float) -> tuple[str, bool]:
        """Return what a frame ran itself, and whether it was an operator."""
        own = self._own.get(position)
        if own is None:
            own = self._own[position] = OwnCode(*position, self._reader.globals_of.get(position[0], {}))
        if own.is_operator is None:
            return own.call, not (sums.n_late > sums.n / 2 and late < 0.5)
        return own.call, own.is_operator


def _late_operator_share(samples: PhaseSamples) -> float:
    """Return the share of late samples in torch's own code; on a busy machine, all samples are late."""
    known = [sums for stack, sums in samples.stacks.items() if stack.leaf == OPERATOR]
    n = sum(sums.n for sums in known)
    return sum(sums.n_late for sums in known) / n if n else 0.0


def _places(lines: tuple[Position, ...]) -> list[UserLine]:
    """Return the lines of a stack; a comprehension belongs to the function around it."""
    places: list[UserLine] = []
    for code, _, line in lines:
        name = code.co_name
        if name in COMPREHENSIONS and places:
            name = places.pop().function
        places.append(UserLine(code.co_filename, line, name))
    return places


def _merge(known: Line, other: Line) -> None:
    known.ns += other.ns
    known.operator_ns += other.operator_ns
    known.step_ns += other.step_ns
    known.n_steps = max(known.n_steps, other.n_steps)
    known.n += other.n
    if (known.parent and known.parent.place) != (other.parent and other.parent.place):
        known.parent = None
    for call, ns in other.calls.items():
        known.calls[call] += ns
