"""Make the page reference/cli.md from the declarations of the commands, which --help shows too."""

from __future__ import annotations

import inspect
import typing
from pathlib import Path
from typing import Any

from typer.models import ArgumentInfo, OptionInfo

from lightning_perf.cli.app import COMMANDS

_WORDS = {Path: "PATH", int: "N", float: "X"}

INTRODUCTION = """\
# Command line

`lightning-perf COMMAND --help` shows the same. Exit codes: 0 success; 1 a failure condition that you asked for was met;
2 invalid input, with one line on standard error. `run` returns the exit code of your command; a trial interrupted by
Ctrl-C returns 130.

Where a command takes a script, write after `--` what you would type without lightning-perf; the script stays unchanged.
`report`, `config`, `compare`, `history`, `bisect`, `analyze`, `view`, `explain` and `rules` need neither torch nor
lightning.

"""


def page() -> str:
    """Return the page."""
    parts = [INTRODUCTION, "| command | |\n|:--|:--|"]
    parts[-1] += "".join(f"\n| [{name}](#{name}) | {command.summary} |" for name, command in COMMANDS.items())
    return "\n\n".join([*parts, *(_command(name) for name in COMMANDS)]) + "\n"


def _command(name: str) -> str:
    target = COMMANDS[name].load()
    given, options = [], []
    for parameter in inspect.signature(target, eval_str=True).parameters.values():
        kind, info = parameter.annotation.__args__[0], parameter.annotation.__metadata__[0]
        if isinstance(info, ArgumentInfo):
            given.append((info.metavar or parameter.name.upper(), info.help))
        else:
            options.append((_spelled(parameter.name, kind, info), info.help, _default(parameter.default)))
    usage = " ".join(["lightning-perf", name, *(["[OPTIONS]"] if options else []), *(metavar for metavar, _ in given)])
    rows = [f"| `{_cell(metavar)}` | {_cell(told)} | |" for metavar, told in given]
    rows += [f"| `{spelled}` | {_cell(told)} | {default} |" for spelled, told, default in options]
    table = "\n".join(["| | | default |", "|:--|:--|:--|", *rows])
    return "\n\n".join(
        [
            f"## {name}",
            f"```\n{usage}\n```",
            inspect.cleandoc(target.__doc__).replace("``", "`"),
            *([table] if rows else []),
        ]
    )


def _spelled(name: str, kind: Any, info: OptionInfo) -> str:
    kinds = {one for one in typing.get_args(kind) or (kind,) if one is not type(None)}
    # In an Annotated option, typer treats the first name as the default.
    declared = [one for one in (info.default, *(info.param_decls or ())) if isinstance(one, str)]
    names = declared or [f"--{name.replace('_', '-')}"]
    if kinds == {bool}:
        return " / ".join([names[0], f"--no-{names[0][2:]}"]) if not declared else ", ".join(names)
    metavar = info.metavar or next((word for one, word in _WORDS.items() if one in kinds), "TEXT")
    return f"{', '.join(names)} {metavar}"


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else ""
    return "" if value in (None, "", inspect.Parameter.empty) else f"`{value}`"


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|").replace("<", "&lt;")
