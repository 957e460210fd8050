"""What is set where Lightning tells nobody, read without changing it."""

from __future__ import annotations

from typing import Any


def logged_step(trainer: Any) -> int:
    """The step number that Lightning gives its loggers now."""
    loop = getattr(getattr(trainer, "fit_loop", None), "epoch_loop", None)
    step = getattr(loop, "_batches_that_stepped", None)
    return int(step) if step is not None else int(trainer.global_step)


def user_profiler(trainer: Any) -> Any | None:
    """Return the profiler that the user gave; None when there is none."""
    profiler = getattr(trainer, "profiler", None)
    return None if type(profiler).__name__ == "PassThroughProfiler" else profiler


def is_anomaly_detection_asked(trainer: Any) -> bool | None:
    """``Trainer(detect_anomaly=...)``, which takes effect only once a loop runs."""
    is_asked = getattr(trainer, "_detect_anomaly", None)
    return None if is_asked is None else bool(is_asked)


def ddp_arguments(strategy: Any) -> dict[str, Any] | None:
    """What will be passed to torch's DistributedDataParallel; None when the strategy is not a DDP one."""
    arguments = getattr(strategy, "_ddp_kwargs", None)
    return dict(arguments) if isinstance(arguments, dict) else None


def refreshes_by_step(progress_bar: Any) -> bool:
    """Whether the bar's ``refresh_rate`` counts steps; that of RichProgressBar is per second from Lightning 2.6 on."""
    return hasattr(progress_bar, "_should_update")


def user_batch_sampler(batch_sampler: Any) -> Any:
    """The batch sampler inside the wrapper that notes indices for ``trainer.predict``; any other as it is."""
    if type(batch_sampler).__name__ == "_IndexBatchSamplerWrapper":
        return getattr(batch_sampler, "_batch_sampler", batch_sampler)
    return batch_sampler


def step_logging(trainer: Any) -> tuple[int, bool] | None:
    """How many metrics the bar shows each step, and whether any logged on a step is reduced over ranks.

    None before the first ``self.log`` of training, and where this version does not tell. No value is read.
    """
    results = getattr(getattr(getattr(trainer, "fit_loop", None), "epoch_loop", None), "_results", None)
    if not isinstance(results, dict) or not results:
        return None
    metas = [meta for meta in (getattr(result, "meta", None) for result in results.values()) if meta is not None]
    on_step = [meta for meta in metas if meta.on_step]
    return sum(bool(meta.prog_bar) for meta in on_step), any(meta.sync.should for meta in on_step)


def live_console(trainer: Any) -> Any | None:
    """The rich console of a live RichProgressBar, which makes room for what is printed through it; None without one."""
    progress = getattr(getattr(trainer, "progress_bar_callback", None), "progress", None)
    return getattr(progress, "console", None)
