"""The operators of one step, by what makes them superfluous: their time, and the user's lines that call them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import msgspec

from lightning_perf.records import KnownKind, KnownResults

from .code_lines import site_text
from .zero_gradients import ZeroGradients

TRAINED, BATCH, RANDOM, UNKNOWN = 1, 2, 4, 8
N_ORIGINS = 4
"""Bits of an origin: trained parameters, the batch, random generators, anything else. Each higher bit is one tensor of
the module that is not trained."""

_MUCH, _ONLY = 0.3, 0.95
"""Parts of a line's time in superfluous operators above which it does much such work, or almost nothing else."""

Line = tuple[str, int]
Lines = tuple[Line, ...]


class Pass:
    """One backward pass.

    ``lines`` are the user's lines above it, ``parameters`` the ids of those whose gradients it adds to.
    ``n_gradient_uses`` is how often, before it, an optimizer stepped or gradients were read or cleared.
    """

    __slots__ = ("lines", "n_gradient_uses", "parameters")

    def __init__(self, lines: Lines, n_gradient_uses: int) -> None:
        self.lines, self.n_gradient_uses = lines, n_gradient_uses
        self.parameters: set[int] = set()


class Call:
    """One forward operator, with the user's lines above it.

    Attributes:
        weight: Its time in nanoseconds, or its FLOPs where it cannot be timed.
        key: Identifies the operator and the contents of its inputs, across steps if these are constant.
        origin: What its results depend on, as bits.
        first: The equal operator that ran before; None without one.
        instructions: The instruction in each of these lines.
        loops: The loops in the step that run around it, innermost first: how many of its lines lead to each, and the
            number of its frame.
        is_listed: Whether it could be saved; False for one that only makes or copies a tensor.
        is_per_item: Whether no item of the batch has an influence on the results of another.
        is_check: Whether a distribution checks its arguments by it.
        derivative: The node and the pass, if it belongs to a backward pass that is itself differentiated.
        has_grad: Whether autograd recorded it.
        is_used: Whether something uses its results.
        is_detached: Whether its result was detached, which code that is no operator may use.
        is_logging: Whether it is part of logging a value.
        is_zeroing: Whether it multiplies by the number 0.
        producers: The operators that computed its inputs.
        passes: The weight of each backward pass through it.
    """

    __slots__ = (
        "derivative", "first", "has_grad", "instructions", "is_check", "is_detached", "is_listed", "is_logging",
        "is_per_item", "is_used", "is_zeroing", "key", "lines", "loops", "origin", "passes", "producers", "weight",
    )  # fmt: skip

    def __init__(self, weight: int, key: int, origin: int, lines: Lines = (), first: "Call | None" = None) -> None:
        self.weight, self.key, self.origin, self.lines, self.first = weight, key, origin, lines, first
        self.has_grad = self.is_used = self.is_check = self.is_zeroing = self.is_detached = self.is_logging = False
        self.is_listed = self.is_per_item = True
        self.derivative: tuple[int, int] | None = None
        self.instructions: tuple[int, ...] = ()
        self.loops: tuple[tuple[int, int], ...] = ()
        self.producers: tuple[Call, ...] = ()
        self.passes: dict[Pass, int] = {}

    @property
    def backward_weight(self) -> int:
        """The weight of all backward passes through it."""
        return sum(self.passes.values())

    def differing(self) -> tuple[Lines, Lines]:
        """Return both stacks of lines up to where the computations differ, or up to the loop that both are in.

        They are empty without either: what a library repeats below one line cannot be avoided.
        """
        first = self.first
        if first is None:
            return (), ()
        before = zip(first.lines, first.instructions, strict=False)
        now = zip(self.lines, self.instructions, strict=False)
        for n, (one, other) in enumerate(zip(before, now, strict=False), 1):
            if one != other:
                return first.lines[:n], self.lines[:n]
        n = next((loop[0] for loop in self.loops if loop in first.loops), 0)
        return self.lines[:n], self.lines[:n]


class StepCalls:
    """The operators of one step. ``is_timed``: weights are nanoseconds."""

    def __init__(self, is_timed: bool) -> None:
        self.is_timed = is_timed
        self.calls: list[Call] = []
        self.forward_weight = self.backward_weight = 0  # of all operators
        self.frozen_bytes: dict[int, int] = {}  # of results that depend on the batch only, by content
        self.batch_bytes = 0
        self.are_items_changed = False
        """Whether the batch may hold other items than the dataset returns, or random numbers were drawn in Python."""
        self.zeros = ZeroGradients()
        self._recomputed = Counter[Lines]()  # weights of what activation checkpointing calls again, by line
        self._n_recomputed = self._recomputed_bytes = 0
        self._has_backward = False
        self._zeroed: list[Call] = []
        self._only_logged: set[Call] = set()
        self._constant_elsewhere: set[int] | None = None

    def add(self, call: Call) -> None:
        self.calls.append(call)
        self.forward_weight += call.weight

    def add_recomputed(self, weight: int, n_bytes: int, lines: Lines) -> None:
        """Add an operator that activation checkpointing calls again, and the bytes of its results."""
        self._recomputed[lines] += weight
        self._n_recomputed += 1
        self._recomputed_bytes += n_bytes

    def find_used(self) -> None:
        """Mark all operators whose results are used, by going back from those that are."""
        self._has_backward = any(call.passes for call in self.calls)
        self.zeros.node_ends()
        self._find_checks()
        self._find_only_logged()
        read = {one for call in self.calls for one in call.producers}
        ends = [call for call in self.calls if call.is_used or call not in read]  # Lightning divides the loss unseen
        needed = _behind(ends, past_zero=False)
        for call in _behind([call for call in self.calls if call.is_used or call.passes]):
            call.is_used = True
            if call.is_listed and call not in needed:
                self._zeroed.append(call)

    def _find_only_logged(self) -> None:
        """Find the operators whose results are logged, and used for nothing else; count as used what is detached."""
        logging = [call for call in self.calls if call.is_logging]
        logged = {one for call in logging for one in call.producers}
        for call in self.calls:
            call.is_used |= call.is_detached and call not in logged
        others = _behind(call for call in self.calls if not call.is_logging and (call.is_used or call.passes))
        self._only_logged = _behind(logging) - others - set(logging) if self._has_backward else set()
        for call in self.calls:
            call.is_used |= call.is_detached

    def confirm_constants(self, other: "StepCalls") -> None:
        """Let only those operators count as constant that another step has, too, with the same numbers."""
        self._constant_elsewhere = {call.key for call in other.calls}

    def records(self, changed: int) -> tuple[KnownResults, ...]:
        """Return a record of each kind; ``changed`` are the bits of tensors that were not the same later."""
        kinds = self._by_kind(TRAINED | BATCH | RANDOM | UNKNOWN | changed)
        found = [self._twice(kinds.pop("twice"))]
        for kind, calls in kinds.items():
            weight, backward = sum(call.weight for call in calls), sum(call.backward_weight for call in calls)
            site = self._site(calls) if calls else ""
            found.append(self._record(kind, len(calls), weight, backward, site=site, **self._kept(kind, calls)))
        site, kept_bytes = site_text(self._callers_of(_most(self._recomputed))), self._recomputed_bytes
        weight = self._recomputed.total()
        found.append(self._record("recomputed", self._n_recomputed, 0, weight, kept_bytes=kept_bytes, site=site))
        found += [self._repeated_passes(), self._zero_gradients()]
        return tuple(one for one in found if one.n_operators)

    def common_records(self, other: "StepCalls", changed: int) -> tuple[KnownResults, ...]:
        """Return the records, with the smaller times of two steps; without kinds that only one of them has."""
        others = {one.kind: one for one in other.records(changed)}
        return tuple(
            msgspec.structs.replace(
                one,
                forward_part=min(one.forward_part, again.forward_part),
                backward_part=min(one.backward_part, again.backward_part),
                total_s=min(one.total_s, again.total_s),
                is_per_item=one.is_per_item and again.is_per_item,
            )
            for one in self.records(changed)
            if (again := others.get(one.kind)) is not None
        )

    def _callers_of(self, line: Lines) -> Lines:
        """Return the user's lines that lead to the one that checkpointing calls again, or that one if none is known.

        Backward's stack lacks them; forward operators had them above the same line.
        """
        lines = next((call.lines for call in self.calls if line and line[0] in call.lines), ())
        if not lines:
            return line
        n_above = len(lines) - 1 - lines[::-1].index(line[0])
        return lines[:n_above] or line

    def _by_kind(self, varying: int) -> dict[KnownKind, list[Call]]:
        again = self._derivatives_again()
        kinds: dict[KnownKind, list[Call]] = {
            "checks": [], "unused": [], "constant": [], "twice": [], "logged": [], "frozen": [],
            "zeroed": self._zeroed,
        }  # fmt: skip
        for call in self.calls:
            if call.is_check:
                kinds["checks"].append(call)
                continue
            if not call.is_listed:
                continue
            if self._has_backward and call.has_grad and not call.is_used:
                kinds["unused"].append(call)
            elif not call.origin & varying and not call.has_grad:
                if self._constant_elsewhere is None or call.key in self._constant_elsewhere:
                    kinds["constant"].append(call)
            elif call.differing()[1] and (call.derivative is None or call.derivative in again):
                kinds["twice"].append(call)
            elif call in self._only_logged:
                kinds["logged"].append(call)
            elif not call.origin & (varying & ~BATCH) and not call.has_grad:
                kinds["frozen"].append(call)
        return kinds

    def _derivatives_again(self) -> set[tuple[int, int]]:
        """Return the nodes, with their passes, all of whose operators an earlier pass through the node had, too.

        Others repeat only what each backward pass through a function computes, whatever comes in.
        """
        earlier: dict[tuple[int, int], set[tuple[int, int] | None]] = {}
        for call in self.calls:
            if call.derivative is not None and call.is_listed:
                first = call.first.derivative if call.first is not None else None
                earlier.setdefault(call.derivative, set()).add(first)
        return {
            one
            for one, others in earlier.items()
            if len(others) == 1 and all(other is not None and other[0] == one[0] for other in others)
        }

    def _find_checks(self) -> None:
        """Let only those count as checks whose results nothing else uses: a distribution may keep what it checks."""
        todo = [call for call in self.calls if not call.is_check or call.passes]
        while todo:
            used = [one for one in todo.pop().producers if one.is_check]
            for one in used:
                one.is_check = False
            todo += used
        for call in self.calls:
            call.is_check = call.is_check and not call.passes

    def _kept(self, kind: KnownKind, calls: Sequence[Call]) -> dict[str, Any]:
        """Return the fields of the record on results that may be kept for each item."""
        if kind != "frozen":
            return {}
        kept_bytes = sum(self.frozen_bytes.values())
        is_per_item = all(call.is_per_item for call in calls) and not self.are_items_changed
        return {"kept_bytes": kept_bytes, "is_per_item": is_per_item and 0 < kept_bytes <= self.batch_bytes}

    def _twice(self, calls: Iterable[Call]) -> KnownResults:
        """Return the record of operators with the inputs of earlier ones, in or below lines that do much such work.

        Where only one of two equal operators has a backward pass, that pass is needed.
        """
        weights, these, groups = self._all_by_lines, self._by_lines(calls), dict[Call, list[Call]]()
        pairs: dict[tuple[Lines, Lines], Counter[Lines]] = {}
        for call in calls:
            before, now = call.differing()
            lines = [call.lines[:n] for n in range(len(now), len(call.lines) + 1)]
            if call.first is not None and any(these[line] >= _MUCH * weights[line] for line in lines):
                pairs.setdefault((before, now), Counter())[call.lines] += call.weight
                groups.setdefault(call.first, [call.first]).append(call)
        forward = sum(sum(sorted(call.weight for call in group)[:-1]) for group in groups.values())
        backward = 0
        for group in groups.values():
            passes = [call.backward_weight for call in group]
            backward += sum(passes) - max(passes)
        before, now = max(pairs, key=lambda pair: pairs[pair].total(), default=((), ()))
        n = sum(len(group) - 1 for group in groups.values())
        first = site_text(before) if site_text(before) != site_text(now) else ""
        innermost = pairs.get((before, now), Counter())
        inner = _most(innermost)
        is_one_line = inner != now and 2 * innermost[inner] >= innermost.total()
        derived = [[call for call in group if call.derivative is not None] for group in groups.values()]
        is_derived = 2 * sum(call.weight for group in derived for call in group[1:]) > forward
        n_passes = max((len({call.derivative for call in group}) for group in derived), default=0) if is_derived else 0
        sites = {"site": site_text(now), "first_site": first, "inner_site": site_text(inner) if is_one_line else ""}
        return self._record("twice", n, forward, backward, n_passes=n_passes, **sites)

    def _record(self, kind: KnownKind, n: int, forward: int, backward: int, **others: Any) -> KnownResults:
        return KnownResults(
            kind=kind,
            n_operators=n,
            forward_part=forward / max(1, self.forward_weight),
            backward_part=backward / max(1, self.backward_weight),
            total_s=(forward + backward) / 1e9 if self.is_timed else 0.0,
            **others,
        )

    def _repeated_passes(self) -> KnownResults:
        """Return the record of operators that several backward passes go through, whose gradients add up."""
        saved, n, weights = 0, 0, Counter[Pass]()
        for call in self.calls:
            by_pause: dict[int, dict[Pass, int]] = {}
            for one, weight in call.passes.items():
                by_pause.setdefault(one.n_gradient_uses, {})[one] = weight
            for passes in by_pause.values():
                added = {one: weight for one, weight in passes.items()
                         if any(one.parameters & other.parameters for other in passes if other is not one)}  # fmt: skip
                if added:
                    saved += sum(added.values()) - max(added.values())
                    n += 1
                    weights.update(added)
        lines = Counter[Lines]()
        for one, weight in weights.items():
            lines[one.lines] += weight
        return self._record("backward", n, 0, saved, n_passes=len(weights), site=site_text(_most(lines)))

    def _zero_gradients(self) -> KnownResults:
        """Return the record of backward passes that compute zeros, with the function that costs most."""
        weights = self.zeros.weights
        site = site_text(weights.most_common(1)[0][0].lines) if weights else ""
        return self._record("zeros", len(self.zeros.owners), 0, weights.total(), site=site)

    def _site(self, calls: Iterable[Call]) -> str:
        """Return the outermost line that does hardly anything else, or the innermost with most of their time."""
        every, these, innermost = self._all_by_lines, self._by_lines(calls), Counter[Lines]()
        only = [lines for lines, weight in these.items() if weight >= _ONLY * every[lines]]
        best = max(only, key=lambda lines: (these[lines], -len(lines)), default=())
        for call in calls:
            innermost[call.lines] += call.weight
        most = _most(innermost)
        return site_text(best if these[best] >= innermost[most] else most)

    @cached_property
    def _all_by_lines(self) -> Counter[Lines]:
        return self._by_lines(self.calls)

    @staticmethod
    def _by_lines(calls: Iterable[Call]) -> Counter[Lines]:
        """Return the weight below each line, given with the lines above it."""
        found = Counter[Lines]()
        for call in calls:
            for n in range(1, len(call.lines) + 1):
                found[call.lines[:n]] += call.weight
        return found


def _behind(calls: Iterable[Call], past_zero: bool = True) -> set[Call]:
    """Return operators with all that compute what they read, except, without ``past_zero``, what is multiplied by 0."""
    found = set(calls)
    todo = list(found)
    while todo:
        call = todo.pop()
        if past_zero or not call.is_zeroing:
            unseen = set(call.producers) - found
            found |= unseen
            todo += unseen
    return found


def _most(weights: Counter[Lines]) -> Lines:
    return max(weights, key=lambda lines: weights[lines], default=())
