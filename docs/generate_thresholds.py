"""Make the page reference/thresholds.md: the constants of the rules, with their sources."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from lightning_perf.rules import thresholds

INTRODUCTION = """\
# Thresholds

Each numeric constant that a [rule](../rules/index.md) uses. *Published*: the linked document names the value.
*Heuristic*: a choice, for the reason given. A share is a fraction of the training time unless the unit says otherwise.

| name | value | unit | status | why | used by |
|:--|--:|:--|:--|:--|:--|
"""


def page() -> str:
    """Return the whole page."""
    users = _users()
    return INTRODUCTION + "".join(
        f"| {name} | {row.value:g} | {row.unit} | {_status(row)} | {row.why} | {', '.join(users.get(name, []))} |\n"
        for name, row in thresholds.table().items()
    )


def _status(row: thresholds.Threshold) -> str:
    return f"[{row.status}]({row.source})" if row.source else row.status


def _users() -> dict[str, list[str]]:
    """Return the rules, as links, and the shared modules that import each constant."""
    found: dict[str, list[str]] = {}
    for path in sorted(Path(thresholds.__file__).parent.rglob("*.py")):
        code = re.match(r"pd\d{3}", path.stem)
        user = f"[{code[0].upper()}](../rules/{code[0].upper()}.md)" if code else path.stem
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("thresholds"):
                for each in node.names:
                    found.setdefault(each.name, []).append(user)
    return {name: sorted(each, key=lambda user: (user[0] != "[", user)) for name, each in found.items()}
