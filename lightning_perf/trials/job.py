"""What a process started by lightning-perf is to do, and what it says it did: files in one folder.

``job.json`` is written before the process starts and named by an environment variable; ``events`` gets a line for each
stage that any of its processes reached; ``result.json`` is written by the process of rank 0. Imports neither torch nor
lightning.
"""

from __future__ import annotations

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
"""Where a measured training's checkpoints and logs go, in the job's folder."""

RESULT_FILE = "result.json"
"""What a measured run came to, in the job's folder."""

DOCTOR_FOLDER = f"{OUTPUTS}/doctor"
"""Where the session of a diagnosed run goes, in the job's folder."""

BOOTSTRAP = Path(__file__).parent / "bootstrap"

Mode = Literal["run", "trial", "data", "ceiling"]


class Job(Record, frozen=True, kw_only=True):
    """What to do in the user's process.

    Attributes:
        mode: ``run``: the user's training with PerfDoctor added and treatments applied, nothing else changed.
            ``trial``: some steps of it, measured, its outputs in ``folder``; then the process ends.
            ``data``: the train loader is probed instead of training. ``ceiling``: ``trial`` on one cached batch.
        folder: Where the job's files are; for all modes but ``run`` the user's checkpoints and logs go there too.
        specs: Treatments as given, e.g. ``("loader-workers=4",)``.
        with_doctor: Whether to add PerfDoctor where the script has none.
        doctor: Keyword arguments for it.
        steps: Optimizer steps after which to stop; None to stop once ``min_blocks`` were measured.
        block_steps: Optimizer steps a block; None to find it from the first steps.
        min_blocks: With ``steps=None``: blocks to measure in the steady state.
        max_s: With ``steps=None``: seconds of training after which to stop anyway.
        seed: Given to every generator when Lightning is imported and again right before ``fit``; None to leave them.
        options: Of the mode, for ``data``.
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
        """Writes ``job.json`` into its folder, which is made where it is missing."""
        path = Path(self.folder) / "job.json"
        write_whole(path, msgspec.json.encode(self))
        return path


class Result(Record, frozen=True, kw_only=True):
    """What the process of rank 0 measured. Fields as in ``ArmRun``, where it has them.

    Attributes:
        status: ``ok`` or ``failed``.
        reason: Why it failed.
        wall_block_means_s: As ``block_means_s``, with validation, checkpoints and the boundaries of epochs; in whole
            epochs where at least three fitted in.
        usual_step_s: Median of the later half of all steps timed, whether steady or not; None where there were none.
        train_s: From the start of the first batch to the end of the last.
        epochs: Epochs ended.
        n_batches: Batches trained.
        world_size: Processes that trained.
        is_whole: Whether training came to its own end.
        missing: Why figures are missing: ``block_means_s``.
        data: What the mode ``data`` has to say.
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
    losses: tuple[float, ...] = ()
    loss_every: int = 1
    usual_step_s: float | None = None
    train_s: float = 0.0
    epochs: int = 0
    world_size: int = 1
    samples_per_step: float | None = None
    is_whole: bool = False
    missing: dict[str, str] = {}
    data: dict[str, Any] = {}

    def write(self, folder: str | Path) -> None:
        """Writes ``result.json`` whole."""
        write_whole(Path(folder) / RESULT_FILE, msgspec.json.encode(self))


def read_job(path: str | os.PathLike[str]) -> Job:
    """Reads a job file.

    Raises:
        TrialError: It cannot be read.
    """
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Job)
    except (OSError, msgspec.MsgspecError) as error:
        raise TrialError(f"cannot read the job file {path}: {error}") from error


def read_result(folder: str | Path) -> Result | None:
    """What the process wrote; None when it wrote nothing that can be read."""
    try:
        return msgspec.json.decode((Path(folder) / RESULT_FILE).read_bytes(), type=Result)
    except (OSError, msgspec.MsgspecError):
        return None


def note(job: Job, event: str) -> None:
    """Adds a line to ``events``; one that cannot be written is left out."""
    try:
        with (Path(job.folder) / "events").open("a", encoding="utf-8") as file:
            file.write(f"{event} {os.getpid()}\n")
    except OSError:
        pass


def read_events(folder: str | Path) -> set[str]:
    """Return the stages reached: ``python``, ``lightning``, ``trainer``, ``fit``."""
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
    """The environment in which a command finds its job."""
    environment = dict(os.environ if inherited is None else inherited)
    before = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{BOOTSTRAP}{os.pathsep}{before}" if before else str(BOOTSTRAP)
    environment[JOB_VARIABLE] = str(job_file.resolve())
    environment.pop(ONLY_MEASURE_VARIABLE, None)
    if job.mode != "run":
        environment[ONLY_MEASURE_VARIABLE] = "1"
    return environment


def warn(text: str) -> None:
    """One line on standard error."""
    print(f"lightning-perf: {' '.join(text.split())[:500]}", file=sys.stderr, flush=True)
