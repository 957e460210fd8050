"""``lightning-perf run``: run any Lightning command unchanged, with PerfDoctor and treatments added."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from lightning_perf.errors import TrialError
from lightning_perf.records.remote import any_path

from .output import check_folder, write_error


def run(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="Your training command.")],
    out: Annotated[
        str | None, typer.Option(help="Folder or URL of perf_session.json; the logger's folder by default.")
    ] = None,
    with_: Annotated[
        str, typer.Option("--with", metavar="ID,...", help="Treatments to apply, e.g. loader-workers=4,precision-bf16.")
    ] = "",
    doctor: Annotated[bool, typer.Option(help="Add PerfDoctor if the script does not.")] = True,
) -> None:
    """Run a complete training with PerfDoctor and treatments added; the script itself does not change.

    Exits with the command's exit code, or with 2 if the command succeeded without creating a Trainer.
    """
    from lightning_perf.trials.foreground import run_in_foreground
    from lightning_perf.trials.job import Job
    from lightning_perf.trials.plan import applicable_specs, environment_of
    from lightning_perf.trials.reach import where_it_ended
    from lightning_perf.trials.runner import check_command

    place = None if out is None else any_path(out)
    if isinstance(place, Path):
        check_folder(place)
        place = place.resolve()
    check_command(command)
    specs = applicable_specs(with_)
    arguments = {} if place is None else {"out_dir": str(place)}
    with tempfile.TemporaryDirectory(prefix="lightning-perf-") as folder:
        job = Job(mode="run", folder=folder, specs=specs, with_doctor=doctor, doctor=arguments)
        code, events = run_in_foreground(command, job, environment_of(specs))
    if "trainer" not in events:
        message = "PerfDoctor was not added" + where_it_ended(events)
        if code == 0:
            raise TrialError(message)
        write_error(message)
    raise typer.Exit(code)
