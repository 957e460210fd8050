"""Read a case of the clinic: a script that states what is wrong with it.

A case is a Lightning script that takes no arguments. Its docstring holds a description, a line ``---`` and YAML:

    expect: PD107            the code, or the codes, that name its true cause (PD000 where no rule looks for it); absent
                             in a healthy case
    second: PD602            in a case with two faults: the code of the smaller one
    also: {CODE: why}        codes that are right first answers, too, where their gain is certain (medium or high):
                             if they name the marked line, or, where no line is marked or the code is that of the
                             smaller of two faults, if the expected one is among the first three
    half: tune               thresholds may be tuned on it; ``score``: they may not
    fix: {OLD: NEW}          replacements in the script that remove the fault (with two faults: the larger one)
    with: [ID]               or treatments that remove it, timed with the values that the expected finding recommends
    own_process: true        started as a command of its own (it starts further processes)
    needs: fast-bf16         what the CPU must have for the fault to cost time; it counts as a fault only where its fix
                             gains time, and as healthy elsewhere
    cores: 2                 cores that it may use; one if absent, so that several cases can run at once
    fast: true               part of the subset that the tests run

A comment ``# costs time`` marks the line that a finding should name. A fault of host code has at least one such line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import yaml

HERE = Path(__file__).parent
FOLDERS = {"fault": "cases", "double": "double", "healthy": "healthy"}
ON_DEVICE = HERE / "device"  # the same folders, with trainings that need a CUDA device
KEYS = {"expect", "also", "second", "half", "fix", "with", "own_process", "cores", "fast", "needs"}

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C: ten times as fast

MARK = "# costs time"
"""At the end of a line that the first finding should name."""

Kind = Literal["fault", "double", "healthy"]


class CostlyLine(NamedTuple):
    """A line that takes the time of a fault.

    Attributes:
        function: The function that holds it; empty at module level.
        line: Its number, from 1.
    """

    function: str
    line: int


class Case(NamedTuple):
    """One training.

    Attributes:
        name: The script's name.
        kind: ``fault``, ``double`` (two faults) or ``healthy``.
        script: Its path.
        what: What is wrong with it, or what kind of healthy training it is, in one line.
        expect: Codes that name the true cause; empty where it is healthy.
        second: The code of the smaller fault; empty where there is one fault at most.
        also: Codes that are right answers, too, where their gain is certain.
        half: ``tune`` or ``score``.
        fix: Text of the script → its replacement, which removes the fault.
        treatments: Treatments that remove the fault.
        own_process: Whether it needs a process that was not forked.
        n_cores: Cores that it may use.
        is_fast: Whether it belongs to the subset of the tests.
        needs: ``fast-bf16``: a CPU whose bf16 matrix multiplication is faster than fp32; empty if any CPU will do.
        costly_lines: Lines that a finding should name; empty where no line is to blame.
    """

    name: str
    kind: Kind
    script: Path
    what: str
    expect: tuple[str, ...] = ()
    second: str = ""
    also: tuple[str, ...] = ()
    half: str = "score"
    fix: dict[str, str] = {}
    treatments: tuple[str, ...] = ()
    own_process: bool = False
    n_cores: int = 1
    is_fast: bool = False
    needs: str = ""
    costly_lines: tuple[CostlyLine, ...] = ()

    @property
    def has_fix(self) -> bool:
        """Whether the case without its fault can be measured."""
        return bool(self.fix or self.treatments)

    def fixed_script(self) -> str:
        """Return the script without its fault; unchanged where treatments remove the fault.

        Raises:
            ValueError: A text to replace does not occur exactly once.
        """
        head, text = _parted(self.script.read_text(encoding="utf-8"))
        for old, new in self.fix.items():
            if text.count(old) != 1:
                raise ValueError(f"{self.script}: {old!r} occurs {text.count(old)} times, expected once")
            text = text.replace(old, new)
        return head + text


def read(path: Path, kind: Kind) -> Case:
    """Read what a script states about itself.

    Raises:
        ValueError: Its docstring does not have the expected form.
    """
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    docstring = ast.get_docstring(tree) or ""
    text, line, known = docstring.partition("\n---\n")
    facts = yaml.load(known, _LOADER) if line else None
    if not isinstance(facts, dict) or set(facts) - KEYS or facts.get("half") not in ("tune", "score"):
        raise ValueError(f"{path}: expected a docstring with '---' and YAML of {sorted(KEYS)}, got {facts!r}")
    return Case(
        name=path.stem,
        kind=kind,
        script=path,
        what=" ".join(text.split()),
        expect=_listed(facts.get("expect")),
        second=facts.get("second", ""),
        also=tuple(facts.get("also", ())),
        half=facts["half"],
        fix=facts.get("fix", {}),
        treatments=_listed(facts.get("with")),
        own_process=facts.get("own_process", False),
        n_cores=facts.get("cores", 1),
        is_fast=facts.get("fast", False),
        needs=facts.get("needs", ""),
        costly_lines=_costly_lines(source, tree),
    )


def read_all(root: Path = HERE) -> list[Case]:
    """Return every case in the folders of ``root``, by kind and name."""
    return [read(path, kind) for kind, folder in FOLDERS.items() for path in sorted((root / folder).glob("*.py"))]


def _costly_lines(source: str, tree: ast.Module) -> tuple[CostlyLine, ...]:
    numbers = [number for number, line in enumerate(source.splitlines(), 1) if line.endswith(MARK)]
    functions = list(_functions(tree)) if numbers else []  # outer ones first
    return tuple(
        CostlyLine(next((f.name for f in reversed(functions) if f.lineno <= number <= (f.end_lineno or 0)), ""), number)
        for number in numbers
    )


def _functions(node: ast.AST) -> Iterator[ast.FunctionDef]:
    """Yield the functions in a node, outer ones first; expressions, which take most of the time, hold none."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield child
        if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield from _functions(child)


def _listed(value: str | list[str] | None) -> tuple[str, ...]:
    return () if value is None else (value,) if isinstance(value, str) else tuple(value)


def _parted(text: str) -> tuple[str, str]:
    """Return the docstring, which quotes the texts to replace, and the rest."""
    end = text.index('"""', text.index('"""') + 3) + 3
    return text[:end], text[end:]
