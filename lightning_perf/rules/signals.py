"""Measurements that most rules use; functions raise Skip with the reason if one is missing."""

from collections.abc import Iterable, Sequence

from lightning_perf.records import LoaderSettings, NamedTime, RankSummary, Session, StageTimes

from .rule import Skip, required
from .thresholds import METRIC_EVERY_STEPS, MIN_SPAN_S, MIN_STEPS
from .wording import number_of

_LOADER_STAGE = {"fit": "train", "validate": "val", "test": "test", "predict": "predict"}

CODE_PHASES = ("forward", "backward")
"""The phases of a step that run the model's code."""

COMPUTE_PHASES = (*CODE_PHASES, "optimizer")
"""The phases of a step that compute."""


def steady_of(session: Session) -> StageTimes:
    """Return the steady steps; raise Skip if there are fewer than ``MIN_STEPS``."""
    steady = required(session.steady, session.missing.get("steady", "no step was measured in the steady state"))
    if steady.n_steps < MIN_STEPS or steady.span_s < MIN_SPAN_S:
        raise Skip(f"{steady.n_steps} steps in the steady state; at least {MIN_STEPS} are needed")
    return steady


def phase_s(stage: StageTimes, *names: str) -> float:
    """Return the seconds of the span spent in these phases; 0 for a phase that did not occur."""
    return sum(stage.phases[name].total_s for name in names if name in stage.phases)


def share_of_step(steady: StageTimes, seconds: float) -> float:
    """Return seconds of each step as a share of the mean step; 0 if steps took no time."""
    return seconds / steady.step_s.mean if steady.step_s.mean > 0 else 0.0


def steps_text(session: Session, n: int) -> str:
    """Return a number of steps, which are batches outside of ``fit``: ``"1 step"``, ``"12 batches"``."""
    return number_of(n, "step") if session.run.stage == "fit" else number_of(n, "batch", "batches")


def step_counter(session: Session) -> str:
    """Return the attribute of the Trainer that counts steps; ``global_step`` only if each step is an optimizer step."""
    trainer = session.settings.trainer
    is_each = (trainer.accumulate_grad_batches or 1) == 1 and trainer.is_automatic_optimization is not False
    return "global_step" if is_each else "fit_loop.total_batch_idx"


def metric_interval(session: Session) -> int:
    """Return the steps between two calls of a metric to recommend: values are logged in steps that Lightning writes."""
    written = session.settings.trainer.log_every_n_steps or METRIC_EVERY_STEPS
    least = int(METRIC_EVERY_STEPS)
    # A longer interval is there to write nothing.
    return next((n for n in range(least, least**3) if written % n == 0 or n % written == 0), least)


def mean_phase_s(stage: StageTimes, name: str) -> float | None:
    """Return the mean seconds per usual step in a phase, from the timeline; None without one.

    Unlike the phase's total, it excludes the first step of each epoch.
    """
    n_steps = sum(block.n_steps for block in stage.timeline)
    return sum(block.phases.get(name, 0.0) * block.n_steps for block in stage.timeline) / n_steps if n_steps else None


def queued_s(stage: StageTimes) -> float:
    """Return the seconds of the device's work that the host left behind in steps, to wait for it between them.

    The host runs ahead of a device until its queue is full. 0 without a device's clock.
    """
    device = stage.device
    return (
        stage.n_span_steps * max(0.0, device.step_s.mean - stage.step_s.mean)
        if device is not None and device.n
        else 0.0
    )


def check_has_ranks(session: Session) -> None:
    """Raise Skip if the run has one rank."""
    if session.run.world_size < 2:
        raise Skip("the run has one rank")


def summaries_of(session: Session) -> tuple[RankSummary, ...]:
    """Return the measurements of all ranks as they sent them to rank 0; empty if ranks were not compared."""
    return session.ranks.summaries if session.ranks is not None else ()


def own_summary(session: Session) -> RankSummary | None:
    """Return the measurements of this rank as it sent them to rank 0; None if ranks were not compared."""
    return next((one for one in summaries_of(session) if one.rank == session.run.rank), None)


def loader_stage(session: Session) -> str:
    """Return the stage of the loaders of the stage that ran: ``"train"``, ``"val"``, ``"test"`` or ``"predict"``."""
    return _LOADER_STAGE.get(session.run.stage, "train")


def loaders_of(session: Session, stage: str | None = None) -> tuple[LoaderSettings, ...]:
    """Return the loaders of a stage (``"train"``, ``"val"`` …; by default the one that ran); raise Skip if unknown."""
    wanted = stage or loader_stage(session)
    loaders = tuple(loader for loader in session.settings.loaders if loader.stage == wanted)
    if not loaders:
        raise Skip(session.missing.get("settings.loaders", f"the settings of the {wanted} loader are not known"))
    return loaders


def is_cpu_run(session: Session) -> bool:
    """Return whether the model runs on the CPU, by the Trainer's accelerator or else by the devices in use."""
    accelerator = session.settings.trainer.accelerator
    return accelerator == "cpu" if accelerator is not None else not session.machine.devices


def cores_per_rank(session: Session) -> float:
    """Return the cores available to this rank: the usable cores, shared evenly by the ranks of the node."""
    return session.machine.usable_cores / max(1, session.machine.local_world_size)


def named_by_kind(steady: StageTimes, *kinds: str) -> dict[str, list[NamedTime]]:
    """Return the named times of these kinds, grouped by name, the costliest name first."""
    by_name: dict[str, list[NamedTime]] = {}
    for time in steady.named:
        if time.kind in kinds:
            by_name.setdefault(time.name, []).append(time)
    return dict(sorted(by_name.items(), key=lambda item: -share_of(item[1])))


def share_of(times: Iterable[NamedTime]) -> float:
    """Return the total share of the steady span; ``total_s`` of these times also includes earlier steps."""
    return sum(time.share for time in times)


def call_s(*times: NamedTime) -> float:
    """Return the mean seconds per call."""
    return sum(time.total_s for time in times) / max(1, sum(time.n_calls for time in times))


def claims_of(times: Iterable[NamedTime], span_s: float) -> dict[str, float]:
    """Return the seconds of the span by phase."""
    claims: dict[str, float] = {}
    for time in times:
        claims[time.phase] = claims.get(time.phase, 0.0) + time.share * span_s
    return claims


def claims_within(steady: StageTimes, seconds: float, phases: Sequence[str]) -> dict[str, float]:
    """Return seconds distributed over phases in proportion to their time, limited to that time."""
    within_s = phase_s(steady, *phases)
    part = min(1.0, seconds / within_s) if within_s > 0 else 0.0
    return {name: part * phase_s(steady, name) for name in phases if phase_s(steady, name) > 0}
