"""``lightning-perf data``: measure the training loader of a command."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from lightning_perf.checks import checked_number

from .output import check_folder, default_folder, write_stdout


def data(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="Your training command.")],
    out: Annotated[
        Path | None, typer.Option(help="Where perf_session.json goes; perf_logs/data-<time> by default.")
    ] = None,
    limit: Annotated[float, typer.Option("--time", min=5.0, help="Seconds to measure the loader.")] = 20.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the session.")] = False,
) -> None:
    """Measure the training loader of a command: its functions, its workers, and its speed relative to the model.

    A first run trains a few steps on one batch. A second run stops at the training loader, and copies of the loader
    are then measured.
    """
    from lightning_perf.trials.data import probe_command

    checked_number("--time", limit, "seconds, at least 5")
    check_folder(out)
    folder = default_folder("data") if out is None else out
    session = probe_command(command, folder.resolve(), limit, lambda text: print(text, file=sys.stderr, flush=True))
    if as_json:
        write_stdout(session.to_json().decode())
        return
    from lightning_perf.reports.console import brief_report, emit

    emit(brief_report(session, str(folder)))
