"""The command line: its commands and how errors end it.

The module of a command is imported when it is called, so that ``lightning-perf --help`` is fast and needs no torch.
"""

import pkgutil
import sys
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from lightning_perf import __version__
from lightning_perf.errors import PerfDoctorError

from .output import BAD_INPUT, write_error


class Command(NamedTuple):
    """A command of the command line.

    Attributes:
        function: The function that runs it, as ``module:function`` of this package.
        summary: Its line in ``--help``.
        takes_command: Whether its argument is the user's command; options after that belong to the user's command.
    """

    function: str
    summary: str
    takes_command: bool = False

    def load(self) -> Any:
        """Import and return the function."""
        return pkgutil.resolve_name(f"lightning_perf.cli.{self.function}")


COMMANDS = {
    "demo": Command("demo:demo", "Train a small model with a planted fault, and diagnose it."),
    "run": Command("run:run", "Run any Lightning command with PerfDoctor and treatments added.", True),
    "trial": Command("trial:trial", "Measure the speedup of each recommendation on your command.", True),
    "data": Command("data:data", "Measure the training loader of a command.", True),
    "analyze": Command("analyze:analyze", "Diagnose PyTorch profiler traces."),
    "report": Command("report:report", "Show the report of a saved session."),
    "config": Command("config:config", "Print the recommended arguments, ready to use."),
    "compare": Command("compare:compare", "Compare two sessions: what became faster or slower."),
    "history": Command("history:history", "Show earlier runs, and what changed since they were fast."),
    "bisect": Command("history:bisect", "Print the trial that tries what differs between two runs."),
    "view": Command("view:view", "Open a trace in an offline Perfetto."),
    "explain": Command("rules:explain", "Explain a rule: what it measures, why it matters, and what to do."),
    "rules": Command("rules:rules", "List all rules."),
}


class LazyCommands(TyperGroup):
    """A group that lists its commands without importing them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = COMMANDS.get(cmd_name)
        return None if command is None else TyperCommand(cmd_name, help=command.summary)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, stub, rest = super().resolve_command(ctx, args)
        return name, stub if name is None else _load(name), rest


app = typer.Typer(
    name="lightning-perf",
    cls=LazyCommands,
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
    single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    settings = {"allow_interspersed_args": not COMMANDS[name].takes_command}
    single.command(name, context_settings=settings)(COMMANDS[name].load())
    return typer.main.get_command(single)
