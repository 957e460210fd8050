"""Code that catches any error raises errors of signal handlers again: they are meant for the training."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "lightning_perf"

BROAD = {"RuntimeError", "Exception", "BaseException"}
"""What handlers of signals raise: torch's raises RuntimeError when a loader worker was killed."""

PASSES_ON = {
    "raise_if_from_signal",
    "error_text",
    "is_from_signal",
    "fail",
    "_fail",
    "_on_fail",
    "on_fail",
    "switch_off",
}
"""Functions that raise an error of a signal handler again."""

ELSEWHERE = (
    "cli/",
    "tensorboard_plugin/",
    "probes/loader/child.py",
    "probes/loader/stages.py",
    "probes/background.py",
    "trials/bootstrap/",
    "trials/reach.py",
)
"""Code of commands, child processes and threads of its own: no training is interrupted there."""

LATER = {
    ("run.py", "_end_without_hooks"),
    ("probes/ranks/probe.py", "share"),
    ("probes/replay/threads.py", "_answer_each"),
    ("trials/modes.py", "fit"),
}
"""Functions that raise the error afterwards, or that the interpreter calls at the end of the training."""


def _names(node: ast.AST | None) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} if node is not None else set(BROAD)


def _passes_on(handler: ast.ExceptHandler) -> bool:
    parts = [part for statement in handler.body for part in ast.walk(statement)]
    called = [part.func for part in parts if isinstance(part, ast.Call)]
    names = {func.id if isinstance(func, ast.Name) else getattr(func, "attr", "") for func in called}
    return bool(names & PASSES_ON) or any(isinstance(part, ast.Raise) for part in parts)


def _swallowing(tree: ast.AST) -> Iterator[int]:
    """Give the lines that catch any error and pass on none."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and _names(node.type) & BROAD and not _passes_on(node):
            yield node.lineno
        is_suppress = isinstance(node, ast.Call) and ast.unparse(node.func) == "contextlib.suppress"
        if is_suppress and set().union(*map(_names, node.args)) & BROAD:
            yield node.lineno


def _files() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if not str(path.relative_to(PACKAGE)).startswith(ELSEWHERE)]


def test_code_in_the_training_process_swallows_no_error_of_a_signal_handler() -> None:
    found = []
    for path in _files():
        tree, name = ast.parse(path.read_text(encoding="utf-8")), str(path.relative_to(PACKAGE))
        functions = [
            node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and (name, node.name) in LATER
        ]
        skipped = {line for function in functions for line in _swallowing(function)}
        found += [f"{name}:{line}" for line in _swallowing(tree) if line not in skipped]
    assert found == []


@pytest.mark.parametrize(
    ("code", "n"),
    [
        ("try: f()\nexcept Exception: pass", 1),
        ("try: f()\nexcept (KeyError, RuntimeError): pass", 1),
        ("try: f()\nexcept: pass", 1),
        ("try: f()\nexcept KeyError: pass", 0),
        ("try: f()\nexcept Exception as error: raise_if_from_signal(error)", 0),
        ("try: f()\nexcept Exception: raise", 0),
        ("with contextlib.suppress(RuntimeError): f()", 1),
        ("with interrupts.suppress(RuntimeError): f()", 0),
    ],
)
def test_swallowing_code_is_found(code: str, n: int) -> None:
    assert len(list(_swallowing(ast.parse(code)))) == n
