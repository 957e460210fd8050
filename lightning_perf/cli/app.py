"""The command line: its commands and how errors end it.

The module of a command is imported when it is called, so that ``lightning-perf --help`` is fast and needs no torch.
"""

import importlib
import sys
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from lightning_perf import __version__
from lightning_perf.errors import PerfDoctorError

from .output import BAD_INPUT, write_error


class Verb(NamedTuple):
    """A command of the command line.

    Attributes:
        home: Its function, as ``module:function``.
        summary: Its line in ``--help``.
        takes_command: Whether its argument is the user's command, which gets all further options.
    """

    home: str
    summary: str
    takes_command: bool = False


VERBS = {
    "demo": Verb("lightning_perf.cli.demo:demo", "Train a small model with a planted fault, and diagnose it."),
    "run": Verb("lightning_perf.cli.run:run", "Run any Lightning command with PerfDoctor and treatments added.", True),
    "trial": Verb(
        "lightning_perf.cli.trial:trial", "Measure the speedup of each recommendation on your command.", True
    ),
    "data": Verb("lightning_perf.cli.data:data", "Measure the training loader of a command.", True),
    "analyze": Verb("lightning_perf.cli.analyze:analyze", "Diagnose PyTorch profiler traces."),
    "report": Verb("lightning_perf.cli.report:report", "Show the report of a saved session."),
    "config": Verb("lightning_perf.cli.config:config", "Print the recommended arguments, ready to use."),
    "compare": Verb("lightning_perf.cli.compare:compare", "Compare two sessions: what became faster or slower."),
    "history": Verb("lightning_perf.cli.history:history", "Show earlier runs, and what changed since they were fast."),
    "bisect": Verb("lightning_perf.cli.history:bisect", "Print the trial that tries what differs between two runs."),
    "view": Verb("lightning_perf.cli.view:view", "Open a trace in an offline Perfetto."),
    "explain": Verb(
        "lightning_perf.cli.rules:explain", "Explain a rule: what it measures, why it matters, and what to do."
    ),
    "rules": Verb("lightning_perf.cli.rules:rules", "List all rules."),
}


class LazyVerbs(TyperGroup):
    """A group that lists its commands without importing them."""

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
    """Find out why a PyTorch Lightning training is slow, what to change, and the expected speedup."""
    if version:
        print(f"lightning-perf {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(BAD_INPUT)


def main() -> None:
    """Run the command line; exit with 2 and one line on stderr if the input is invalid."""
    try:
        app()
    except (PerfDoctorError, OSError) as error:  # OSError: a forbidden folder or a full disk
        for seen in getattr(error, "log", "").splitlines():  # CommandError: output of the user's command
            print(f"  | {seen}", file=sys.stderr)
        write_error(str(error))
        raise SystemExit(BAD_INPUT) from None


def _load(name: str) -> Any:
    module, _, function = VERBS[name].home.partition(":")
    single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    settings = {"allow_interspersed_args": not VERBS[name].takes_command}
    single.command(name, context_settings=settings)(getattr(importlib.import_module(module), function))
    return typer.main.get_command(single)
