"""Probe a command's training loader, and its training without the loader, in separate processes."""

import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from lightning_perf.errors import TrialError
from lightning_perf.records import SESSION_FILE, Session
from lightning_perf.rules.engine import diagnose
from lightning_perf.trials.job import Job, warn
from lightning_perf.trials.runner import CommandError, Ended, check_command, explain, run_supervised

STARTUP_ALLOWED_S = 900.0
"""Time that a script has to reach its training loader, besides the probe's own time."""

CEILING_S = 8.0
"""Time for the steps on one batch, compilation and warm-up included."""

CEILING_BLOCKS = 4
MIN_CEILING_STEPS = 20
"""Steps that are enough for the step time if it did not become steady."""


def probe_command(
    command: Sequence[str], folder: Path, limit_s: float, report: Callable[[str], None] = lambda _: None
) -> Session:
    """Run some steps of a training command on one batch, then run it up to its loader and probe that for ``limit_s``.

    The script's checkpoints and logs go to a folder that is removed afterwards. ``report`` is called with a short text
    when a part starts.

    Returns:
        The diagnosed session, saved in the folder; its ``run.stage`` is ``"data"``.

    Raises:
        TrialError: There is no command, it never reached a training loader, or the folder has a session already.
    """
    check_command(command)
    if os.path.exists(folder / SESSION_FILE):
        raise TrialError(f"{folder} has a session already, which would be overwritten; choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix="probe-", dir=folder))
    except OSError as error:
        raise TrialError(f"cannot write to {folder}: {error.strerror or error}; choose another --out") from error
    try:
        report(f"training on one batch, for about {CEILING_S:g} s")
        compute_s, basis = _ceiling(command, work / "ceiling")
        report(f"probing the training loader, for at most {limit_s:g} s")
        session = _probed(command, work / "probe", limit_s, compute_s)
        if session.loader_probe is not None:
            probe = msgspec.structs.replace(session.loader_probe, compute_s=compute_s, compute_basis=basis)
            missing = session.missing if compute_s else session.missing | {"steady": f"training on one batch: {basis}"}
            session = msgspec.structs.replace(session, loader_probe=probe, missing=missing)
        session = diagnose(session)
        session.save(folder / SESSION_FILE)
        return session
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _probed(command: Sequence[str], folder: Path, limit_s: float, compute_s: float | None) -> Session:
    options = {"limit_s": limit_s, "compute_s": compute_s}
    job = Job(mode="data", folder=str(folder), with_doctor=False, options=options)
    ended = run_supervised(command, job, time_limit_s=limit_s + STARTUP_ALLOWED_S, warn=warn)
    result = ended.result
    if result is None or result.status != "ok":
        raise CommandError(explain(command, ended, "the probe"), ended.log)
    try:
        return msgspec.convert(result.data["session"], Session)
    except (KeyError, msgspec.ValidationError) as error:
        raise CommandError(f"the loader was probed, but the result cannot be read ({error})", ended.log) from error


def _ceiling(command: Sequence[str], folder: Path) -> tuple[float | None, str]:
    """Return the seconds per batch of a training on one batch (None if not measured), and the method or the reason."""
    job = Job(mode="ceiling", folder=str(folder), with_doctor=False, min_blocks=CEILING_BLOCKS, max_s=CEILING_S)
    return _step_time(run_supervised(command, job, time_limit_s=CEILING_S + STARTUP_ALLOWED_S))


def _step_time(ended: Ended) -> tuple[float | None, str]:
    result = ended.result
    if result is None or result.status != "ok":
        return None, f"not measured: {ended.failure}"
    basis = f"training on one batch, {result.n_steps} steps"
    if result.block_means_s:
        step_s = statistics.median(result.block_means_s)
    elif result.usual_step_s is not None and result.n_steps >= MIN_CEILING_STEPS:
        # Not exact enough for a trial, but it shows whether the loader or the model is the bottleneck.
        step_s = result.usual_step_s
        basis += f"; {result.missing.get('block_means_s', 'not steady')}"
    else:
        return None, f"not measured: {result.missing.get('block_means_s', 'too few steps')}"
    # Per batch, as the loader is measured: an optimizer step may accumulate several.
    return step_s / max(1, result.batches_per_step), basis
