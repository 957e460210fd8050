"""Read settings and state that Lightning keeps private."""

from typing import Any

from .actions import epoch_loop


def logged_step(trainer: Any) -> int:
    """Return the step number that Lightning gives its loggers now."""
    step = getattr(epoch_loop(trainer), "_batches_that_stepped", None)
    return int(step) if step is not None else int(trainer.global_step)


def user_profiler(trainer: Any) -> Any | None:
    """Return the profiler that the user gave; None when there is none."""
    profiler = getattr(trainer, "profiler", None)
    return None if type(profiler).__name__ == "PassThroughProfiler" else profiler


def is_anomaly_detection_requested(trainer: Any) -> bool | None:
    """Return ``Trainer(detect_anomaly=...)``, which takes effect only once a loop runs."""
    is_asked = getattr(trainer, "_detect_anomaly", None)
    return None if is_asked is None else bool(is_asked)


def ddp_arguments(strategy: Any) -> dict[str, Any] | None:
    """Return the arguments of torch's DistributedDataParallel; None if the strategy is not DDP."""
    arguments = getattr(strategy, "_ddp_kwargs", None)
    return dict(arguments) if isinstance(arguments, dict) else None


def refreshes_by_step(progress_bar: Any) -> bool:
    """Return whether the bar's ``refresh_rate`` counts steps; in Lightning 2.6, RichProgressBar's is per second."""
    return hasattr(progress_bar, "_should_update")


def user_batch_sampler(batch_sampler: Any) -> Any:
    """Return the batch sampler inside the wrapper that records indices for ``trainer.predict``."""
    if type(batch_sampler).__name__ == "_IndexBatchSamplerWrapper":
        return getattr(batch_sampler, "_batch_sampler", batch_sampler)
    return batch_sampler


def step_logging(trainer: Any) -> tuple[int, bool] | None:
    """Return how many metrics the bar shows per step, and whether a metric is reduced over ranks on each step.

    None before the first ``self.log`` of training, and if this version does not report it. No value is read.
    """
    results = getattr(epoch_loop(trainer), "_results", None)
    if not isinstance(results, dict) or not results:
        return None
    metas = [meta for meta in (getattr(result, "meta", None) for result in results.values()) if meta is not None]
    on_step = [meta for meta in metas if meta.on_step]
    return sum(bool(meta.prog_bar) for meta in on_step), any(meta.sync.should for meta in on_step)


def live_display(trainer: Any) -> Any | None:
    """Return rich's display of a RichProgressBar, whose console prints above the bar; None without one."""
    progress = getattr(getattr(trainer, "progress_bar_callback", None), "progress", None)
    return progress if hasattr(progress, "console") else None
