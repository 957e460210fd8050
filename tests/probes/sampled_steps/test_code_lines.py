"""The owner of running code, and which of its lines are in a loop."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import weakref
from collections.abc import Callable
from typing import Any

import lightning
import pytest
import torch

import lightning_perf
from lightning_perf.probes.sampled_steps.code_lines import (
    COMPILED,
    LIGHTNING,
    NOWHERE,
    OTHER,
    TORCH,
    USER,
    CodeLines,
    StackView,
    lines_above,
    owner_of,
    user_site,
)
from lightning_perf.probes.sampled_steps.function_calls import MIN_REPEATS, FunctionCall

Operator = Callable[[str], StackView | None]

_OF_TORCH = os.path.join(os.path.dirname(torch.__file__), "made_up.py")
_PACKAGES = sysconfig.get_paths()["purelib"]


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        (__file__, USER),
        ("<ipython-input-3-abc>", USER),
        ("<stdin>", USER),
        ("<frozen importlib._bootstrap>", TORCH),
        ("<eval_with_key>.7", COMPILED),
        (torch.nn.modules.linear.__file__, TORCH),
        (os.path.join(os.path.dirname(torch.__file__), "_inductor", "codecache.py"), COMPILED),
        ("/tmp/torchinductor_me/ab/cab.py", COMPILED),
        (lightning.__file__, LIGHTNING),
        (os.path.join(_PACKAGES, "transformers", "trainer.py"), OTHER),
        (os.__file__, TORCH),
        (os.path.join(os.path.dirname(lightning_perf.__file__), "hooks.py"), TORCH),
        (os.path.join(os.path.dirname(lightning_perf.__file__), "demo.py"), USER),
    ],
)
def test_owner_of_a_file_follows_from_its_path(file: str, owner: str) -> None:
    assert owner_of(file) == owner


def test_compiled_text_is_the_users_when_it_is_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["-c", "--fast"])
    assert owner_of("<string>") == USER
    monkeypatch.setattr(sys, "argv", ["train.py"])
    assert owner_of("<string>") == TORCH  # a library's, such as a proxy of multiprocessing


@pytest.fixture
def lines() -> CodeLines:
    return CodeLines()


@pytest.fixture
def operator(lines: CodeLines) -> Operator:
    """Called where an operator would be."""

    def called(name: str) -> StackView | None:
        return lines.inspect(sys._getframe(1), name, 0, 0, "forward")

    return called


def of_torch(source: str) -> dict[str, Any]:
    """Functions as if torch had them."""
    names: dict[str, Any] = {}
    exec(compile(source, _OF_TORCH, "exec"), names)
    return names


def loops_of(lines: CodeLines) -> dict[str, FunctionCall]:
    return {call.code.co_name: call for call in lines.loops()}


def test_loop_is_kept_with_its_line_and_rounds_when_an_operator_is_repeated(lines, operator):
    def forward() -> None:
        for _ in range(MIN_REPEATS):
            operator("select")

    forward()
    (call,) = loops_of(lines).values()
    (hits,) = call.hits.values()
    assert (call.code.co_name, hits.operator, hits.n, hits.n_operators) == (
        "forward",
        "select",
        MIN_REPEATS,
        MIN_REPEATS,
    )
    assert hits.line == forward.__code__.co_firstlineno + 2


def test_no_loop_is_kept_when_there_are_fewer_rounds(lines, operator):
    def forward() -> None:
        for _ in range(MIN_REPEATS - 1):
            operator("select")

    forward()
    assert loops_of(lines) == {}


def test_caller_has_no_loop_when_what_it_calls_once_has_one(lines, operator):
    def inner() -> None:
        for _ in range(2 * MIN_REPEATS):
            operator("mul")

    def forward() -> None:
        inner()

    forward()
    assert set(loops_of(lines)) == {"inner"}


def test_caller_has_the_loop_when_it_calls_a_function_again_and_again(lines, operator):
    def inner() -> None:
        operator("mul")
        operator("add")

    def forward() -> None:
        for _ in range(MIN_REPEATS):
            inner()

    forward()
    (call,) = loops_of(lines).values()
    (hits,) = call.hits.values()
    assert (call.code.co_name, hits.n, hits.n_operators) == ("forward", MIN_REPEATS, 2 * MIN_REPEATS)


def test_one_call_of_torchs_is_no_loop_however_many_operators_it_calls(lines, operator):
    many = of_torch("def many(operator):\n    for _ in range(100): operator('mul')")["many"]

    def forward() -> None:
        many(operator)

    forward()
    assert loops_of(lines) == {}


def test_taking_a_tensor_apart_is_a_loop_from_as_many_rows_on(lines, operator):
    def forward(n: int) -> None:
        stack = operator("unbind")
        assert stack is not None
        lines.unbound(stack, n)

    forward(MIN_REPEATS - 1)
    forward(MIN_REPEATS)
    (call,) = loops_of(lines).values()
    assert call.n_unbound == MIN_REPEATS


def test_what_calls_the_step_is_not_followed(lines, operator):
    def training_step() -> None:
        operator("mul")

    def script() -> None:
        lines.begin(sys._getframe())
        for _ in range(MIN_REPEATS):
            training_step()
        lines.end()

    script()
    assert loops_of(lines) == {}


def test_line_below_the_step_is_named_when_there_is_no_other_caller(lines, operator):
    def script() -> StackView | None:
        lines.begin(sys._getframe())
        return operator("mul")

    stack = script()
    assert stack is not None
    assert (stack.place.function, stack.place.owner) == ("script", USER)


def test_line_and_torchs_functions_above_an_operator_are_reported(lines, operator):
    outer = of_torch(
        "def softmax(operator):\n    return inner(operator)\ndef inner(operator):\n    return operator('s')"
    )

    def forward() -> StackView | None:
        return outer["softmax"](operator)  # here

    stack = forward()
    assert stack is not None
    assert stack.via == (("made_up.py", "inner"), ("made_up.py", "softmax"))
    assert (stack.place.line, stack.place.function) == (forward.__code__.co_firstlineno + 1, "forward")
    assert stack.place.text().endswith("# here")


def test_operator_within_a_compiled_region_is_not_reported(lines, operator):
    names: dict[str, Any] = {}
    exec(compile("def kernel(operator):\n    return operator('mul')", "<eval_with_key>.1", "exec"), names)
    assert names["kernel"](operator) is None
    assert loops_of(lines) == {}


def test_nothing_is_named_when_no_python_ran(lines):
    stack = lines.inspect(None, "mul", 0, 0, "forward")
    assert stack is not None
    assert stack.place == NOWHERE
    assert NOWHERE.text() == ""


class Held:
    """Can be watched."""


def test_frame_is_released_when_its_function_is_over_and_another_operator_comes(lines, operator):
    def forward() -> weakref.ref[Held]:
        held = Held()
        operator("mul")
        return weakref.ref(held)

    reference = forward()
    operator("add")
    assert reference() is None


def test_frame_is_released_at_the_end_of_the_step_when_no_operator_comes(lines, operator):
    def training_step() -> weakref.ref[Held]:
        held = Held()
        operator("mul")
        return weakref.ref(held)

    reference = training_step()
    lines.end()
    assert reference() is None


def test_frames_below_the_step_are_released_at_its_end(lines):
    def script() -> weakref.ref[Held]:
        held = Held()
        lines.begin(sys._getframe())
        return weakref.ref(held)

    reference = script()
    lines.end()
    assert reference() is None


@pytest.mark.parametrize(("function", "is_named"), [("fit", False), ("manual_backward", True)])
def test_users_line_is_named_unless_it_only_called_fit(function: str, is_named: bool) -> None:
    names: dict[str, Any] = {"user_site": user_site}
    exec(compile(f"def {function}():\n    return user_site()", lightning.__file__, "exec"), names)
    line = test_users_line_is_named_unless_it_only_called_fit.__code__.co_firstlineno + 5
    assert names[function]() == (f"{os.path.basename(__file__)}:{line}" if is_named else "")


def with_handlers(x):
    with torch.no_grad():
        x = x + 1
    try:
        x = x * 2
    except ValueError:
        return x
    for _ in range(2):
        x = x + 1
    return where_it_is(x)


def in_a_loop(x):
    found = None
    while found is None:
        with torch.no_grad():
            found = where_it_is(x)
    return found


def in_a_comprehension(x):
    (found,) = [where_it_is(x) for _ in range(1)]
    return found


def where_it_is(x):
    found = lines_above()
    return found.lines, [(n, found.frames[n - 1][0]) for n in found.loops]


@pytest.mark.parametrize(
    ("function", "is_loop"), [(with_handlers, False), (in_a_loop, True), (in_a_comprehension, True)]
)
def test_loop_around_a_call_is_found(function, is_loop):
    lines, loops = function(torch.ones(1))
    assert bool(loops) == is_loop
    for depth, _ in loops:
        file, line = lines[depth - 1]
        assert "where_it_is(x)" in linecache.getline(file, line)
