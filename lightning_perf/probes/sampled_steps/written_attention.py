"""Find attention written out: matrix multiplication, softmax and multiplication, matched by the size of the scores."""

from dataclasses import dataclass
from typing import Any

import torch

from .code_lines import SourceLine, StackView

_PRODUCTS = frozenset({"bmm", "baddbmm"})
_FALLBACK_SOFTMAX = "_safe_softmax"  # only scaled_dot_product_attention calls it, without a fused kernel
_SOFTMAX = frozenset({"_softmax", _FALLBACK_SOFTMAX})
_DROPOUT = "bernoulli"  # as `dropout` calls it on a CPU


@dataclass(slots=True)
class Attention:
    """Attention written out on one line: the size of its scores, torch's function around it, calls and time.

    ``fallback`` says why it is ``scaled_dot_product_attention`` without a fused kernel, as in ``AttentionCall``.
    """

    rows: int
    columns: int
    via: str
    fallback: str = ""
    n: int = 0
    ns: int = 0


class AttentionMatcher:
    """Matches the operators of one step with those of attention; ``found`` holds attention by line."""

    def __init__(self) -> None:
        self.found: dict[SourceLine, Attention] = {}
        self._backward_ns: dict[tuple[int, int], int] = {}  # by rows and columns
        self._product_ns = 0  # since the last product of the size of scores
        self._scores: tuple[int, int, int] | None = None  # numel, rows, columns
        # SourceLine and caller of the last softmax over scores; no frame, which would keep its variables alive.
        self._after_softmax: tuple[SourceLine, str, int, int, int] | None = None
        self._fallback = ""  # of the attention with that softmax

    def follow(self, stack: StackView, name: str, args: Any, out: Any, ns: int, is_backward: bool) -> None:
        """Match products and softmax over the same scores; in backward, add the time of operators of their size."""
        if is_backward:
            if self._backward_ns:
                self._follow_backward(args, out, ns)
            return
        if name in _PRODUCTS:
            after = self._after_softmax
            if after is not None and _numel(args[-2 if name == "bmm" else 1]) == after[2]:
                place, via, _, rows, columns = after
                attention = self.found.setdefault(place, Attention(rows, columns, via, self._fallback))
                attention.n += 1
                attention.ns += self._product_ns + ns
                self._backward_ns.setdefault((rows, columns), 0)
                self._after_softmax = None
            self._product_ns = ns
            self._scores = (out.numel(), out.shape[-2], out.shape[-1])
            return
        if self._scores is None:
            return
        if _numel(out) == self._scores[0]:
            self._product_ns += ns
            if name == _DROPOUT and self._fallback:
                self._fallback = "dropout"
        if name in _SOFTMAX and out.numel() == self._scores[0] and out.shape[-1] == self._scores[2]:
            via = next((f for file, f in stack.via if file == "functional.py" and "attention" in f), "")
            self._after_softmax = (stack.place, via, *self._scores)
            self._fallback = "inputs" if name == _FALLBACK_SOFTMAX else ""

    def _follow_backward(self, args: Any, out: Any, ns: int) -> None:
        shapes = {
            (int(each.shape[-2]), int(each.shape[-1]))
            for each in (*args, out)
            if isinstance(each, torch.Tensor) and each.dim() > 2
        }
        for size in shapes & self._backward_ns.keys():
            self._backward_ns[size] += ns
            return

    def seconds(self, attention: Attention) -> float:
        """Return seconds in forward and backward; backward time is divided among all attention of the same size."""
        size = (attention.rows, attention.columns)
        n = sum(each.n for each in self.found.values() if (each.rows, each.columns) == size)
        return (attention.ns + self._backward_ns.get(size, 0) * attention.n / max(1, n)) / 1e9


def _numel(value: Any) -> int:
    return value.numel() if isinstance(value, torch.Tensor) else -1
