"""Attention that is written out, followed operator by operator."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import pytest
import torch

from lightning_perf.probes.sampled_steps.code_lines import USER, SourceLine, StackView
from lightning_perf.probes.sampled_steps.written_attention import AttentionMatcher

HERE = SourceLine(USER, "net.py", 7, "forward")
Q, V = torch.zeros(2, 6, 3), torch.zeros(2, 5, 3)
SCORES = torch.zeros(2, 6, 5)


def stack(via: tuple[tuple[str, str], ...] = (), frame: Any = None) -> StackView:
    return StackView(HERE, via, (), frame)


def forward(matcher: AttentionMatcher, seen: StackView, between: bool = True) -> None:
    matcher.follow(seen, "bmm", (Q, V.mT), SCORES, 1000, is_backward=False)
    if between:
        matcher.follow(seen, "div", (SCORES, 3.0), SCORES, 10, is_backward=False)
    matcher.follow(seen, "_softmax", (SCORES, -1, False), SCORES, 100, is_backward=False)
    matcher.follow(seen, "relu", (Q,), Q, 10_000, is_backward=False)  # of another size
    matcher.follow(seen, "bmm", (SCORES, V), Q, 2000, is_backward=False)


def test_matmul_softmax_matmul_count_as_one_attention() -> None:
    matcher = AttentionMatcher()
    forward(matcher, stack())
    (attention,) = matcher.found.values()
    assert (attention.n, attention.rows, attention.columns, attention.via) == (1, 6, 5, "")
    assert attention.ns == 1000 + 10 + 100 + 2000
    assert matcher.seconds(attention) == pytest.approx(3110e-9)


def test_backward_pass_over_scores_of_that_size_belongs_to_it() -> None:
    matcher = AttentionMatcher()
    matcher.follow(stack(), "bmm", (SCORES, V), Q, 5000, is_backward=True)  # nothing found yet
    forward(matcher, stack(), between=False)
    matcher.follow(stack(), "_softmax_backward_data", (SCORES, SCORES), SCORES, 400, is_backward=True)
    matcher.follow(stack(), "mul", (Q,), Q, 9000, is_backward=True)
    (attention,) = matcher.found.values()
    assert matcher.seconds(attention) == pytest.approx((3100 + 400) / 1e9)


def test_function_of_torchs_that_wrote_it_out_is_named() -> None:
    matcher = AttentionMatcher()
    forward(matcher, stack(via=(("functional.py", "softmax"), ("functional.py", "multi_head_attention_forward"))))
    assert [attention.via for attention in matcher.found.values()] == ["multi_head_attention_forward"]


@pytest.mark.parametrize(
    ("softmax", "dropout", "fallback"),
    [
        ("_softmax", "bernoulli", ""),
        ("_safe_softmax", "", "inputs"),
        ("_safe_softmax", "bernoulli", "dropout"),
    ],
)
def test_fallback_of_torchs_function_is_told_from_attention_written_out(softmax, dropout, fallback) -> None:
    matcher = AttentionMatcher()
    forward(matcher, stack())  # on the line before; it must not decide
    line = StackView(SourceLine(USER, "net.py", 8, "forward"), (), (), None)
    matcher.follow(line, "bmm", (Q, V.mT), SCORES, 1, is_backward=False)
    matcher.follow(line, softmax, (SCORES, -1, False), SCORES, 1, is_backward=False)
    if dropout:
        matcher.follow(line, dropout, (SCORES, 0.9), SCORES, 1, is_backward=False)
    matcher.follow(line, "bmm", (SCORES, V), Q, 1, is_backward=False)
    assert [attention.fallback for attention in matcher.found.values()] == ["", fallback]


@pytest.mark.parametrize("second", [torch.zeros(2, 6, 4), torch.zeros(1, 6, 5)])
def test_softmax_alone_is_none_when_the_product_after_it_is_over_something_else(second: torch.Tensor) -> None:
    matcher = AttentionMatcher()
    matcher.follow(stack(), "bmm", (Q, V.mT), SCORES, 1, is_backward=False)
    matcher.follow(stack(), "_softmax", (SCORES, -1, False), SCORES, 1, is_backward=False)
    matcher.follow(stack(), "bmm", (second, V), Q, 1, is_backward=False)
    assert matcher.found == {}


class Held:
    """Can be watched."""


def test_variables_of_the_users_function_are_released_when_no_product_follows() -> None:
    matcher = AttentionMatcher()

    def user() -> weakref.ref[Held]:
        held = Held()
        seen = stack(frame=sys._getframe())
        matcher.follow(seen, "bmm", (Q, V.mT), SCORES, 1, is_backward=False)
        matcher.follow(seen, "_softmax", (SCORES, -1, False), SCORES, 1, is_backward=False)
        del seen
        return weakref.ref(held)

    assert user()() is None


def test_softmax_over_rows_of_another_length_is_none() -> None:
    matcher = AttentionMatcher()
    matcher.follow(stack(), "bmm", (Q, V.mT), SCORES, 1, is_backward=False)
    matcher.follow(stack(), "_softmax", (SCORES.view(2, 30), -1, False), SCORES.view(2, 30), 1, is_backward=False)
    matcher.follow(stack(), "bmm", (SCORES, V), Q, 1, is_backward=False)
    assert matcher.found == {}
