"""``lightning-perf trial``: measure recommendations on the user's own command."""

import re
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lightning_perf.errors import ConfigError
from lightning_perf.records import Trial

from .output import INTERRUPTED, check_folder, default_folder, json_text, write_error, write_stdout

TENSORBOARD_FOLDER = "tensorboard"
_SIZE = re.compile(r"(?P<n>\d+(\.\d+)?)\s*(?P<unit>[KMGT]?)(i?B)?", re.I)


def trial(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="Your training command.")],
    out: Annotated[Path | None, typer.Option(help="Output folder; an interrupted trial in it is resumed.")] = None,
    try_: Annotated[
        str, typer.Option("--try", metavar="ID,...", help="Treatments to try instead of the recommended ones.")
    ] = "",
    steps: Annotated[int | None, typer.Option(min=1, help="Optimizer steps per run; automatic by default.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs per arm; fewer if results are clear, more if not.")] = 3,
    time_limit: Annotated[float | None, typer.Option(min=1.0, help="Time limit per run in seconds.")] = None,
    memory_limit: Annotated[str | None, typer.Option(help="Memory that a run may use, e.g. 8G.")] = None,
    semantics: Annotated[
        bool, typer.Option("--semantics", help="Also try treatments that change results, such as the batch size.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Random seed of every run.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the trial's record.")] = False,
) -> None:
    """Run a few steps of a training repeatedly, without and with each treatment, and measure the speedups.

    The script does not change, nor do its checkpoints and logs: the trial writes to a separate folder.
    """
    from lightning_perf.trials.python import trial as run_trial

    check_folder(out)
    folder = default_folder("trial") if out is None else out
    interrupted = INTERRUPTED

    def end_as_by_ctrl_c(number: int, _: Any) -> None:  # by timeout, or by a scheduler before it kills
        nonlocal interrupted
        interrupted = 128 + number
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end_as_by_ctrl_c)
    try:
        made = run_trial(
            command, try_, steps=steps, repeats=repeats, semantics=semantics, seed=seed, time_limit_s=time_limit,
            memory_limit_bytes=None if memory_limit is None else _checked_bytes(memory_limit), out_dir=folder,
        )  # fmt: skip
    except KeyboardInterrupt:
        print("Interrupted before the training was diagnosed: nothing to report", file=sys.stderr)
        raise typer.Exit(interrupted) from None
    if as_json:
        write_stdout(json_text(made))
    else:
        from lightning_perf.reports.console import emit, trial_document

        emit(trial_document(made))
    _write_hparams(folder, made)
    if made.status == "interrupted":
        print(f"Interrupted; to go on, give the same command with\n--out {shlex.quote(str(folder))}", file=sys.stderr)
        raise typer.Exit(interrupted)


def _write_hparams(folder: Path, trial: Trial) -> None:
    """Write the arms as rows of TensorBoard's HPARAMS tab, if TensorBoard works."""
    target = folder / TENSORBOARD_FOLDER
    shutil.rmtree(target, ignore_errors=True)  # written by the interrupted trial
    if not any(arm.step_s is not None for arm in trial.arms):
        return
    try:
        from torch.utils.tensorboard import SummaryWriter

        from lightning_perf.reports.tensorboard import write_trial

        with SummaryWriter(str(target)) as writer:
            write_trial(writer, trial)
    except Exception as error:  # noqa: BLE001 - reported; the ladder was printed and saved
        write_error(f"nothing was written for TensorBoard: {error}")


def _checked_bytes(text: str) -> int:
    from lightning_perf.trials.python import LEAST_MEMORY_BYTES

    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"--memory-limit {text!r}: expected a size such as 8G or 512M")
    size = float(match["n"]) * 1024 ** "_KMGT".index(match["unit"].upper() or "_")
    if size < LEAST_MEMORY_BYTES:
        raise ConfigError(f"--memory-limit {text!r}: expected 64M at least, such as 8G; a number alone counts bytes")
    return int(size)
