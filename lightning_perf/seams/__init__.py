"""The only package that touches private parts of Lightning: one function a seam, each guarded for Lightning 2.4 … 2.6.

A seam that this version of Lightning lacks gives None, and the caller records why its measurement is missing. Whatever
a seam puts in place is taken out by the function it returns, and only if it still stands there.
"""

from .actions import (
    Action,
    describe_action,
    is_checkpoint_callback,
    is_fitting,
    is_overridden,
    is_progress_bar,
    namespace,
)
from .changes import (
    change_ddp_arguments,
    change_refresh_rate,
    compile_module,
    logged_metadata,
    write_checkpoints_beside,
)
from .endings import tap_end_of_run, tear_down
from .loaders import exchange_train_loaders, tap_train_loaders, tap_train_loaders_ready
from .loggers import log_own_row, takes_any_figure, tensorboard_writer
from .profiler import tap_profiler
from .scratch import lead_loggers_away, redirected_logger, stop_fit, wrap_checkpoint_io
from .settings import (
    ddp_arguments,
    is_anomaly_detection_asked,
    live_console,
    logged_step,
    refreshes_by_step,
    step_logging,
    user_batch_sampler,
    user_profiler,
)
from .timed import (
    tap_backward,
    tap_logging,
    tap_optimizers,
    tap_progress_bar,
    tap_reduce,
    tap_sigterm_broadcast,
    tap_validation,
)
from .undo import Undo, Undos, change_attribute, remove_hook, run_to_the_end

__all__ = [
    "Action",
    "Undo",
    "Undos",
    "change_attribute",
    "change_ddp_arguments",
    "change_refresh_rate",
    "compile_module",
    "ddp_arguments",
    "describe_action",
    "exchange_train_loaders",
    "is_anomaly_detection_asked",
    "is_checkpoint_callback",
    "is_fitting",
    "is_overridden",
    "is_progress_bar",
    "lead_loggers_away",
    "live_console",
    "log_own_row",
    "logged_metadata",
    "logged_step",
    "namespace",
    "redirected_logger",
    "refreshes_by_step",
    "remove_hook",
    "run_to_the_end",
    "step_logging",
    "stop_fit",
    "takes_any_figure",
    "tap_backward",
    "tap_end_of_run",
    "tap_logging",
    "tap_optimizers",
    "tap_profiler",
    "tap_progress_bar",
    "tap_reduce",
    "tap_sigterm_broadcast",
    "tap_train_loaders",
    "tap_train_loaders_ready",
    "tap_validation",
    "tear_down",
    "tensorboard_writer",
    "user_batch_sampler",
    "user_profiler",
    "wrap_checkpoint_io",
    "write_checkpoints_beside",
]
