"""Log additional rows to the user's loggers, only those known to accept any metric in any row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .actions import base_class

_ANY_FIGURE = ("CometLogger", "MLFlowLogger", "NeptuneLogger")


def tensorboard_writer(logger: Any) -> Any | None:
    """Return the ``SummaryWriter`` of Lightning's TensorBoardLogger or a subclass; None for any other logger."""
    if base_class(type(logger), ("TensorBoardLogger",)) is None:
        return None
    experiment = getattr(logger, "experiment", None)
    return experiment if hasattr(experiment, "add_text") and hasattr(experiment, "add_scalar") else None


def takes_any_figure(logger: Any) -> bool:
    """Return whether a logger is Lightning's for a hosted service, or a subclass.

    Others may have fixed columns: a CSVLogger rewrites its file for a new one, a custom logger may reject it.
    """
    return base_class(type(logger), (*_ANY_FIGURE, "WandbLogger")) is not None


def log_own_row(logger: Any, figures: Mapping[str, float], step: int) -> None:
    """Log figures in a row that Lightning does not write.

    W&B numbers its rows itself, and drops a row to which the user gives a lower number than the last one's. A row of
    ours would raise that number, so the figures join W&B's open row (``commit=False``), which the next call completes.

    Args:
        logger: One that ``takes_any_figure``.
        figures: By name.
        step: The step number of the row.
    """
    if base_class(type(logger), ("WandbLogger",)) is None:
        logger.log_metrics(metrics=dict(figures), step=step)
        return
    prefix = getattr(logger, "_prefix", "")
    row = {f"{prefix}-{name}" if prefix else name: value for name, value in figures.items()}
    logger.experiment.log({**row, "trainer/global_step": step}, commit=False)
