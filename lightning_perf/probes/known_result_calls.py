"""The operators of one step, by what makes them superfluous: their time, and the user's lines that call them."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from lightning_perf.records import KnownKind, KnownResults

from .code_lines import site_text

TRAINED, BATCH, RANDOM, UNKNOWN = 1, 2, 4, 8
N_ORIGINS = 4
"""Bits of an origin: trained parameters, the batch, random generators, anything else. Each higher bit is one tensor of
the module that is not trained."""

_SITE_PART = 0.95
"""Part of a line's time in such operators from which on the line is named rather than lines that it calls."""

Line = tuple[str, int]
Lines = tuple[Line, ...]


class Pass:
    """One backward pass.

    ``lines`` are the user's lines above it. It ``accumulates`` if it adds to the gradients of parameters.
    ``n_pauses`` counts the pauses before it, e.g. steps of an optimizer.
    """

    __slots__ = ("accumulates", "lines", "n_pauses")

    def __init__(self, lines: Lines, n_pauses: int) -> None:
        self.lines, self.n_pauses, self.accumulates = lines, n_pauses, False


class Call:
    """One forward operator, with the user's lines above it.

    Attributes:
        weight: Its time, or its operations where it cannot be timed.
        origin: What its results depend on, as bits.
        first: The equal operator that ran before; None without one.
        lines: The user's lines above it; ``place`` stands for all lines above it.
        is_listed: Whether it could be saved; False for one that only makes or copies a tensor.
        has_grad: Whether autograd recorded it.
        is_used: Whether something uses its results.
        producers: The operators that computed its inputs.
        passes: The weight of each backward pass through it.
    """

    __slots__ = (
        "first", "has_grad", "is_listed", "is_used", "lines", "origin", "passes", "place", "producers", "weight",
    )  # fmt: skip

    def __init__(self, weight: int, origin: int, first: "Call | None", lines: Lines = (), place: int = 0) -> None:
        self.weight, self.origin, self.first, self.lines, self.place = weight, origin, first, lines, place
        self.has_grad = self.is_used = False
        self.is_listed = True
        self.producers: tuple[Call, ...] = ()
        self.passes: dict[Pass, int] = {}

    @property
    def backward_weight(self) -> int:
        """The weight of all backward passes through it."""
        return sum(self.passes.values())

    @property
    def is_repeated(self) -> bool:
        """Whether the user's code has computed this before: in another line, or in the same in a loop.

        Where lines of a library differ below the same line of the user's, the library repeats it.
        """
        return self.first is not None and (self.lines != self.first.lines or self.place == self.first.place)


class StepCalls:
    """The operators of one step. ``is_timed``: weights are nanoseconds."""

    def __init__(self, is_timed: bool) -> None:
        self.is_timed = is_timed
        self.calls: list[Call] = []
        self.forward_weight = self.backward_weight = 0  # of all operators
        self.frozen_bytes: dict[int, int] = {}  # of results that depend on the batch only, by content
        self.recomputed_bytes = 0
        self.has_backward = False
        self._recomputed: list[Call] = []

    def add(self, call: Call) -> None:
        """Add a forward operator."""
        self.calls.append(call)
        self.forward_weight += call.weight

    def add_recomputed(self, weight: int, n_bytes: int, lines: Lines) -> None:
        """Add an operator that activation checkpointing calls again, and the bytes of its results."""
        self._recomputed.append(Call(weight, TRAINED, None, lines))
        self.recomputed_bytes += n_bytes

    def find_used(self) -> None:
        """Mark all operators whose results are used, by going back from those that are."""
        if not any(call.passes for call in self.calls):
            return  # no backward pass was seen
        self.has_backward = True
        todo = [call for call in self.calls if call.is_used or call.passes]
        for call in todo:
            call.is_used = True
        while todo:
            unseen = [one for one in todo.pop().producers if not one.is_used]
            for one in unseen:
                one.is_used = True
            todo += unseen

    def records(self, changed: int) -> tuple[KnownResults, ...]:
        """Return a record of each kind; ``changed`` are the bits of tensors that were not the same later."""
        varying = TRAINED | BATCH | RANDOM | UNKNOWN | changed
        kinds: dict[KnownKind, list[Call]] = {"unused": [], "constant": [], "twice": [], "frozen": []}
        for call in self.calls:
            if not call.is_listed:
                continue
            if self.has_backward and call.has_grad and not call.is_used:
                kinds["unused"].append(call)
            elif not call.origin & varying:
                kinds["constant"].append(call)
            elif call.is_repeated:
                kinds["twice"].append(call)
            elif not call.origin & (varying & ~BATCH):
                kinds["frozen"].append(call)
        found = [
            self._record(
                kind,
                len(calls),
                sum(call.weight for call in calls),
                sum(call.backward_weight for call in calls),
                kept_bytes=sum(self.frozen_bytes.values()) if kind == "frozen" else 0,
                **(_two_sites(calls) if kind == "twice" else {"site": self._site(calls)}),
            )
            for kind, calls in kinds.items()
            if calls
        ]
        if self._recomputed:
            weight, lines = 0, Counter[Lines]()
            for call in self._recomputed:
                weight += call.weight
                lines[call.lines] += call.weight
            site = site_text(lines.most_common(1)[0][0])
            n, kept_bytes = len(self._recomputed), self.recomputed_bytes
            found.append(self._record("recomputed", n, 0, weight, kept_bytes=kept_bytes, site=site))
        return (*found, *self._repeated_passes())

    def _record(self, kind: KnownKind, n: int, forward: int, backward: int, **others: Any) -> KnownResults:
        return KnownResults(
            kind=kind,
            n_operators=n,
            forward_part=forward / max(1, self.forward_weight),
            backward_part=backward / max(1, self.backward_weight),
            total_s=(forward + backward) / 1e9 if self.is_timed else 0.0,
            **others,
        )

    def _repeated_passes(self) -> Iterable[KnownResults]:
        """Yield the record of operators that several backward passes go through, whose gradients add up."""
        saved, n, weights = 0, 0, Counter[Pass]()
        for call in self.calls:
            by_pause: dict[int, dict[Pass, int]] = {}
            for one, weight in call.passes.items():
                if one.accumulates:
                    by_pause.setdefault(one.n_pauses, {})[one] = weight
            for passes in by_pause.values():
                saved += sum(passes.values()) - max(passes.values())
                n += len(passes) > 1
                weights.update(passes if len(passes) > 1 else {})
        if n:
            lines = Counter[Lines]()
            for one, weight in weights.items():
                lines[one.lines] += weight
            site = site_text(lines.most_common(1)[0][0])
            yield self._record("backward", n, 0, saved, n_passes=len(weights), site=site)

    def _site(self, calls: Iterable[Call]) -> str:
        """Return the outermost line that does hardly anything else, or the innermost with most of their time."""
        every, these, innermost = Counter[Lines](), Counter[Lines](), Counter[Lines]()
        for chosen, counter in ((self.calls, every), (calls, these)):
            for call in chosen:
                for n in range(1, len(call.lines) + 1):
                    counter[call.lines[:n]] += call.weight
        mostly = [lines for lines, weight in these.items() if weight >= _SITE_PART * every[lines]]
        best = max(mostly, key=lambda lines: (these[lines], -len(lines)), default=())
        for call in calls:
            innermost[call.lines] += call.weight
        most, weight = innermost.most_common(1)[0]
        return site_text(best if these[best] >= weight else most)


def _two_sites(calls: Iterable[Call]) -> dict[str, str]:
    """Return the lines with most of the time of these calls, and those that computed the same before."""
    pairs = Counter[tuple[Line, Line]]()
    for call in calls:
        if call.first is not None and call.lines and call.first.lines:
            differing = ((a, b) for a, b in zip(call.first.lines, call.lines, strict=False) if a != b)
            pairs[next(differing, (call.first.lines[-1], call.lines[-1]))] += call.weight
    if not pairs:
        return {"site": ""}
    (first, second), _ = pairs.most_common(1)[0]
    return {"site": site_text((second,)), "first_site": site_text((first,)) if first != second else ""}
