"""Time all steps, and fill the session's run, epochs, steady state and validation from them."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from lightning_perf import seams
from lightning_perf.probes.base import Probe, RunContext
from lightning_perf.probes.clock import device_clock, now_ns
from lightning_perf.records import PHASES, STEP_PHASES, Run, Session, StageTimes

from .loop import LoopTimer

if TYPE_CHECKING:
    from lightning_perf.probes.probe_set import ProbeSet


def open_loop(
    trainer: Any, pl_module: Any, owner: Any, stage: str, probes: "ProbeSet", wants_device: bool
) -> tuple[LoopTimer, dict[str, str]]:
    """Return the timer of all steps, and why it does not time the device, by path in the session.

    ``owner`` is the callback that measures.
    """
    clock, reason = None, "device_stats=False"
    if wants_device:
        on_fail = partial(probes.switch_off, "device")
        found = probes.call("device", device_clock, trainer.strategy.root_device, on_fail)
        clock, reason = found or (None, "reading the device's clock failed")
    loop = LoopTimer(trainer, pl_module, owner, stage, now_ns, partial(probes.switch_off, "steps"), clock)
    return loop, {} if clock is not None else {"steady.device": reason}


class StepsProbe(Probe):
    """Probe of all steps, which installs the shared `LoopTimer` and records its results."""

    name = "steps"

    def __init__(self, run: RunContext) -> None:
        self._context, self._trainer, self._loop = run, run.trainer, run.loop
        self._is_fit = run.stage == "fit"
        self._first_global_step = run.trainer.global_step

    def start(self) -> None:
        self._loop.install()

    def loops_ready(self, run: RunContext) -> None:
        """Count from the checkpoint on, and time what manual optimization calls itself."""
        self._first_global_step = self._trainer.global_step
        if self._is_fit:
            self._loop.optimizers_ready(partial(run.probes.notify, "after_step"))

    def run_ends(self, error: BaseException | None) -> None:
        """End the run; a step that is under way does not count."""
        self._loop.epoch_ends()

    def close(self) -> None:
        self._loop.uninstall()

    def part(self, session: Session) -> Mapping[str, Any]:
        steady = self._steady()
        return {
            "run": self._run(session.run, steady),
            "steady": steady,
            "epochs": self._loop.main.epochs_so_far() if self._is_fit else (),
            "validation": self._loop.validation.stage_times() if self._is_fit else None,
        }

    def reasons(self) -> Mapping[str, str]:
        return {**self.missing, **self._loop.missing}

    def _run(self, run: Run, steady: StageTimes | None) -> Run:
        loop, trainer = self._loop, self._trainer
        first_end_ns = loop.first_step_end_ns
        return msgspec.structs.replace(
            run,
            n_steps=loop.main.n_steps,
            n_epochs=loop.main.n_epochs() if self._is_fit else 0,
            n_optimizer_steps=trainer.global_step - self._first_global_step if self._is_fit else None,
            time_to_first_step_s=None if first_end_ns is None else (first_end_ns - loop.timeline.start_ns) / 1e9,
            startup=startup_parts(loop.startup_ns, loop.sanity_ns, loop.main.first_step_ns, steady),
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            has_trainer=seams.has_trainer(trainer),
        )

    def _steady(self) -> StageTimes | None:
        main = self._loop.main
        steady, self.missing = main.stage_times(), {}
        if steady is None:
            n = "1 step" if main.n_steps == 1 else f"{main.n_steps} steps"
            self.missing["steady"] = f"{n}: too few to separate warm-up from steady state"
            return None
        device = main.device_times()
        if device is None:
            self.missing["steady.device"] = "no step was resolved on the device yet"
        return msgspec.structs.replace(steady, named=self._loop.named(), device=device)


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
