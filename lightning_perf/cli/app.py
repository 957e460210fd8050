"""The command line: which verbs there are, and how errors leave it.

A verb's module is imported when the verb is called: ``lightning-perf --help`` is quick and needs no torch.
Exit codes stand in ``codes``.
"""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from lightning_perf import __version__
from lightning_perf.errors import PerfDoctorError
from lightning_perf.reports.wording import fit_encoding, line

from .codes import BAD_INPUT


class Verb(NamedTuple):
    """Where a verb's function stands (``module:function``), the line that ``--help`` shows, and whether it is given a
    command, behind whose first word all options are that command's."""

    home: str
    summary: str
    takes_command: bool = False


VERBS = {
    "demo": Verb("lightning_perf.cli.demo:demo", "Trains a small model with a planted fault and diagnoses it."),
    "run": Verb("lightning_perf.cli.run:run", "Runs any Lightning command with PerfDoctor and treatments added.", True),
    "trial": Verb(
        "lightning_perf.cli.trial:trial", "Measures the prescriptions on a command and prints the ladder.", True
    ),
    "data": Verb("lightning_perf.cli.data:data", "Takes the training loader of a command apart.", True),
    "analyze": Verb("lightning_perf.cli.analyze:analyze", "Says what host and device did in PyTorch traces."),
    "report": Verb("lightning_perf.cli.report:report", "Draws a saved session."),
    "compare": Verb("lightning_perf.cli.compare:compare", "Says what got faster or slower between two sessions."),
    "view": Verb("lightning_perf.cli.view:view", "Opens a trace in an offline Perfetto."),
    "explain": Verb("lightning_perf.cli.explain:explain", "Says what a rule measures, why it costs and what to do."),
    "rules": Verb("lightning_perf.cli.rules:rules", "Lists all rules."),
}


class LazyVerbs(TyperGroup):
    """A group that knows its verbs by name and line, and imports the one that is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        verb = VERBS.get(cmd_name)
        return None if verb is None else TyperCommand(cmd_name, help=verb.summary)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, stub, rest = super().resolve_command(ctx, args)
        return name, stub if name is None else _load(name), rest


app = typer.Typer(
    name="lightning-perf",
    cls=LazyVerbs,
    add_completion=False,
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    """Says why a PyTorch Lightning training is slow, what to change and how much it gains."""
    if version:
        print(f"lightning-perf {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(BAD_INPUT)


def main() -> None:
    """The entry point; exits with 2 and one line on standard error where the input is to blame."""
    try:
        app()
    except (PerfDoctorError, OSError) as error:  # a forbidden folder or a full disk raises from anywhere
        print(fit_encoding(f"lightning-perf: {line(str(error), 1000)}", sys.stderr.encoding), file=sys.stderr)
        raise SystemExit(BAD_INPUT) from None


def _load(name: str) -> Any:
    module, _, function = VERBS[name].home.partition(":")
    single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    settings = {"allow_interspersed_args": not VERBS[name].takes_command}
    single.command(name, context_settings=settings)(getattr(importlib.import_module(module), function))
    return typer.main.get_command(single)
