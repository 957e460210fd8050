"""Treatments of work on the host: logging, the progress bar, threads, garbage collection, anomaly detection."""

import gc
from functools import partial
from typing import Any

from lightning_perf import seams
from lightning_perf.errors import TreatmentError
from lightning_perf.records import Session

from .treatment import Treatment, whole_cores_per_rank


class AnomalyOff(Treatment):
    id = "anomaly-off"
    summary = "switches off autograd's anomaly detection, which records a stack for every operation"
    when = "Always, once you have found the bug that you switched it on for."
    is_live = True
    hides_errors = True
    trainer_flag = "detect_anomaly"
    setting = False

    def applies_to(self, session: Session) -> str | None:
        is_on = session.settings.trainer.is_anomaly_detection_on
        return "anomaly detection is off already" if is_on is False else None

    def apply_live(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        import torch

        checks_nan = torch.is_anomaly_check_nan_enabled()
        undos.note(partial(_restore_anomaly, trainer, torch.is_anomaly_enabled(), checks_nan))
        torch.autograd.set_detect_anomaly(False, checks_nan)


def _restore_anomaly(trainer: Any, is_on: bool, checks_nan: bool) -> None:
    import torch

    if seams.is_in_loops(trainer):  # Lightning itself restores the setting at the end of fit
        torch.autograd.set_detect_anomaly(is_on, checks_nan)


class GcFreeze(Treatment):
    id = "gc-freeze"
    summary = "excludes existing objects from Python's garbage collection, and collects less often"
    when = (
        "Helps where collections visit millions of objects, e.g. samples that are kept as Python objects. Objects in "
        "reference cycles are freed later. The search for memory leaks then finds older containers only in "
        "attributes of modules and callbacks."
    )
    is_live = True
    value_form = "N, objects created between two collections of the youngest generation, at least 1"
    least = 1
    default = 70_000

    def applies_to(self, session: Session) -> str | None:
        now = session.collections.thresholds[:1] if session.collections is not None else ()
        if now == (0,):
            return "automatic collections are off already"
        is_set = bool(now) and now[0] >= self.default_value(session)
        return f"the collector's threshold is {now[0]} already" if is_set else None

    def live_cost_s(self, session: Session) -> float:
        found = session.collections.generations if session.collections is not None else ()
        return max((each.total_s / each.n for each in found if each.generation == 2 and each.n), default=0.0)

    def statements(self, value: Any) -> str:
        return f"import gc\n# in on_train_start:\ngc.collect()\ngc.freeze()\ngc.set_threshold{_thresholds(value)}"

    def configured(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        n_frozen = gc.get_freeze_count()
        if n_frozen:
            raise TreatmentError(f"gc-freeze: {n_frozen:,} objects are frozen already")
        undos.note(partial(gc.set_threshold, *gc.get_threshold()))
        undos.note(gc.unfreeze)
        gc.collect()  # frozen garbage would never be freed
        gc.freeze()
        gc.set_threshold(*_thresholds(value))

    apply_live = configured


def _thresholds(youngest: int) -> tuple[int, int, int]:
    from lightning_perf.rules.thresholds import GC_RAISED_FULL, GC_RAISED_MIDDLE

    return youngest, int(GC_RAISED_MIDDLE), int(GC_RAISED_FULL)


class LogEveryN(Treatment):
    id = "log-every-n"
    summary = "passes metrics to the loggers every N steps"
    when = "Helps where logging takes a visible part of the step. The same metrics are logged, at fewer steps."
    is_live = True
    value_form = "N, steps between two logs, at least 1"
    least = 1
    default = 50  # Lightning's own default
    trainer_flag = "log_every_n_steps"

    def applies_to(self, session: Session) -> str | None:
        now, wanted = session.settings.trainer.log_every_n_steps, self.default_value(session)
        if now == 0:
            return "log_every_n_steps is 0: steps pass nothing to the loggers"
        return f"log_every_n_steps is {now} already" if now is not None and now >= wanted else None

    def apply_live(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        seams.change_attribute(trainer, "log_every_n_steps", value, undos)


class ProfilerOff(Treatment):
    id = "profiler-off"
    summary = "trains without the Trainer's profiler"
    when = "Always, once you have the profile: every action of every step is recorded, and memory grows with them."
    trainer_flag = "profiler"  # set to None, the value of a treatment that takes none

    def applies_to(self, session: Session) -> str | None:
        return "the Trainer has no profiler" if session.settings.trainer.profiler is None else None


class ProgBarOff(Treatment):
    id = "prog-bar-off"
    effort = "minutes"
    summary = "keeps metrics off the progress bar, which reads each of them from the device in every step"
    when = "Helps where `self.log(..., prog_bar=True)` waits for the device. `=bar` removes the whole progress bar."
    is_live = True
    value_form = "metrics or bar"
    value_pattern = "metrics|bar"
    default = "metrics"

    def applies_to(self, session: Session) -> str | None:
        trainer = session.settings.trainer
        if trainer.progress_bar is None:
            return "there is no progress bar"
        return "no metric is shown on the bar at each step" if trainer.prog_bar_metrics == 0 else None

    def trainer_flags(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        return {"enable_progress_bar": False} if value == "bar" else {}

    def excluded_by(self, value: Any) -> frozenset[str]:
        return frozenset({"progress-refresh"}) if value == "bar" else self.conflicts

    def statements(self, value: Any) -> str:
        return "" if value == "bar" else "self.log(..., prog_bar=False)  # instead of prog_bar=True"

    def change_trainer_arguments(self, value: Any, arguments: dict[str, Any], undos: seams.Undos) -> None:
        pass  # the Trainer refuses the flag if the user passes a bar, so `set_up` disables the bar instead

    def set_up(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        if value == "metrics":
            for results in seams.result_collections(trainer):
                seams.untraced(_LogWithoutBar)(results, undos)
            return
        bar = trainer.progress_bar_callback
        if bar is None:
            raise TreatmentError("prog-bar-off=bar expected a progress bar; there is none")
        if not getattr(bar, "is_disabled", False):
            undos.note(bar.enable)
            bar.disable()


class _LogWithoutBar:
    """Replacement of ``log`` of Lightning's results, which every ``self.log`` calls, also of callbacks.

    Lightning refuses a name that is logged with other arguments than the first time, so the metadata of what was logged
    before is changed too, and restored by the undo.
    """

    def __init__(self, results: Any, undos: seams.Undos) -> None:
        self.results, self.inner = results, results.log
        self.hidden: set[tuple[Any, Any]] = set()
        undos.note(self.undo)
        for meta in seams.logged_metadata(results):
            if meta.prog_bar:
                self.hidden.add((meta.fx, meta.name))
                meta.prog_bar = False
        seams.change_attribute(results, "log", self, undos)

    def __call__(self, fx: Any, name: Any, value: Any, prog_bar: bool = False, *args: Any, **kwargs: Any) -> None:
        if prog_bar:
            self.hidden.add((fx, name))
        self.inner(fx, name, value, False, *args, **kwargs)

    def undo(self) -> None:
        for meta in seams.logged_metadata(self.results):
            if (meta.fx, meta.name) in self.hidden:
                meta.prog_bar = True

    def __reduce__(self) -> Any:
        return getattr, (self.results, "log")


class ProgressRefresh(Treatment):
    id = "progress-refresh"
    summary = "refreshes the progress bar every N steps"
    when = (
        "Helps where steps are so short that the bar takes a visible part of them: by default it refreshes after each "
        "one. Not needed for the RichProgressBar of Lightning 2.6, which refreshes by time."
    )
    is_live = True
    value_form = "N, steps between two refreshes, at least 1"
    least = 1
    default = 20

    def applies_to(self, session: Session) -> str | None:
        trainer = session.settings.trainer
        if trainer.progress_bar is None:
            return "there is no progress bar"
        rate, wanted = trainer.progress_bar_refresh_rate, self.default_value(session)
        if rate is None:
            return f"{trainer.progress_bar} refreshes by time"
        return f"refresh_rate is {rate} already" if rate >= wanted or rate == 0 else None

    def trainer_objects(self, value: Any) -> dict[str, Any]:
        bar = "lightning.pytorch.callbacks.TQDMProgressBar"
        return {"callbacks": [{"class_path": bar, "init_args": {"refresh_rate": value}}]}

    def set_up(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        if not seams.change_refresh_rate(trainer, value, undos):
            bar = trainer.progress_bar_callback
            found = type(bar).__name__ if bar is not None else "no bar"
            raise TreatmentError(f"progress-refresh expected a progress bar that refreshes by steps, found {found}")


class Threads(Treatment):
    id = "threads"
    safety = "numerics"
    summary = "sets the number of CPU threads that torch computes with"
    when = (
        "Helps where torch uses fewer threads than there are cores, or where ranks and workers compete for cores. "
        "Sums are split among threads, so rounding changes with their number."
    )
    is_live = True
    value_form = "N, threads per process, at least 1"
    least = 1

    def applies_to(self, session: Session) -> str | None:
        now, wanted = session.settings.torch.n_threads, self.default_value(session)
        return f"torch computes with {now} threads already" if now == wanted else None

    def default_value(self, session: Session | None) -> int:
        return super().default_value(session) or whole_cores_per_rank(session)

    def environment(self, value: Any) -> dict[str, str]:
        return {"OMP_NUM_THREADS": str(value)}

    def statements(self, value: Any) -> str:
        return f"torch.set_num_threads({value})"

    def set_up(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        import torch

        undos.note(partial(torch.set_num_threads, torch.get_num_threads()))
        torch.set_num_threads(value)
