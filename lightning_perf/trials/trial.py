"""A trial from start to end: diagnosed baseline, treatments, ladder; saved on disk, so that it can be continued."""

import shutil
import time
import uuid
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from lightning_perf.cgroups import free_bytes
from lightning_perf.errors import SessionError, TrialError
from lightning_perf.records import SAFETIES, SESSION_FILE, ArmRun, Session, Trial, load
from lightning_perf.records.base import Record
from lightning_perf.records.files import read_regular, write_whole
from lightning_perf.treatments.prescription import prescription
from lightning_perf.treatments.specs import parse
from lightning_perf.trials.job import DOCTOR_FOLDER, OUTPUTS, Job, Result, warn
from lightning_perf.trials.judge import judge, treatments_of
from lightning_perf.trials.ladder import best, expectations, ladder, next_runs, runs_left
from lightning_perf.trials.lightning_cost import features_of, lightning_cost
from lightning_perf.trials.plan import choose, environment_of
from lightning_perf.trials.rounds import Plan, PlannedRun
from lightning_perf.trials.runner import CommandError, Ended, check_command, explain, run_supervised
from lightning_perf.trials.sizes import Sizes, choose_sizes

if TYPE_CHECKING:
    from lightning_perf.trials.progress import Progress

STATE_FILE = "state.json"
PILOT_FOLDER = "diagnosis"
TRIAL_FILE = "trial.json"
SEED = 1
MEMORY_SHARE = 0.9
"""Fraction of the memory that is free at the start that an arm may use if the user gives no limit."""

_PILOT_S = 25.0  # training of the pilot, the diagnosed baseline, unless it ends before
_PILOT_LIMIT_S = 1800.0  # the whole pilot, with the start of the script
_PILOT_TIMES = 2.0  # the same, times the limit of a run that the user sets, because the pilot also diagnoses
_PILOT_WINDOW = (10, 2, 3, 1)  # a profiler window among the first steps, which no figure includes
_SLACK_S = 120.0  # part of a run's time limit: some arms also compile or start workers
_SLACK_TIMES = 5.0  # part of a run's time limit: this many times the duration of a baseline run


class Options(Record, frozen=True, kw_only=True):
    """Options of a trial.

    Attributes:
        tries: Treatments to try instead of the recommended ones.
        steps: Optimizer steps per run; None to derive them from the baseline.
        repeats: Runs per arm; fewer or more as the result requires.
        semantics: Whether treatments that change the training itself may be tried and kept.
        time_limit_s: Time limit of one run; None to derive it from the baseline.
        memory_limit_bytes: Memory limit of all processes of one run together; None for the free memory.
    """

    command: tuple[str, ...]
    tries: tuple[str, ...] = ()
    steps: int | None = None
    repeats: int = 3
    semantics: bool = False
    time_limit_s: float | None = None
    memory_limit_bytes: int | None = None
    seed: int = SEED


class State(Record, frozen=True, kw_only=True):
    """Progress of a trial, from which it can be continued; ``features`` as in ``LightningCost``."""

    options: Options
    trial: Trial
    plan: Plan
    sizes: Sizes
    features: tuple[str, ...] = ()


def run_trial(
    options: Options, folder: Path, progress: "Progress", execute: Callable[..., Ended] | None = None
) -> Trial:
    """Run a trial, or resume the interrupted one with the same options in this folder.

    ``execute`` runs a job in place of ``run_supervised``.

    Returns:
        The trial; after Ctrl-C with the runs made until then, and the status ``interrupted``.

    Raises:
        TrialError: There is nothing to measure or to try, or the folder holds something else.
    """
    check_command(options.command)
    execute = execute or run_supervised
    state = _interrupted(folder, options)
    if state is None:
        progress.diagnosing()
        state, session = _diagnose(options, folder, execute)
    else:
        session = load(folder / SESSION_FILE)
    progress.planned(session, state)
    started = time.monotonic()
    earlier_s = state.trial.wall_s
    status: Literal["finished", "interrupted"] = "finished"
    try:
        while planned := next_runs(state.plan, state.trial.runs):
            for run in planned:
                progress.running(run, runs_left(state.plan, state.trial.runs), state.trial)
                made = _run_arm(run, state, folder, execute)
                wall_s = earlier_s + time.monotonic() - started
                state = _updated(state, folder, runs=(*state.trial.runs, made), wall_s=wall_s, status="running")
                progress.ran(made, state.trial)
    except KeyboardInterrupt:
        status = "interrupted"
    chosen = [parse(one) for one in treatments_of(best(ladder(state.plan, state.trial.runs)))]
    state = _updated(state, folder, status=status, **prescription(chosen, session)._asdict())
    msgspec.structs.replace(session, trials=(state.trial,)).save(folder / SESSION_FILE)
    return state.trial


# -- the baseline, diagnosed ------------------------------------------------------------


def _diagnose(options: Options, folder: Path, execute: Callable[..., Ended]) -> tuple[State, Session]:
    """Diagnose the baseline and plan the trial."""
    memory = options.memory_limit_bytes or int(free_bytes() * MEMORY_SHARE)
    pilot = folder / PILOT_FOLDER
    try:
        pilot.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrialError(f"cannot write to {folder}: {error.strerror or error}; choose another --out") from error
    job = Job(
        mode="trial",
        folder=str(pilot),
        doctor={"schedule": _PILOT_WINDOW},
        max_s=min(_PILOT_S, options.time_limit_s / 2) if options.time_limit_s is not None else _PILOT_S,
        seed=options.seed,
    )
    started = time.monotonic()
    limit_s = _PILOT_TIMES * options.time_limit_s if options.time_limit_s is not None else _PILOT_LIMIT_S
    ended = execute(options.command, job, limit_s, memory, warn=warn)
    result = _usable(options, ended)
    session = _session(pilot, ended)
    _discard_outputs(job)
    choice = choose(session, options.tries, options.semantics)
    sizes = choose_sizes(result, ended.wall_s, options.steps, bool(choice.on_loop))
    sizes = msgspec.structs.replace(sizes, memory_limit_bytes=memory)
    not_tried = dict(choice.not_tried)
    candidates = choice.candidates
    if choice.on_loop and sizes.basis == "steps":
        reason = "it shows over whole epochs, of which too few fit into a run; give more steps with --steps"
        not_tried |= {one.treatment: reason for one in candidates if one.treatment in choice.on_loop}
        candidates = tuple(one for one in candidates if one.treatment not in choice.on_loop)
    trial = Trial(
        id=uuid.uuid4().hex[:12],
        command=options.command,
        status="running",
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        wall_s=time.monotonic() - started,
        steps=sizes.steps,
        repeats=options.repeats,
        seed=options.seed,
        basis=sizes.basis,
        not_tried=not_tried,
        planned_steps=result.planned_steps,
    )
    headroom = session.memory.headroom
    plan = Plan(
        candidates=candidates,
        repeats=options.repeats,
        allow=SAFETIES if options.semantics else SAFETIES[:-1],
        finds_batch=choice.finds_batch,
        capacity_bytes=headroom.capacity_bytes if headroom is not None else None,
        planned_steps=result.planned_steps,
    )
    state = State(options=options, trial=trial, plan=plan, sizes=sizes, features=features_of(session))
    session.save(folder / SESSION_FILE)
    _write(state, folder)
    return state, session


def _usable(options: Options, ended: Ended) -> Result:
    result = ended.result
    if ended.failure or result is None:
        raise CommandError(explain(options.command, ended), ended.log)
    if not result.block_means_s and result.is_whole:
        raise TrialError(
            f"the training ended after {result.n_steps} optimizer steps in {result.train_s:.1f} s, too short to "
            f"measure ({result.missing.get('block_means_s', 'no block of steps')}); train for longer, e.g. with more "
            "epochs"
        )
    return result


def _session(pilot: Path, ended: Ended) -> Session:
    try:
        return load(pilot / DOCTOR_FOLDER)
    except SessionError as error:
        raise CommandError(f"the training ran, but its diagnosis cannot be read ({error})", ended.log) from error


# -- one run ------------------------------------------------------------


def _run_arm(planned: PlannedRun, state: State, folder: Path, execute: Callable[..., Ended]) -> ArmRun:
    sizes = state.sizes
    arm = "".join(c if c.isalnum() or c in "-+=._" else "_" for c in planned.arm)[:80]
    name = f"{planned.position:03d}-{arm}"
    job = Job(
        mode="trial",
        folder=str(folder / "runs" / name),
        specs=planned.treatments,
        with_doctor=False,
        steps=sizes.steps,
        block_steps=sizes.block_steps,
        seed=state.trial.seed,
    )
    limit_s = state.options.time_limit_s or _SLACK_S + _SLACK_TIMES * sizes.expected_s
    variables = environment_of(planned.treatments)
    ended = execute(state.options.command, job, limit_s, sizes.memory_limit_bytes, variables)
    _discard_outputs(job)
    return as_run(planned, ended, f"runs/{name}/log.txt", sizes.basis)


def _discard_outputs(job: Job) -> None:
    """Remove a run's checkpoints and logs, which would fill the disk over many runs."""
    shutil.rmtree(Path(job.folder) / OUTPUTS, ignore_errors=True)


def as_run(planned: PlannedRun, ended: Ended, log: str, basis: str) -> ArmRun:
    """Return the record of one run."""
    fields: dict[str, Any] = {
        **{name: getattr(planned, name) for name in ("arm", "repeat", "position", "stage")},
        "wall_s": ended.wall_s,
        "log": log,
    }
    result = ended.result
    if result is None or result.status == "failed":
        partial: dict[str, Any] = {} if result is None else {"n_steps": result.n_steps, "losses": result.losses}
        return ArmRun(**fields, status="failed", reason=ended.failure, **partial)
    blocks = result.wall_block_means_s if basis == "wall" else result.block_means_s
    fields |= {name: getattr(result, name) for name in ArmRun.__struct_fields__ if name in Result.__struct_fields__}
    fields["block_means_s"] = blocks
    fields["reason"] = "" if blocks else result.missing.get("block_means_s", "no whole epochs were seen")
    return ArmRun(**fields)


# -- on disk ------------------------------------------------------------


def _updated(state: State, folder: Path, **changes: Any) -> State:
    """Return the state with changes to the trial, judged again, and save it."""
    runs: tuple[ArmRun, ...] = changes.get("runs", state.trial.runs)
    judged = judge(runs, *expectations(state.plan))
    rungs = ladder(state.plan, runs)
    changes["lightning_cost"] = lightning_cost(judged.arms, state.features)
    changes |= {
        "arms": judged.arms,
        "noise_band": judged.noise_band,
        "aa": judged.aa,
        "ladder": rungs,
        "best": best(rungs),
    }
    state = msgspec.structs.replace(state, trial=msgspec.structs.replace(state.trial, **changes))
    _write(state, folder)
    return state


def _write(state: State, folder: Path) -> None:
    write_whole(folder / STATE_FILE, msgspec.json.encode(state))
    write_whole(folder / TRIAL_FILE, msgspec.json.format(msgspec.json.encode(state.trial), indent=1))


def _interrupted(folder: Path, options: Options) -> State | None:
    """Return the interrupted trial in a folder; None without one."""
    try:
        content = read_regular(folder / STATE_FILE)
    except FileNotFoundError:
        others = sorted({path.name for path in folder.iterdir()} - {PILOT_FOLDER}) if folder.is_dir() else []
        if others:  # a trial deletes outputs of its runs, and must not delete other files
            listed = ", ".join(others[:3]) + (" …" if len(others) > 3 else "")
            raise TrialError(
                f"{folder} has {listed}, which is not from a trial; choose another --out: a new or empty folder, or "
                "one with an interrupted trial"
            ) from None
        return None
    except OSError as error:
        raise TrialError(
            f"cannot read {folder / STATE_FILE}: {error.strerror or error}; choose another --out"
        ) from error
    try:
        state = msgspec.json.decode(content, type=State)
    except msgspec.MsgspecError as error:
        raise TrialError(f"{folder / STATE_FILE} is not a trial's ({error}); choose another --out") from error
    if state.options != options:
        raise TrialError(
            f"{folder} has a trial of another command or with other options ({' '.join(state.options.command)}); "
            "choose another --out, or give the same to resume it"
        )
    if state.trial.status == "finished":
        raise TrialError(f"the trial in {folder} is finished; choose another --out to measure again")
    return state
