"""One step, operator by operator: what makes the host wait, loops over tensors, attention that is written out.

Operators are seen below autograd by a ``TorchDispatchMode``. It calls each as it came, so results are the same to the
last bit. What torch does without an operator (``tolist``, ``numpy``, ``cpu`` of a tensor that is there already, and
``print``, which hides its own) is seen by standing in for the method during that one step.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_perf.records import AttentionCall, SyncCall, SyncCalls, TensorLoop

from .clock import now_ns as host_now_ns
from .code_lines import MIN_REPEATS, USER, Call, CodeLines, Moment, Place, Sight, Visits

_MAX_SITES = 32
_MAX_LOOPS = 8
_INDEXING = frozenset({"select", "slice", "index", "unbind", "_local_scalar_dense", "index_select", "gather"})
_ALWAYS_WAIT = {
    "nonzero": "nonzero",
    "masked_select": "boolean mask",
    "_unique2": "unique",
    "unique_dim": "unique",
    "unique_consecutive": "unique",
    "equal": "equal",
    "bincount": "bincount",
    "repeat_interleave": "repeat_interleave",
}
_PRODUCTS = frozenset({"bmm", "baddbmm"})
_SOFTMAX = frozenset({"_softmax", "_safe_softmax"})
_SOFTMAX_BACKWARD = "_softmax_backward_data"
_UNSEEN_BACKWARD = "a device's backward pass runs in a thread of its own, in which no line of yours is on the stack"


# Torch's own class has no types.
_Mode: Any = TorchDispatchMode


class _Site:
    """Calls of one kind from one line."""

    __slots__ = ("n", "ns", "text")

    def __init__(self, text: str) -> None:
        self.n = 0
        self.ns = 0
        self.text = text


class _Attention:
    """One product, softmax and product from one line."""

    __slots__ = ("columns", "n", "ns", "rows", "via")

    def __init__(self, rows: int, columns: int, via: str) -> None:
        self.rows, self.columns, self.via = rows, columns, via
        self.n = 0
        self.ns = 0


class StepLook(_Mode):  # type: ignore[misc]
    """Sees one step's operators, from ``open`` to ``close``.

    Args:
        device: Of the run; what lies elsewhere is not waited for.
        entry_ns: What it costs to get here for each operator, as ``entry_cost_ns`` says.
        now_ns: The host's clock.
    """

    supports_higher_order_operators = True

    def __init__(self, device: torch.device, entry_ns: float, now_ns: Callable[[], int] = host_now_ns) -> None:
        super().__init__()
        self.failure = ""
        self.phase = "other"
        self.lines = CodeLines()
        self._device = device
        self._is_host = device.type == "cpu"
        self._entry_ns = entry_ns
        self._now_ns = now_ns
        self._own_ns = 0
        self._begin_ns = self._end_ns = 0
        self._is_open = False
        self._is_inside = False  # a method that is stood in for
        self._thread = threading.get_ident()
        self._undos: list[Callable[[], None]] = []
        self._names: dict[Any, str] = {}
        self.sites: dict[tuple[Place, str, str], _Site] = {}
        self.attentions: dict[Place, _Attention] = {}
        self._attention_backward_ns: dict[tuple[int, int], int] = {}
        self._product_ns = 0  # since the last product of the size of scores
        self._scores: tuple[int, int, int] | None = None  # numel, rows, columns
        self._after_softmax: tuple[Sight, int, int, int] | None = None

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled regions stay compiled while this is in place (torch 2.10 and newer ask; older ones do not)."""
        return True

    # -- in and out ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """The step begins."""
        self._stand_in("tolist", "numpy", "cpu")
        self._stand_in_for_print()
        self._is_open = True
        self.__enter__()
        self._begin_ns = self._now_ns()

    def close(self) -> bool:
        """The step is over; False where a mode of the user's still stands above, and it must be tried again."""
        if not self._is_open:
            return True
        if not self._end_ns:
            self._end_ns = self._now_ns()
        while self._undos:
            self._undos.pop()()
        if _python_dispatch._get_current_dispatch_mode() is not self:
            return False
        self.__exit__(None, None, None)
        self._is_open = False
        return True

    def _stand_in(self, *methods: str) -> None:
        for name in methods:
            original = getattr(torch.Tensor, name)
            own = vars(torch.Tensor).get(name)

            def wrapped(tensor: Any, *args: Any, _name: str = name, _original: Any = original, **kwargs: Any) -> Any:
                return self._called(_name, tensor, _original, args, kwargs)

            setattr(torch.Tensor, name, wrapped)
            self._undos.append(_putter_back(torch.Tensor, name, wrapped, own))

    def _stand_in_for_print(self) -> None:
        original = torch._tensor_str._str

        def wrapped(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            return self._called("print(tensor)", tensor, original, args, kwargs)

        setattr(torch._tensor_str, "_str", wrapped)  # noqa: B010 - as mypy knows another signature
        self._undos.append(_putter_back(torch._tensor_str, "_str", wrapped, original))

    def _called(self, name: str, tensor: Any, original: Any, args: Any, kwargs: Any) -> Any:
        if self._is_inside or self._end_ns or threading.get_ident() != self._thread:
            return original(tensor, *args, **kwargs)
        begin = self._now_ns()
        self._is_inside = True
        try:
            return original(tensor, *args, **kwargs)
        finally:
            self._is_inside = False
            try:
                if self._is_on_device(tensor):
                    self._count(self.lines.place(), name, self._now_ns() - begin)
            except Exception as error:  # noqa: BLE001 - told in the record; the user's call has been made
                self._fail(error)

    # -- operators ----------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        begin = self._now_ns()
        sight, name = None, ""
        if not (self._end_ns or self.failure):
            try:
                name = self._name(func)
                sight = self.lines.see(sys._getframe(1), name, begin, self._own_ns)
            except Exception as error:  # noqa: BLE001 - told in the record; the operator itself must be called
                self._fail(error)
        called = self._now_ns()
        out = func(*args, **(kwargs or {}))
        done = self._now_ns()
        if sight is not None and not self.failure:
            try:
                self._add(sight, name, args, out, done - called)
                moment = Moment(done, self._own_ns + called - begin, self.lines.n_operators)
                for visits in sight.touched:
                    visits.last = moment
            except Exception as error:  # noqa: BLE001 - told in the record
                self._fail(error)
        self._own_ns += self._now_ns() - done + called - begin
        return out

    def _name(self, func: Any) -> str:
        name = self._names.get(func)
        if name is None:
            name = self._names[func] = str(getattr(func, "__name__", func)).split(".")[0].rstrip("_") or str(func)
        return name

    def _add(self, sight: Sight, name: str, args: Any, out: Any, ns: int) -> None:
        word = self._waits(name, args, out, sight)
        if word and not self._is_inside and not _is_optimizers(sight):
            self._count(sight.place, word, ns)
        if name == "unbind" and any(function == "__iter__" for _, function in sight.via):
            self.lines.unbound(sight, len(out))
        self._attend(sight, name, args, out, ns)

    def _waits(self, name: str, args: Any, out: Any, sight: Sight) -> str:
        """The word for an operator that makes the host wait; empty for others."""
        if name == "_local_scalar_dense":
            return _reading_word(sight) if self._is_on_device(args[0]) else ""
        if name in _ALWAYS_WAIT:
            return _ALWAYS_WAIT[name] if args and self._is_on_device(args[0]) else ""
        if name in ("index", "_unsafe_index", "index_put", "_index_put_impl"):
            is_masked = any(getattr(each, "dtype", None) in (torch.bool, torch.uint8) for each in args[1])
            is_one = name.endswith(("put", "impl")) and args[2].numel() == 1  # becomes a masked_fill: nobody waits
            return "boolean mask" if is_masked and not is_one and self._is_on_device(args[0]) else ""
        if self._is_host:
            return ""
        if name == "_to_copy":
            return "cpu" if out.device.type == "cpu" and self._is_on_device(args[0]) else ""
        if name == "copy":
            return "copy_" if args[0].device.type == "cpu" and self._is_on_device(args[1]) else ""
        return ""

    def _attend(self, sight: Sight, name: str, args: Any, out: Any, ns: int) -> None:
        """Follows products, softmax and products over the same scores; in the backward pass, all over their size."""
        if self.phase == "backward":
            if self._attention_backward_ns:
                self._attend_backward(name, args, out, ns)
            return
        if name in _PRODUCTS:
            after = self._after_softmax
            if after is not None and _numel(args[-2 if name == "bmm" else 1]) == after[1]:
                softmax_sight, _, rows, columns = after
                self._attended(softmax_sight, rows, columns, self._product_ns + ns)
                self._after_softmax = None
            self._product_ns = ns
            self._scores = (out.numel(), out.shape[-2], out.shape[-1])
            return
        if self._scores is None:
            return
        if _numel(out) == self._scores[0]:
            self._product_ns += ns
        if name in _SOFTMAX and out.numel() == self._scores[0] and out.shape[-1] == self._scores[2]:
            self._after_softmax = (sight, *self._scores)

    def _attended(self, sight: Sight, rows: int, columns: int, ns: int) -> None:
        attention = self.attentions.get(sight.place)
        if attention is None:
            via = next((f for file, f in sight.via if file == "functional.py" and "attention" in f), "")
            attention = self.attentions[sight.place] = _Attention(rows, columns, via)
        attention.n += 1
        attention.ns += ns
        self._attention_backward_ns.setdefault((rows, columns), 0)

    def _attend_backward(self, name: str, args: Any, out: Any, ns: int) -> None:
        shapes = {
            (int(each.shape[-2]), int(each.shape[-1]))
            for each in (*args, out)
            if isinstance(each, torch.Tensor) and each.dim() > 2
        }
        for size in shapes & self._attention_backward_ns.keys():
            self._attention_backward_ns[size] += ns
            return

    def _count(self, place: Place, word: str, ns: int) -> None:
        key = (place, word, self.phase)
        site = self.sites.get(key)
        if site is None:
            site = self.sites[key] = _Site(place.text())
        site.n += 1
        site.ns += ns

    def _is_on_device(self, tensor: Any) -> bool:
        return bool(tensor.device.type == self._device.type)

    def _fail(self, error: Exception) -> None:
        self.failure = self.failure or f"{type(error).__name__}: {error}"

    # -- what it comes to ---------------------------------------------------------------------------------------------

    def step_s(self) -> float:
        """How long the step took, without what looking cost as far as known."""
        return max(1e-9, (self._end_ns - self._begin_ns - self._own_ns - self.lines.n_operators * self._entry_ns) / 1e9)

    def all_spent_ns(self) -> int:
        """What looking has cost."""
        return int(self._own_ns + self.lines.n_operators * self._entry_ns)

    def loop_s(self, visits: Visits) -> float:
        """Seconds between the first and the last visit of a place, without what looking cost."""
        first, last = visits.first, visits.last
        looking_ns = last.own_ns - first.own_ns + (last.n_operators - first.n_operators) * self._entry_ns
        return max(0.0, (last.ns - first.ns - looking_ns) / 1e9)

    def attention_s(self, attention: _Attention) -> float:
        """Seconds in it, forward and backward."""
        size = (attention.rows, attention.columns)
        n = sum(each.n for each in self.attentions.values() if (each.rows, each.columns) == size)
        return (attention.ns + self._attention_backward_ns.get(size, 0) * attention.n / max(1, n)) / 1e9


def entry_cost_ns(rounds: int = 100) -> float:
    """What a dispatch mode costs each operator here, beyond what it times itself: the least of three rounds."""
    tensor = torch.zeros(1, device="cpu")
    plain, watched = [], []
    for _ in range(3):
        plain.append(_time_views(tensor, rounds))
        with _Nothing():
            watched.append(_time_views(tensor, rounds))
    return max(0.0, (min(watched) - min(plain)) / rounds)


def _time_views(tensor: torch.Tensor, rounds: int) -> int:
    begin = host_now_ns()
    for _ in range(rounds):
        tensor.view(1)
    return host_now_ns() - begin


class _Nothing(_Mode):  # type: ignore[misc]
    """A mode that only hands on."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def can_look_at_compiled() -> bool:
    """Whether compiled regions stay compiled below a dispatch mode: older versions of torch fall back to eager."""
    return hasattr(_Mode, "ignore_compile_internals")


def sync_calls(looks: list[StepLook], device: str, warned: dict[Place, int] | None = None) -> SyncCalls | None:
    """What the looks saw; None before the first.

    Args:
        looks: Of whole steps.
        device: Its kind.
        warned: Lines that a device's own warning named, and how often in the one step that was asked; None unasked.
    """
    looks = [look for look in looks if not look.failure]
    if not looks:
        return None
    n = len(looks)
    step_s = sum(look.step_s() for look in looks) / n
    return SyncCalls(
        n_steps=n,
        step_s=step_s,
        device=device,
        calls=_calls(looks, device, warned or {}),
        loops=_loops(looks),
        attentions=_attentions(looks, device),
        operators_per_step=sum(look.lines.n_operators for look in looks) / n,
        unseen={} if device == "cpu" else {"backward": _UNSEEN_BACKWARD},
    )


def _calls(looks: list[StepLook], device: str, warned: dict[Place, int]) -> tuple[SyncCall, ...]:
    merged: dict[tuple[Place, str, str], list[float]] = {}
    texts: dict[Place, str] = {}
    for look in looks:
        for key, site in look.sites.items():
            total = merged.setdefault(key, [0.0, 0.0])
            total[0] += site.n
            total[1] += site.ns / 1e9
            texts[key[0]] = site.text
    n = len(looks)
    calls = [
        SyncCall(
            operator=word,
            file=place.file,
            line=place.line,
            function=place.function,
            per_step=count / n,
            cost_s=seconds / n,
            owner=place.owner,  # type: ignore[arg-type]
            phase=phase,
            code=texts[place],
        )
        for (place, word, phase), (count, seconds) in merged.items()
    ]
    known = {(call.file, call.line) for call in calls}
    calls += [
        SyncCall(
            operator="synchronises",
            file=place.file,
            line=place.line,
            function=place.function,
            per_step=float(count),
            owner=place.owner,  # type: ignore[arg-type]
            code=place.text(),
            source="device",
        )
        for place, count in warned.items()
        if (place.file, place.line) not in known
    ]
    return tuple(sorted(calls, key=lambda call: (call.owner != USER, -call.per_step))[:_MAX_SITES])


def _loops(looks: list[StepLook]) -> tuple[TensorLoop, ...]:
    found: dict[tuple[str, int], list[TensorLoop]] = {}
    for look in looks:
        in_step: dict[tuple[str, int], TensorLoop] = {}
        for call in look.lines.loops():
            loop = _loop(look, call)
            if loop is None:
                continue
            before = in_step.get((loop.file, loop.line))
            if before is not None:
                loop = _added(before, loop)
            in_step[loop.file, loop.line] = loop
        for key, loop in in_step.items():
            found.setdefault(key, []).append(loop)
    means = [_mean(loops, len(looks)) for loops in found.values()]
    return tuple(sorted(means, key=lambda loop: -loop.cost_s)[:_MAX_LOOPS])


def _loop(look: StepLook, call: Call) -> TensorLoop | None:
    """The loop of a call that takes a tensor apart; None where what is repeated is something else."""
    taking = [v for v in call.visits.values() if v.operator in _INDEXING and v.n >= MIN_REPEATS]
    repeated = [v for v in call.visits.values() if v.n >= MIN_REPEATS]
    if taking:
        named = max(taking, key=lambda v: v.n)
    elif call.n_unbound >= MIN_REPEATS:
        unbinding = [v for v in call.visits.values() if v.operator == "unbind"]
        inside = repeated or [v for v in call.visits.values() if v.n_operators >= MIN_REPEATS]
        if not inside or not unbinding:
            return None
        named = unbinding[0]
        repeated = inside
    else:
        return None
    spent_s = max(look.loop_s(v) for v in repeated)
    return TensorLoop(
        file=call.code.co_filename,
        line=named.line,
        function=call.code.co_name,
        operator=named.operator,
        repeats=max(named.n, call.n_unbound),
        operators_per_step=call.n_operators,
        cost_s=spent_s,
        share=min(1.0, spent_s / look.step_s()),
        code=Place(USER, call.code.co_filename, named.line, "").text(),
    )


def _added(one: TensorLoop, other: TensorLoop) -> TensorLoop:
    return TensorLoop(
        file=one.file,
        line=one.line,
        function=one.function,
        operator=one.operator,
        repeats=max(one.repeats, other.repeats),
        operators_per_step=one.operators_per_step + other.operators_per_step,
        cost_s=one.cost_s + other.cost_s,
        share=min(1.0, one.share + other.share),
        code=one.code,
    )


def _mean(loops: list[TensorLoop], n: int) -> TensorLoop:
    one = loops[0]
    return TensorLoop(
        file=one.file,
        line=one.line,
        function=one.function,
        operator=one.operator,
        repeats=max(loop.repeats for loop in loops),
        operators_per_step=sum(loop.operators_per_step for loop in loops) / n,
        cost_s=sum(loop.cost_s for loop in loops) / n,
        share=sum(loop.share for loop in loops) / n,
        code=one.code,
    )


def _attentions(looks: list[StepLook], device: str) -> tuple[AttentionCall, ...]:
    n = len(looks)
    found: dict[Place, list[tuple[StepLook, _Attention]]] = {}
    for look in looks:
        for place, attention in look.attentions.items():
            found.setdefault(place, []).append((look, attention))
    is_host = device == "cpu"
    calls = []
    for place, pairs in found.items():
        one = pairs[0][1]
        calls.append(
            AttentionCall(
                file=place.file,
                line=place.line,
                function=place.function,
                per_step=sum(a.n for _, a in pairs) / n,
                rows=one.rows,
                columns=one.columns,
                cost_s=sum(look.attention_s(a) for look, a in pairs) / n if is_host else None,
                share=min(1.0, sum(k.attention_s(a) / k.step_s() for k, a in pairs) / n) if is_host else None,
                via=one.via,
                code=place.text(),
            )
        )
    return tuple(sorted(calls, key=lambda call: -(call.cost_s or call.per_step))[:_MAX_LOOPS])


def _reading_word(sight: Sight) -> str:
    """How the user wrote that a number is read."""
    if any(function == "__format__" for _, function in sight.via):
        return "format(tensor)"
    frame = sight.frame
    if frame is None or not (0 <= frame.f_lasti < len(frame.f_code.co_code)):
        return "item"
    operation = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    is_asked = ("JUMP" in operation and "_IF_" in operation) or operation in ("UNARY_NOT", "TO_BOOL")
    return "bool(tensor)" if is_asked and not sight.via else "item"


def _is_optimizers(sight: Sight) -> bool:
    """Torch's optimizers keep their counters on the host: reading these waits for nothing."""
    return any(function == "step" or file.startswith(("adam", "sgd", "optimizer")) for file, function in sight.via)


def _numel(value: Any) -> int:
    return value.numel() if isinstance(value, torch.Tensor) else -1


def _putter_back(owner: Any, name: str, wrapped: Any, original: Any) -> Callable[[], None]:
    def put_back() -> None:
        if vars(owner).get(name) is not wrapped:  # somebody has replaced it since: theirs calls ours
            return
        if original is None:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    return put_back
