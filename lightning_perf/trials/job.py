"""Jobs of processes that lightning-perf starts, and their results, as files in one folder.

``job.json`` is written before the process starts and named by an environment variable; ``events`` gets a line for each
stage that one of its processes reaches; rank 0 writes ``result.json``. Imports neither torch nor lightning.
"""

import contextlib
import os
import sys
from pathlib import Path
from typing import Any, Literal

import msgspec

from lightning_perf.errors import TrialError
from lightning_perf.records.base import Record
from lightning_perf.records.files import write_whole

JOB_VARIABLE = "LIGHTNING_PERF_JOB"
ONLY_MEASURE_VARIABLE = "LIGHTNING_PERF_ONLY_MEASURE"

OUTPUTS = "outputs"
"""Folder in the job's folder for checkpoints and logs of a measured training."""

RESULT_FILE = "result.json"

DOCTOR_FOLDER = f"{OUTPUTS}/doctor"

BOOTSTRAP = Path(__file__).parent / "bootstrap"

Mode = Literal["run", "trial", "data", "ceiling"]


class Job(Record, frozen=True, kw_only=True):
    """A job for the user's process.

    Attributes:
        mode: See ``modes``.
        folder: Folder of the job's files; except in mode ``run``, the user's checkpoints and logs go there too.
        specs: Treatments as given, e.g. ``("loader-workers=4",)``.
        with_doctor: Whether to add PerfDoctor if the script has none.
        doctor: Keyword arguments for PerfDoctor.
        steps: Optimizer steps after which to stop; None to stop once ``min_blocks`` were measured.
        block_steps: Optimizer steps per block; None to derive it from the first steps.
        min_blocks: With ``steps=None``: blocks to measure in the steady state.
        max_s: With ``steps=None``: seconds of training after which to stop anyway.
        seed: Set when Lightning is imported and again before ``fit``; None to leave the generators alone.
        options: For the mode ``data``: ``limit_s`` and ``compute_s``.
    """

    mode: Mode
    folder: str
    specs: tuple[str, ...] = ()
    with_doctor: bool = True
    doctor: dict[str, Any] = {}
    steps: int | None = None
    block_steps: int | None = None
    min_blocks: int = 8
    max_s: float = 30.0
    seed: int | None = None
    options: dict[str, Any] = {}

    def write(self) -> Path:
        """Write ``job.json`` into the job's folder."""
        path = Path(self.folder) / "job.json"
        write_whole(path, msgspec.json.encode(self))
        return path


class Result(Record, frozen=True, kw_only=True):
    """Measurements of rank 0; for fields that are not listed here see ``ArmRun``.

    Attributes:
        wall_block_means_s: As ``block_means_s``, over whole epochs with validation, checkpoints and epoch boundaries.
        usual_step_s: Median of the later half of the timed steps, steady or not; None without any.
        train_s: Seconds from the start of the first batch to the end of the last.
        epochs: Epochs that ended.
        epoch_steps: Mean optimizer steps of a whole epoch; None if less than two epochs began.
        planned_steps: Optimizer steps of the whole training; None if unknown.
        is_whole: Whether training reached its own end.
        missing: By field, why it has no value: only ``block_means_s``.
        data: Result of the mode ``data``: its ``session``.
    """

    status: Literal["ok", "failed"]
    reason: str = ""
    block_means_s: tuple[float, ...] = ()
    wall_block_means_s: tuple[float, ...] = ()
    block_steps: int = 0
    n_steps: int = 0
    n_batches: int = 0
    steady_from: int | None = None
    samples_per_s: float | None = None
    batches_per_step: int = 1
    peak_device_bytes: int | None = None
    peak_host_bytes: int | None = None
    compile_s: float = 0.0
    losses: tuple[float, ...] = ()
    loss_every: int = 1
    usual_step_s: float | None = None
    train_s: float = 0.0
    epochs: int = 0
    epoch_steps: float | None = None
    planned_steps: int | None = None
    world_size: int = 1
    samples_per_step: float | None = None
    is_whole: bool = False
    missing: dict[str, str] = {}
    data: dict[str, Any] = {}

    def write(self, folder: str | Path) -> None:
        """Write ``result.json`` atomically."""
        write_whole(Path(folder) / RESULT_FILE, msgspec.json.encode(self))


def read_job(path: str | os.PathLike[str]) -> Job:
    """Read a job file; raise ``TrialError`` if it cannot be read."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Job)
    except (OSError, msgspec.MsgspecError) as error:
        raise TrialError(f"cannot read the job file {path}: {error}") from error


def read_result(folder: str | Path) -> Result | None:
    """Return the result of a job; None if there is none that can be read."""
    try:
        return msgspec.json.decode((Path(folder) / RESULT_FILE).read_bytes(), type=Result)
    except (OSError, msgspec.MsgspecError):
        return None


def note(job: Job, event: str) -> None:
    """Add a line to ``events``, if it can be written."""
    with contextlib.suppress(OSError), (Path(job.folder) / "events").open("a", encoding="utf-8") as file:
        file.write(f"{event} {os.getpid()}\n")


def read_events(folder: str | Path) -> set[str]:
    """Return the stages reached: ``python``, ``lightning`` or ``refused``, ``trainer``, ``fit``, ``over``."""
    return {line[0] for line in _event_lines(folder)}


def read_pids(folder: str | Path) -> set[int]:
    """Return the ids of the processes in which the bootstrap ran."""
    return {int(line[1]) for line in _event_lines(folder) if len(line) == 2 and line[1].isdigit()}


def _event_lines(folder: str | Path) -> list[list[str]]:
    try:
        lines = (Path(folder) / "events").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [line.split(" ", 1) for line in lines if line]


def environment_for(job: Job, job_file: Path, inherited: dict[str, str] | None = None) -> dict[str, str]:
    """Return the environment in which a command finds its job: ``inherited``, by default this process's, and more."""
    environment = dict(os.environ if inherited is None else inherited)
    before = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{BOOTSTRAP}{os.pathsep}{before}" if before else str(BOOTSTRAP)
    environment[JOB_VARIABLE] = str(job_file.resolve())
    environment.pop(ONLY_MEASURE_VARIABLE, None)
    if job.mode != "run":
        environment[ONLY_MEASURE_VARIABLE] = "1"
    return environment


def warn(text: str) -> None:
    """Print one line to stderr."""
    print(f"lightning-perf: {' '.join(text.split())[:500]}", file=sys.stderr, flush=True)
