"""Assemble the session of a run from its probes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from lightning_perf.records import (
    PHASES,
    STEP_PHASES,
    Epoch,
    HostProfile,
    Memory,
    ModelProfile,
    Run,
    Session,
    Settings,
    StageTimes,
    Telemetry,
)
from lightning_perf.stats.datasheets import datasheet_of
from lightning_perf.stats.roofline import assessed

from . import ceilings
from .module_times import ModuleTime, with_times
from .sampled_steps import ROUNDS
from .settings import read_step_logging
from .telemetry import with_cost

if TYPE_CHECKING:
    from .recorder import Recorder

Status = Literal["running", "finished", "interrupted", "failed"]


class SessionBuilder:
    """The session of one run at one moment; ``missing`` collects why figures are None, by their path."""

    def __init__(self, recorder: Recorder) -> None:
        self._probes, self._loop = recorder, recorder.loop
        self.missing = {**recorder.missing, **recorder.loop.missing}

    def build(self, status: Status, error: BaseException | None) -> Session:
        """Return the session; ``error`` is what ended the run."""
        probes, loop = self._probes, self._loop
        settings = self._settings()
        steady = self._steady()
        epochs = loop.main.epochs_so_far() if probes.stage == "fit" else ()
        if probes.loader.probe is None:
            self.missing.setdefault("loader_probe", probes.loader.why_no_probe(probes.settings))
        replayed = probes.replay.record() if probes.replay is not None else None
        self.missing.update(probes.replay.missing if probes.replay is not None else {"replay": "replay=False"})
        wall_s = probes.wall_s()  # after everything above, to include it
        return Session(
            run=self._run(status, error, wall_s, steady),
            machine=probes.machine,
            settings=settings,
            epochs=epochs,
            steady=steady,
            validation=loop.validation.stage_times() if probes.stage == "fit" else None,
            memory=self._memory(),
            windows=tuple(probes.windows.windows) if probes.windows is not None else (),
            overhead=probes.overhead(wall_s),
            missing=self.missing,
            telemetry=self._telemetry(wall_s, epochs),
            loader_probe=probes.loader.probe,
            host_profile=self._host_profile(steady),
            collections=probes.tried("collections", probes.pauses.record, self._stepping_s()),
            replay=replayed,
            **self._sampled_steps(steady),
        )

    def _run(self, status: Status, error: BaseException | None, wall_s: float, steady: StageTimes | None) -> Run:
        probes, loop, trainer = self._probes, self._loop, self._probes.trainer
        is_fit, first_end_ns = probes.stage == "fit", loop.first_step_end_ns
        return msgspec.structs.replace(
            probes.run,
            status=status,
            wall_s=wall_s,
            n_steps=loop.main.n_steps,
            n_epochs=loop.main.n_epochs() if is_fit else 0,
            n_optimizer_steps=trainer.global_step - probes.first_global_step if is_fit else None,
            time_to_first_step_s=None if first_end_ns is None else (first_end_ns - loop.timeline.start_ns) / 1e9,
            startup=startup_parts(loop.startup_ns, loop.sanity_ns, loop.main.first_step_ns, steady),
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            error=None if error is None else type(error).__name__,
        )

    def _settings(self) -> Settings:
        """Return the settings, completed by what only steps could show."""
        probes, replace = self._probes, msgspec.structs.replace
        prog_bar_metrics, sync_dist_on_step = read_step_logging(probes.trainer)
        if prog_bar_metrics is not None:
            for name in ("prog_bar_metrics", "sync_dist_on_step"):
                self.missing.pop(f"settings.trainer.{name}", None)
        trainer = replace(
            probes.settings.trainer, prog_bar_metrics=prog_bar_metrics, sync_dist_on_step=sync_dist_on_step
        )
        if probes.saw_anomaly_detection:
            trainer = replace(trainer, is_anomaly_detection_on=True)
        model, watch = probes.settings.model, probes.zero_grad_watch
        if model is not None:
            model = replace(model, eval_outputs_have_graph=probes.evaluation_has_graph)
            if watch is not None and len(model.optimizers) == len(probes.trainer.optimizers):
                pairs = zip(model.optimizers, probes.trainer.optimizers, strict=True)
                model = replace(model, optimizers=tuple(replace(one, **watch.summary(each)) for one, each in pairs))
        return replace(probes.settings, trainer=trainer, model=model)

    def _steady(self) -> StageTimes | None:
        probes, loop = self._probes, self._loop
        steady = loop.main.stage_times()
        if steady is None:
            self.missing.setdefault(
                "steady", f"{loop.main.n_steps} steps: too few to separate warm-up from steady state"
            )
            return None
        device = loop.main.device_times()
        if device is None:
            self.missing.setdefault("steady.device", "no step was resolved on the device yet")
        return msgspec.structs.replace(
            steady,
            named=loop.named(),
            fetch=probes.loader.completed(steady.fetch),
            device=device,
            gc_s=probes.pauses.total_ns / 1e9,
        )

    def _stepping_s(self) -> float:
        """Return seconds since the end of the first step."""
        first_ns = self._loop.first_step_end_ns
        return 0.0 if first_ns is None else (self._loop.timeline.charge() - first_ns) / 1e9

    def _memory(self) -> Memory:
        probe = self._probes.memory
        if probe is None:
            self.missing.setdefault("memory", "reading memory failed; see probes_off")
            return Memory()
        memory: Memory | None = self._probes.tried("memory", probe.record)
        if memory is None:
            probe.is_off = True
            return Memory()
        self.missing.update(probe.missing)
        return memory

    def _telemetry(self, wall_s: float, epochs: tuple[Epoch, ...]) -> Telemetry | None:
        probe, record = self._probes.telemetry, None
        if probe is not None:
            self._probes.report_kept_error("telemetry", probe)
            self.missing.update(probe.all_missing())
            record = probe.record()
        epoch_s = sum(epoch.wall_s for epoch in epochs) / len(epochs) if epochs else None
        return with_cost(record, self._probes.rates, wall_s, epoch_s)

    def _host_profile(self, steady: StageTimes | None) -> HostProfile | None:
        profile, sampler = None, self._probes.host_lines
        if sampler is not None:
            profile = self._probes.tried("host_lines", sampler.record, steady)
            self.missing.update(sampler.missing)
            self._probes.report_kept_error("host_lines", sampler)
        if profile is None:
            self.missing.setdefault("host_profile", "the run was too short to sample its lines, or sampling failed")
        return profile

    def _sampled_steps(self, steady: StageTimes | None) -> dict[str, Any]:
        """Return the session fields from sampled steps, the compiler and the loss scaler."""
        probes, sampled = self._probes, self._probes.sampled_steps
        fields = {"sync_calls": None if sampled is None else probes.tried("operators", sampled.sync_calls)}
        times = None if sampled is None else probes.tried("modules", sampled.module_times)
        for name, probe in (("compiler", probes.compiler), ("loss_scaler", probes.scaler)):
            probes.report_kept_error(name, probe)
            fields[name] = None if probe is None else probes.tried(name, probe.record)
        if sampled is not None:
            self.missing.update(sampled.missing)
        fields["model_profile"] = probes.tried("arithmetic", self._model_profile, steady, times)
        reasons = {
            "sync_calls": f"no step was sampled: the first one is step {ROUNDS[0] + 1} of a fit",
            "compiler": "nothing was compiled",
            "loss_scaler": "this training has no loss scaler",
        }
        for name, reason in reasons.items():
            if fields[name] is None:
                self.missing.setdefault(name, reason)
        return fields

    def _model_profile(self, steady: StageTimes | None, times: dict[str, ModuleTime] | None) -> ModelProfile | None:
        """Return the counted operations, assessed against the device's ceilings and the steady step."""
        probes, device = self._probes, self._probes.trainer.strategy.root_device
        profile, measured = None, None
        if probes.ceilings is not None and probes.sampled_steps is not None:
            profile = probes.sampled_steps.profile
            if profile is None:
                self.missing.setdefault("model_profile", "no step was counted: the run was too short")
            else:
                measured = probes.ceilings.record()
            self.missing.update(probes.ceilings.missing)
        elif probes.stage == "fit":
            self.missing.setdefault("model_profile", "arithmetic=False, or counting failed; see probes_off")
        if times is not None:
            profile = with_times(profile, probes.pl_module, device, times)
        if profile is None:
            return None
        chip = next((datasheet_of(each.name) for each in probes.machine.devices), None)
        timed = () if steady is None else (steady.step_s, steady.n_steps, True)
        found = assessed(profile, measured, chip, *timed)
        if measured is not None and found.ceilings is None:  # implausible: the next run measures again
            self.missing["model_profile.ceilings"] = found.missing["ceilings"]
            ceilings.forget(device)
        return found


def startup_parts(
    startup_ns: dict[str, int], sanity_ns: int, first_step_ns: tuple[int, ...] | None, steady: StageTimes | None
) -> dict[str, float]:
    """Return seconds by part of the time to the end of the first step: ``Run.startup``.

    ``startup_ns`` is the time before the first fetch by phase, ``sanity_ns`` its part in the sanity validation. While
    the usual step is unknown, the whole first step counts.
    """
    parts = {name: ns / 1e9 for name, ns in startup_ns.items()}
    parts["other"] = parts.pop("startup", 0.0) - sanity_ns / 1e9 + parts.pop("other", 0.0)
    parts["sanity_validation"] = sanity_ns / 1e9
    if first_step_ns is not None:
        phases_s = {name: ns / 1e9 for name, ns in zip(PHASES, first_step_ns, strict=True)}
        wait_s = phases_s["data_wait"]
        rest_s = sum(phases_s[name] for name in STEP_PHASES) - wait_s
        fetch = None if steady is None else steady.phases.get("data_wait")
        usual_wait_s = (fetch.p50_s or 0.0) if fetch is not None else 0.0
        usual_s = 0.0 if steady is None else steady.step_s.p50
        parts["loader_start"] = wait_s - usual_wait_s
        parts["first_step"] = rest_s - max(0.0, usual_s - usual_wait_s)
    return {name: value for name, value in parts.items() if value > 0}
