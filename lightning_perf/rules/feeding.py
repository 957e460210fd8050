"""A probed loader beside the steps that it feeds, or that it would feed."""

from __future__ import annotations

import msgspec

from lightning_perf.records import Distribution, LoaderProbe, LoaderSettings, PhaseTime, Session, StageTimes

from .loader_model import DEFAULT_PREFETCH, Demand, fit_delivery, forecast
from .loader_plan import WorkerPlan, delivery_of, demand_of, plan_workers
from .machine_signals import COMPUTE_PHASES, wait_share
from .rule import Skip
from .signals import cores_per_rank, is_cpu_run, loaders_of, steady_of


class Feeding(msgspec.Struct, frozen=True, kw_only=True):
    """A probed loader beside the steps that it feeds.

    Attributes:
        probe: What was measured of it.
        stage: The steps; where none were timed, the step that the probe predicts.
        share: Of the time, what waits for data.
        wait_s: Seconds a step that wait for data.
        batch_s: Seconds to make a batch in one process.
        plan: What workers would do.
        is_predicted: Whether no step was timed.
    """

    probe: LoaderProbe
    loader: LoaderSettings
    stage: StageTimes
    share: float
    wait_s: float
    batch_s: float
    plan: WorkerPlan
    is_predicted: bool

    def saved_s(self, session: Session, share: float) -> float:
        """Seconds of the span that go away where a batch costs this share less, with the workers in use.

        Args:
            session: It was made from.
            share: Of what a batch costs, 0…1.
        """
        if self.plan.n_now == 0:
            # What a step waits for is the making of its batch, however long that took beside what else ran.
            return self.stage.n_steps * max(share * self.wait_s, min(self.wait_s, share * self.batch_s))
        delivery = delivery_of(session, self.stage, self.wait_s, self.plan.n_now)
        if delivery is None or self.plan.now is None:
            return 0.0
        left = 1.0 - min(max(share, 0.0), 1.0)
        cheaper = msgspec.structs.replace(
            delivery, batch_s=left * delivery.batch_s, worker_batch_s=left * delivery.worker_batch_s
        )
        demand = demand_of(session, self.stage, self.wait_s, delivery, self.plan.n_now)
        then = forecast(cheaper, demand, self.plan.n_now, self.loader.prefetch_factor or DEFAULT_PREFETCH)
        return self.stage.n_steps * min(self.wait_s, max(0.0, self.plan.now.step_s - then.step_s))


def timed_steps_of(session: Session) -> StageTimes:
    """The steady steps; without any, those that the probe predicts.

    Raises:
        Skip: Neither were steps timed nor was the model's own step measured.
    """
    if session.steady is not None:
        return steady_of(session)
    predicted = predicted_steps(session)
    return steady_of(session) if predicted is None else predicted


def predicted_steps(session: Session) -> StageTimes | None:
    """A thousand steps as the probe predicts them, from the loader's ceiling and the model's; None where one lacks."""
    probe = session.loader_probe
    if session.steady is not None or probe is None or not probe.compute_s:
        return None
    delivery = fit_delivery(probe)
    if delivery is None:
        return None
    cores = cores_per_rank(session)
    threads = min(float(session.settings.torch.n_threads or cores), cores)
    demand = Demand(
        compute_s=probe.compute_s,
        cores=cores,
        threads=threads if is_cpu_run(session) else 1.0,
        others=delivery.others or 0.0,
        computes_on_cores=is_cpu_run(session),
    )
    step_s = forecast(delivery, demand, probe.num_workers or 0).step_s
    wait_s = max(0.0, step_s - probe.compute_s)
    n = 1000
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
    """The probe of a loader.

    Raises:
        Skip: There is none, or it could not measure what a sample costs.
    """
    probe = session.loader_probe
    if probe is None:
        raise Skip(session.missing.get("loader_probe", "the loader was not probed (PerfDoctor(probe_data=True))"))
    if probe.getitem is None:
        raise Skip(f"the loader could not be probed: {probe.reason or 'no sample was timed'}")
    return probe


def feeding_of(session: Session) -> Feeding:
    """The probed loader beside the steps that it feeds.

    Raises:
        Skip: It was not probed, or no step is known.
    """
    probe = probe_of(session)
    stage = timed_steps_of(session)
    loader = next((each for each in loaders_of(session, probe.stage) if each.index == probe.index), None)
    if loader is None:
        raise Skip("the settings of the probed loader are not known")
    share = wait_share(stage)
    wait_s = share * stage.span_s / max(1, stage.n_steps)
    plan = plan_workers(session, loader, stage, wait_s)
    return Feeding(
        probe=probe,
        loader=loader,
        stage=stage,
        share=share,
        wait_s=wait_s,
        batch_s=plan.batch_s,
        plan=plan,
        is_predicted=session.steady is None,
    )
