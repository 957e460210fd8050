"""Step time by number of workers: measured by the loader probe, or else bounds from the cost of a batch.

The probe runs the loader with several numbers of workers next to a process that computes like the training. Without a
probe only bounds are known: ``w`` workers deliver at most ``w`` batches in the time that one process needs for a batch,
and no more than the cores allow.
"""

import math
from statistics import median

import msgspec
import numpy as np

from lightning_perf.records import (
    Distribution,
    Evidence,
    LoaderProbe,
    LoaderSettings,
    Method,
    PhaseTime,
    Session,
    StageTimes,
    WorkerPoint,
)

from .findings import fact
from .machine_signals import wait_share
from .rule import required
from .signals import COMPUTE_PHASES, loaders_of, phase_s, steady_of
from .thresholds import (
    COMPUTES_MIN_FRACTION,
    STEP_MAX_SPREAD,
    TRANSPORT_HIGH_S,
    TRANSPORT_LOW_S,
    WORKERS_SLACK,
)
from .user_lines import sampler_lines
from .wording import number_of
from .worker_bounds import CORES, WorkerStep, batch_cost, most_workers, step_bounds


class WorkerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The recommended number of workers for one loader, and its effect.

    Attributes:
        n_now: Workers in use.
        batch_s: Seconds that one process needs to make one batch.
        basis: Source of ``batch_s``.
        compute_s: Seconds per step without data wait.
        n_needed: Workers that would hide loading behind compute, given a core each.
        n_cap: The most useful number of workers; 0 with fewer than two cores.
        n_workers: The number to recommend; 0 if more workers do not help.
        saved_low_s: Seconds saved per step, at least.
        saved_high_s: Seconds saved per step, at most.
        chosen: The step with the fewest workers within 2 % of the best, which may be those in use; None if the loader
            was not probed.
        now: The step with the workers in use; None if the loader was not probed with this number.
        steps: The steps with each number of workers that the probe tried.
        is_cheap: Whether making a batch takes no longer than receiving it from a worker.
        cap_basis: The limit that sets ``n_cap``.
    """

    n_now: int
    batch_s: float
    basis: str
    compute_s: float
    n_needed: int
    n_cap: int
    n_workers: int
    saved_low_s: float
    saved_high_s: float
    chosen: WorkerStep | None = None
    now: WorkerStep | None = None
    steps: tuple[WorkerStep, ...] = ()
    is_cheap: bool = False
    cap_basis: str = CORES

    @property
    def method(self) -> Method:
        """How the saved seconds were obtained."""
        return "probed" if self.chosen is not None and self.chosen.is_measured else "modeled"

    @property
    def cost_more(self) -> bool:
        """Whether the workers in use cost more than they save."""
        return self.n_now > 0 and self.is_cheap and self.chosen is not None and self.chosen.num_workers == 0

    @property
    def is_too_cheap(self) -> bool:
        """Whether workers would not pay off, because a batch is cheaper to make than to fetch from a worker."""
        is_cheap = self.is_cheap or self.batch_s < TRANSPORT_HIGH_S
        return self.n_now == 0 and is_cheap and (self.chosen is None or self.chosen.num_workers == 0)


class ProbedLoader(msgspec.Struct, frozen=True, kw_only=True):
    """A probed loader and the steps that use it.

    Attributes:
        stage: The timed steps, or else the steps that the probe predicts.
        share: Data wait as a share of the time.
        wait_s: Seconds of data wait per step, without the lines of a sampler.
        is_predicted: Whether no step was timed.
    """

    probe: LoaderProbe
    loader: LoaderSettings
    stage: StageTimes
    share: float
    wait_s: float
    plan: WorkerPlan
    is_predicted: bool

    def saved_s(self, share: float) -> float:
        """Return the seconds of the span saved if the cost of a batch falls by this share, with the workers in use.

        Without workers, the data wait shrinks by this share. If workers are too slow, they determine the step time, so
        the whole step shrinks by this share, but by no more than the data wait.
        """
        per_step_s = self.wait_s if self.plan.n_now == 0 else self.stage.step_s.mean
        return self.stage.n_span_steps * min(self.wait_s, min(max(share, 0.0), 1.0) * per_step_s)


def plan_workers(session: Session, loader: LoaderSettings, stage: StageTimes, share: float) -> WorkerPlan:
    """Return the number of workers to recommend for a loader, and the time that it saves.

    ``stage`` are the steps that use the loader, ``share`` their data wait as a share of the time, by the device's clock
    if there is one.
    """
    wait_s = share * stage.span_s / stage.n_span_steps
    probe = session.loader_probe
    if probe is not None and (probe.stage, probe.index) != (loader.stage, loader.index):
        probe = None
    n_now = loader.num_workers or 0
    step_s = stage.step_s.mean
    compute_s = max(step_s - wait_s, 0.0)
    batch_s, basis = delivered_batch_s(probe) if probe is not None else None, "loader probe"
    if batch_s is None:
        batch_s, basis = batch_cost(stage, n_now, step_s, compute_s, wait_s)
    n_cap, cap_basis = most_workers(session, loader, probe)
    n_needed = max(1, math.ceil(batch_s / max((1 + WORKERS_SLACK) * compute_s, 1e-6)))
    tried = [point for point in probe.curve if point.num_workers <= max(n_cap, n_now)] if probe is not None else []
    steps = tuple(_step(session, probe, point, compute_s) for point in tried) if probe is not None else ()
    now = next((each for each in steps if each.num_workers == n_now), None)
    chosen = _chosen(steps, n_cap) if any(each.num_workers for each in steps) else None
    n_workers = min(n_needed, n_cap) if chosen is None else chosen.num_workers
    saved = (0.0, 0.0)
    if n_workers > n_now:
        # Workers do not deliver faster than the mean batch takes, which costly batches raise above the median.
        mean_s = batch_s if n_now else max(batch_s, wait_s)
        step = chosen or step_bounds(session, mean_s, compute_s, n_workers)
        saved = saved_by(session, step_s, now, step)
    takes = [point.take_s for point in tried if point.take_s]
    return WorkerPlan(
        n_now=n_now,
        batch_s=batch_s,
        basis=basis,
        compute_s=compute_s,
        n_needed=n_needed,
        n_cap=n_cap,
        cap_basis=cap_basis,
        n_workers=n_workers if n_workers > n_now else 0,
        saved_low_s=saved[0],
        saved_high_s=saved[1],
        chosen=chosen,
        now=now,
        steps=steps,
        is_cheap=batch_s <= max(takes, default=0.0),
    )


def plan_evidence(plan: WorkerPlan) -> tuple[Evidence, ...]:
    """Return the step time for each probed number of workers; empty if the loader was not probed."""
    return tuple(
        fact(
            f"step with {number_of(step.num_workers, 'worker')} "
            + ("(probed next to compute)" if step.is_measured else "(from the probed throughput)"),
            step.step_s,
            "s",
        )
        for step in plan.steps
    )


def delivered_batch_s(probe: LoaderProbe) -> float | None:
    """Return the seconds of a batch in one process without workers; None if the probe did not measure them."""
    point = probe.point_at(0)
    alone = point.batch_s if point is not None else probe.made_s()
    return alone if alone is not None and 0 < alone < math.inf else None


def timed_steps_of(session: Session) -> StageTimes:
    """Return the steady steps, else those that the probe predicts; raise Skip if neither is known."""
    predicted = predicted_steps(session)
    return steady_of(session) if predicted is None else predicted


def predicted_steps(session: Session) -> StageTimes | None:
    """Return a thousand steps predicted by the probe; None if it lacks the loader's time or the compute time."""
    probe = session.loader_probe
    if session.steady is not None or probe is None or not probe.compute_s:
        return None
    batch_s = delivered_batch_s(probe)
    if batch_s is None:
        return None
    n_now = probe.num_workers or 0
    point = probe.point_at(n_now)
    now = (
        step_bounds(session, batch_s, probe.compute_s, n_now)
        if point is None
        else _step(session, probe, point, probe.compute_s)
    )
    wait_s = max(0.0, now.step_s - probe.compute_s)
    n, step_s = 1000, probe.compute_s + wait_s
    return StageTimes(
        n_steps=n,
        n_warmup_steps=0,
        span_s=n * step_s,
        step_s=Distribution(p50=step_s, p95=step_s, p99=step_s, mean=step_s, std=0.0),
        samples_per_s=probe.batch_size / step_s if probe.batch_size else None,
        phases={
            "data_wait": PhaseTime(total_s=n * wait_s, share=wait_s / step_s),
            COMPUTE_PHASES[0]: PhaseTime(total_s=n * probe.compute_s, share=probe.compute_s / step_s),
        },
    )


def probe_of(session: Session) -> LoaderProbe:
    """Return the loader probe; raise Skip if the loader was not probed, or no sample was timed."""
    reason = session.missing.get("loader_probe", "the loader was not probed (PerfDoctor(probe_data=True))")
    probe = required(session.loader_probe, reason)
    required(probe.getitem, f"the loader could not be probed: {probe.reason or 'no sample was timed'}")
    return probe


def probed_loader_of(session: Session) -> ProbedLoader:
    """Return the probed loader and the steps that use it; raise Skip if there is no probe, or no step time is known."""
    probe = probe_of(session)
    stage = timed_steps_of(session)
    found = next((each for each in loaders_of(session, probe.stage) if each.index == probe.index), None)
    loader = required(found, "the settings of the probed loader are not known")
    share = wait_share(stage)
    wait_s = share * stage.span_s / stage.n_span_steps
    return ProbedLoader(
        probe=probe,
        loader=loader,
        stage=stage,
        share=share,
        wait_s=wait_s * (1 - sampling_part(session, stage)),
        plan=plan_workers(session, loader, stage, share),
        is_predicted=session.steady is None,
    )


def sampling_part(session: Session, stage: StageTimes) -> float:
    """Return the part of the host's data wait in lines of samplers, which the dataset does not cause."""
    host_s = phase_s(stage, "data_wait")
    return min(1.0, sum(line.seconds for line in sampler_lines(session)) / host_s) if host_s > 0 else 0.0


def _step(session: Session, probe: LoaderProbe, point: WorkerPoint, compute_s: float) -> WorkerStep:
    """Return the step at one point of the curve: measured, or bounds from the throughput of the loader alone."""
    least_s = max(compute_s, point.low_s)
    least_s *= 1 - step_spread(session, least_s)  # lower bound of any step time
    if point.step_s is not None and point.step_low_s is not None and point.step_high_s is not None:
        return WorkerStep(
            num_workers=point.num_workers,
            step_s=point.step_s,
            low_s=max(least_s, point.step_low_s),
            high_s=max(least_s, point.step_high_s),
            fetch_s=point.batch_s,
            is_measured=True,
        )
    if point.num_workers == 0:
        low_s, step_s, high_s = (compute_s + each for each in (point.low_s, point.batch_s, point.high_s))
    else:
        alone = (probe.point_at(0) or point).batch_s
        take_s = TRANSPORT_LOW_S if point.take_s is None else point.take_s
        low_s = max(compute_s + min(take_s, TRANSPORT_LOW_S), point.low_s)
        step_s = max(compute_s + take_s, point.batch_s)
        is_computing = probe.getitem_cpu_fraction is None or probe.getitem_cpu_fraction >= COMPUTES_MIN_FRACTION
        shared_s = step_bounds(session, alone, compute_s, point.num_workers).high_s if is_computing else 0.0
        high_s = max(step_s, point.high_s, shared_s)
    return WorkerStep(num_workers=point.num_workers, step_s=step_s, low_s=low_s, high_s=high_s, fetch_s=point.batch_s)


def _chosen(steps: tuple[WorkerStep, ...], n_cap: int) -> WorkerStep | None:
    """Return the step with the fewest workers within ``WORKERS_SLACK`` of the best; None if none is allowed.

    If a step with workers was measured, only measured steps are considered.
    """
    allowed = [each for each in steps if each.num_workers <= n_cap]
    measured = [each for each in allowed if each.is_measured]
    if any(each.num_workers for each in measured):
        allowed = measured
    best_s = min((each.step_s for each in allowed), default=0.0)
    good = [each for each in allowed if each.step_s <= (1 + WORKERS_SLACK) * best_s]
    return min(good, key=lambda each: each.num_workers, default=None)


def step_spread(session: Session, step_s: float) -> float:
    """Return how much a step of this time varies from one fit to the next, as a fraction of it; 0 without a timeline.

    Step time is assumed to vary as much as over the run: by the larger distance of the 5th and 95th percentile of the
    timeline's blocks from their median, as a fraction of it, and without data wait in seconds, because faster steps
    compute as long.
    """
    blocks = session.steady.timeline if session.steady is not None else ()
    if len(blocks) < 2 or step_s <= 0:
        return 0.0
    middle_s, spread_s = _middle_and_spread([block.step_s for block in blocks])
    _, computing_s = _middle_and_spread([block.step_s - block.phases.get("data_wait", 0.0) for block in blocks])
    relative = spread_s / middle_s if middle_s > 0 else 0.0
    return min(STEP_MAX_SPREAD, max(relative, computing_s / step_s))


def _middle_and_spread(seconds: list[float]) -> tuple[float, float]:
    middle_s = median(seconds)
    low_s, high_s = (float(end) for end in np.percentile(seconds, [5, 95]))
    return middle_s, max(high_s - middle_s, middle_s - low_s)


def saved_by(session: Session, step_s: float, now: WorkerStep | None, chosen: WorkerStep) -> tuple[float, float]:
    """Return the least and the most seconds per step that the chosen workers save.

    The new step time is estimated as the probed step time and, if the workers in use were probed as well, as the
    current step time ``step_s`` scaled by the probed ratio. The interval includes both, because the probe's compute may
    differ from that of the training.
    """
    low_s, high_s = chosen.low_s, chosen.high_s
    if chosen.is_measured:
        spread = step_spread(session, chosen.step_s)
        low_s = min(low_s, (1 - spread) * chosen.step_s)
        high_s = max(high_s, (1 + spread) * chosen.step_s)
    ends = [step_s - high_s, step_s - low_s]
    if now is not None and now.is_measured and chosen.is_measured:
        ends += [step_s * (1 - high_s / now.low_s), step_s * (1 - low_s / now.high_s)]
    return max(0.0, min(ends)), max(0.0, *ends)
