"""The interface of a probe, which measures one thing during a run and returns its part of the session.

A probe is a subclass of `Probe` in a module or package of this folder, where ``all_probes`` finds it. ``ProbeSet``
opens it, calls it, isolates its errors, and puts its part into the session.
"""

from __future__ import annotations

import functools
import graphlib
import importlib
import pkgutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec

from lightning_perf import probes
from lightning_perf.records import Hang, Machine, Session, Settings, TraceRecord

from .clock import NEVER

if TYPE_CHECKING:
    from lightning_perf.options import DoctorOptions

    from .probe_set import ProbeSet
    from .profiler.recording import WindowOptions
    from .telemetry.energy import Rates
    from .timeline.loop import LoopTimer

STAGES = ("fit", "validate", "test", "predict")


@dataclass(kw_only=True)
class RunContext:
    """The run that probes measure.

    Attributes:
        stage: One of ``STAGES``.
        loop: Timer of all steps, shared by the probes; not a probe itself.
        folder: Folder for files; None if none may be written.
        shared_folder: Folder for files that ranks exchange; None also where each rank has a folder of its own.
        window_options: Options of profiler windows; None if none may open.
        is_worth_keeping: Returns whether an automatic window's trace is worth its disk space.
        probe_data: Whether the training loader is measured in a child process.
        settings: Known once the loops are ready.
        missing: Why figures are None by the user's options, by their path in the session.
        show_hang: Shows a hang with the stacks of all threads, and writes its file; returns the record with its name.
        has_history: Whether the run is compared with earlier ones.
    """

    trainer: Any
    pl_module: Any
    stage: str
    options: DoctorOptions
    loop: LoopTimer
    now_ns: Callable[[], int]
    probes: ProbeSet
    folder: Path | None
    window_options: WindowOptions | None
    is_worth_keeping: Callable[[TraceRecord], bool]
    probe_data: bool | Literal["auto"]
    rates: Rates
    machine: Machine
    settings: Settings = field(default_factory=Settings)
    missing: dict[str, str] = field(default_factory=dict)
    shared_folder: Path | None = None
    show_hang: Callable[[Hang, str], Hang] = lambda hang, _: hang
    has_history: bool = False
    started_s: float = field(default_factory=time.monotonic)

    def wall_s(self) -> float:
        """Return the wall time by the clock of the phases, so that they add up to it."""
        is_frozen = self.loop.timeline.is_frozen
        return time.monotonic() - self.started_s if is_frozen else self.loop.wall_ns() / 1e9


class Probe:
    """One measurement of a run. Every method does nothing unless a subclass overrides it.

    Attributes:
        name: Its name in ``probes_off``, in messages, and in ``after``.
        field: The field of the session that ``record`` fills; empty if `part` is overridden.
        reason: Why that field is None, unless ``reasons`` says otherwise.
        option: The option that switches it off where it is False; empty without one.
        stages: The stages in which the probe is opened.
        after: Names of the probes that are opened and recorded before this one.
        error: Error that ended a measurement in another thread, or where it must not be raised; None normally.
        step_cost_ns: Time spent in observed steps, within PerfDoctor's own hooks.
        cost_ns: Time spent outside these hooks.
    """

    name: ClassVar[str]
    field: ClassVar[str] = ""
    reason: ClassVar[str] = ""
    option: ClassVar[str] = ""
    stages: ClassVar[tuple[str, ...]] = STAGES
    after: ClassVar[tuple[str, ...]] = ()
    error: Exception | None = None
    step_cost_ns: int = 0
    cost_ns: int = 0

    def __init__(self, run: RunContext) -> None:
        """Make the probe of a run; a subclass keeps what it needs of it."""

    @functools.cached_property
    def missing(self) -> dict[str, str]:
        """Why figures are None, by their path in the session."""
        return {}

    @classmethod
    def open(cls, run: RunContext) -> Probe | None:
        """Return the probe of a run, or None where it cannot or may not measure; note why in ``run.missing``."""
        if cls.option and not getattr(run.options, cls.option):
            run.missing[cls.field] = f"{cls.option}=False"
            return None
        return cls(run)

    def start(self) -> None:
        """Begin to measure."""

    def close(self) -> None:
        """Restore everything that was changed. Can be called twice."""

    def abandon(self) -> None:
        """Handle being switched off, perhaps in the middle of a step: restore what can be restored there."""

    # -- single steps -------------------------------------------------------------------------------------------------

    @property
    def next_step(self) -> int:
        """Index of the next step that this probe must observe."""
        return NEVER

    def step_begins(self, batch: Any) -> None:
        """Handle the start of a step that this probe asked for."""

    def step_ends(self) -> None:
        """Handle the end of such a step."""

    # -- events: `ProbeSet.notify` calls the probes that override them ------------------------------------------------

    def loops_ready(self, run: RunContext) -> None:
        """Handle the end of setup: loaders, model and optimizers exist, and the checkpoint is loaded."""

    def first_batch(self, batch: Any) -> None:
        """Handle the first batch of a fit."""

    def before_backward(self) -> None:
        """Handle the start of a backward pass."""

    def after_backward(self) -> None:
        """Handle the end of a backward pass."""

    def before_zero_grad(self, optimizer: Any) -> None:
        """Handle Lightning's clearing of gradients."""

    def after_step(self, optimizer: Any) -> None:
        """Handle the end of ``optimizer.step`` in manual optimization."""

    def validation_begins(self) -> None:
        """Handle the start of validation within a fit."""

    def evaluation_begins(self, batch: Any) -> None:
        """Handle the start of a batch of a stage other than fit."""

    def epoch_ends(self) -> None:
        """Read what is recorded once per training epoch."""

    def before_report(self, is_last: bool) -> None:
        """Measure what needs the training to pause, before a report of a fit; ``is_last`` in ``on_train_end``."""

    def training_ends(self) -> None:
        """Take last measurements while workers and loaders may still exist."""

    def run_ends(self, error: BaseException | None) -> None:
        """Handle the end of the run; ``error`` is what ended it, None if it ended well."""

    # -- results ------------------------------------------------------------------------------------------------------

    def record(self) -> Any:
        """Return the record for ``field``; None if it is unknown."""

    def part(self, session: Session) -> Mapping[str, Any]:
        """Return this probe's fields of the session, which already holds those of the probes in ``after``."""
        return {self.field: self.record()} if self.field else {}

    def reasons(self) -> Mapping[str, str]:
        """Return why figures are None, by their path in the session. Called after `part`."""
        return self.missing


def model_part(session: Session, field: str, found: Any) -> Mapping[str, Any]:
    """Return a probe's part of the session: what it found about the model; nothing if the model is unknown."""
    settings, replace = session.settings, msgspec.structs.replace
    if found is None or settings.model is None:
        return {}
    return {"settings": replace(settings, model=replace(settings.model, **{field: found}))}


@functools.cache
def all_probes() -> tuple[type[Probe], ...]:
    """Return the probes of the modules in this folder, each after those that it needs.

    The ranks' probe is not included: it makes its collective calls even if opening the others fails.
    """
    modules = pkgutil.walk_packages(probes.__path__, f"{probes.__name__}.")
    names = sorted(module.name for module in modules if not module.ispkg)
    values = (value for name in names for value in vars(importlib.import_module(name)).values())
    found = (value for value in values if isinstance(value, type) and issubclass(value, Probe) and value is not Probe)
    kinds = {kind.name: kind for kind in found if kind.name != "ranks"}
    order = graphlib.TopologicalSorter({name: kind.after for name, kind in kinds.items()})
    return tuple(kinds[name] for name in order.static_order())
