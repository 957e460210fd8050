"""Run mutation tests: insert small faults one at a time and check that a test fails.

    pip install -e '.[mutation]'
    python benchmarks/mutation/run.py --sample 400 --write      and write docs/benchmarks/mutation.md

Faults come from cosmic-ray's core operators (another arithmetic operator, a number changed by one, a negated condition,
``and`` instead of ``or``, a loop that never runs …) and are inserted into ``stats``, ``rules``, ``records`` and the
interval algebra of ``traces``. A random sample is tested, the same for the same ``--seed``. Type annotations are left
out, since they have no effect at run time. Each fault is written into a copy of the repository, where a forked process
runs the tests of that file and, if these pass, those of the whole package. A fault is *killed* if a test fails or never
ends.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import NamedTuple

from scipy.stats import binomtest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "benchmarks" / "mutation.md"
PACKAGE = "lightning_perf"
COPIED = (PACKAGE, "tests", "docs", "pyproject.toml", "benchmarks")
LIMIT_S = 240
"""Time limit of a test run; a run that exceeds it counts as killed."""


class Fault(NamedTuple):
    """One change of one file.

    Attributes:
        file: Path relative to the repository.
        operator: cosmic-ray's name of the kind of change.
        code: The whole file with the fault.
        diff: The change as a diff.
    """

    file: str
    operator: str
    code: str
    diff: str


class Outcome(NamedTuple):
    """Outcome of a fault."""

    fault: Fault
    is_killed: bool
    wall_s: float


def files() -> list[str]:
    """Return the files to insert faults into."""
    folders = [REPOSITORY / PACKAGE / name for name in ("stats", "rules", "records")]
    found = [path for folder in folders for path in folder.rglob("*.py") if path.name != "__init__.py"]
    found.append(REPOSITORY / PACKAGE / "traces" / "intervals.py")
    return sorted(str(path.relative_to(REPOSITORY)) for path in found)


def tests_for(file: str) -> Iterator[list[str]]:
    """Yield arguments of pytest, the most specific tests first."""
    path = Path(file)
    part = path.parts[1]
    if path.stem.startswith("pd"):
        yield ["tests/rules/test_cases.py", "tests/rules/test_answers.py", "-k", path.stem[:5].upper()]
    if part == "traces":
        yield ["tests/traces/test_intervals.py"]
        return
    beside = f"tests/{part}/test_{path.stem}.py"
    if (REPOSITORY / beside).exists():
        yield [beside]
    yield {
        "records": ["tests/records", "tests/rules", "tests/stats", "tests/reports"],
        "stats": ["tests/stats", "tests/rules"],
    }.get(part, [f"tests/{part}"])


def all_faults(names: Sequence[str]) -> list[tuple[str, str, int]]:
    """Return file, operator and occurrence of every possible fault."""
    from cosmic_ray.ast import ast_nodes, get_ast

    found = []
    for file in names:
        nodes = list(ast_nodes(get_ast((REPOSITORY / file).read_text(encoding="utf-8"))))
        for name, operator in operators().items():
            n = sum(len(list(operator.mutation_positions(node))) for node in nodes)
            found += [(file, name, occurrence) for occurrence in range(n)]
    return found


def operators() -> dict[str, object]:
    """Return cosmic-ray's core operators that need no arguments."""
    from cosmic_ray.operators.provider import OperatorProvider

    provider = OperatorProvider()
    return {name: provider[name]() for name in provider if not provider[name].arguments()}


def fault_of(file: str, name: str, occurrence: int) -> Fault | None:
    """One of them; None where it changes annotations only, or is no Python."""
    from cosmic_ray.mutating import mutate_code

    before = (REPOSITORY / file).read_text(encoding="utf-8")
    after = mutate_code(before, operators()[name], occurrence)
    if after is None or _meaning(after) in (None, _meaning(before)):
        return None
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    return Fault(file, name, after, "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@"))))


def _meaning(code: str) -> str | None:
    """Return the syntax tree without annotations; None if it cannot be parsed."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.dump(tree)


def run_tests_with(fault: Fault, copy: Path) -> Outcome:
    """Run the tests with the fault inserted."""
    target = copy / fault.file
    before = target.read_bytes()
    started = time.monotonic()
    try:
        target.write_text(fault.code, encoding="utf-8")
        is_killed = any(not _passes(copy, arguments) for arguments in tests_for(fault.file))
    finally:
        target.write_bytes(before)
    return Outcome(fault, is_killed, time.monotonic() - started)


def _passes(copy: Path, arguments: Sequence[str]) -> bool:
    pid = os.fork()
    if pid == 0:  # third-party modules are already imported
        with contextlib.suppress(BaseException):
            signal.alarm(LIMIT_S)
            os.chdir(copy)
            sys.path.insert(0, str(copy))
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, 1)
            os.dup2(devnull, 2)
            import pytest

            os._exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--no-header", *arguments])))
        os._exit(99)
    return os.waitpid(pid, 0)[1] == 0


def preload() -> None:
    """Import third-party modules once, before forking."""
    import hypothesis.strategies
    import msgspec
    import numpy
    import pytest
    import rich.console
    import scipy.stats
    import yaml

    assert all((hypothesis, msgspec, numpy, pytest, rich, scipy, yaml))


def page(outcomes: Sequence[Outcome], n_all: int, wall_s: float, command: str) -> str:
    """Return the documentation page."""
    parts: dict[str, list[Outcome]] = {}
    for one in outcomes:
        parts.setdefault(Path(one.fault.file).parts[1], []).append(one)
    rows = [f"| `{name}` | {_share(of)} |" for name, of in sorted(parts.items())]
    survivors = [
        f"- `{one.fault.file}`, {one.fault.operator}\n\n  ```diff\n  "
        + one.fault.diff.replace("\n", "\n  ")
        + "\n  ```"
        for one in outcomes
        if not one.is_killed
    ]
    return "\n".join(
        (
            "# Mutation testing",
            "",
            f"Written by `python benchmarks/mutation/run.py {command}` in {wall_s / 60:.0f} minutes; the method is",
            f"described at the top of that script. {len(outcomes)} of {n_all:,} possible faults were drawn at random",
            "and tested.",
            "",
            "| part | killed |",
            "| --- | --- |",
            *rows,
            f"| all | {_share(outcomes)} |",
            "",
            "## Surviving faults",
            "",
            "Many of these have no observable effect: strings and small numbers compared by identity or by order",
            "instead of by equality, sums by `^` of numbers without common bits, a threshold that no value",
            "equals, a default for a value that is always present, a rounding hidden by the next one, the first",
            "part of a simulation that the mean leaves out. The others change figures in sentences and evidence",
            "that no test case distinguishes.",
            "",
            *survivors,
            "",
        )
    )


def _share(outcomes: Sequence[Outcome]) -> str:
    n = sum(one.is_killed for one in outcomes)
    low, high = binomtest(n, len(outcomes)).proportion_ci(0.95, method="wilson")
    return f"{n} of {len(outcomes)} = {n / len(outcomes):.0%} ({low:.0%} to {high:.0%})".replace("%", " %")


def main() -> None:
    """Draw faults, test them, print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--sample", type=int, default=400, help="number of faults (default: 400)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random sample")
    parser.add_argument("--only", default="", metavar="TEXT", help="only files whose path contains this")
    parser.add_argument("--at-once", type=int, default=2, help="number of processes (default: 2)")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(REPOSITORY)}")
    arguments = parser.parse_args()
    names = [file for file in files() if arguments.only in file]
    places = all_faults(names)
    random.Random(arguments.seed).shuffle(places)
    preload()
    started = time.monotonic()
    drawn: list[Fault] = []
    for place in places:
        if len(drawn) == arguments.sample:
            break
        if (fault := fault_of(*place)) is not None:
            drawn.append(fault)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.at_once) as pool:
        copies: Queue[Path] = Queue()
        for number in range(arguments.at_once):
            copies.put(_copied(Path(folder) / str(number)))

        def run(fault: Fault) -> Outcome:
            copy = copies.get()
            try:
                return run_tests_with(fault, copy)
            finally:
                copies.put(copy)

        for one in pool.map(run, drawn):
            outcomes.append(one)
            outcome = "killed" if one.is_killed else "SURVIVED"
            print(
                f"{len(outcomes):4} {outcome:8} {one.wall_s:5.1f} s {one.fault.file} {one.fault.operator}", flush=True
            )
            if not one.is_killed:
                print(one.fault.diff, flush=True)
    text = page(outcomes, len(places), time.monotonic() - started, " ".join(sys.argv[1:]))
    print(text.split("## Surviving faults")[0])
    if arguments.write:
        PAGE.write_text(text, encoding="utf-8")


def _copied(folder: Path) -> Path:
    for name in COPIED:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    shared = REPOSITORY.parent / "shared"
    if shared.exists():  # traces that some tests read, next to the repository
        (folder.parent / "shared").symlink_to(shared) if not (folder.parent / "shared").exists() else None
    return folder


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    main()
