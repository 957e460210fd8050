"""Log additional rows and files to the user's loggers, only to those known to accept them; and find a run's folder."""

import io
import os
import sys
from collections.abc import Mapping
from typing import Any

from .actions import base_class


def tensorboard_writer(logger: Any) -> Any | None:
    """Return the ``SummaryWriter`` of Lightning's TensorBoardLogger or a subclass; None for any other logger."""
    if base_class(type(logger), ("TensorBoardLogger",)) is None:
        return None
    experiment = getattr(logger, "experiment", None)
    return experiment if hasattr(experiment, "add_text") and hasattr(experiment, "add_scalar") else None


def accepts_any_figure(logger: Any) -> bool:
    """Return whether a logger is Lightning's for a hosted service, or a subclass.

    Others may have fixed columns: a CSVLogger rewrites its file for a new one, a custom logger may reject it.
    """
    return base_class(type(logger), ("CometLogger", "MLFlowLogger", "NeptuneLogger", "WandbLogger")) is not None


def log_own_row(logger: Any, figures: Mapping[str, float], step: int) -> None:
    """Log figures in a row that Lightning does not write.

    W&B numbers its rows itself, and drops a row whose number from the user is lower than the last one's. A new row
    would raise that number, so the figures join W&B's open row (``commit=False``), which the next call completes.
    ``logger`` is one that ``accepts_any_figure``.
    """
    if base_class(type(logger), ("WandbLogger",)) is None:
        logger.log_metrics(metrics=dict(figures), step=step)
        return
    prefix = getattr(logger, "_prefix", "")
    row = {f"{prefix}-{name}" if prefix else name: value for name, value in figures.items()}
    logger.experiment.log({**row, "trainer/global_step": step}, commit=False)


def upload_files(logger: Any, name: str, files: Mapping[str, bytes]) -> None:
    """Add files to the run of a hosted service; the client may still send them after this returns.

    ``logger`` is one that ``accepts_any_figure``. ``name`` is that of the artifact in services that version them.
    """
    run, folder = logger.experiment, "lightning_perf"
    if base_class(type(logger), ("WandbLogger",)) is not None:
        artifact = sys.modules["wandb"].Artifact(f"{name}-{run.id}", type=folder)
        for file, content in files.items():
            with artifact.new_file(file, mode="wb") as target:
                target.write(content)
        run.log_artifact(artifact)
        return
    for file, content in files.items():
        if base_class(type(logger), ("MLFlowLogger",)) is not None:
            run.log_text(logger.run_id, content.decode(), f"{folder}/{file}")
        elif base_class(type(logger), ("CometLogger",)) is not None:
            run.log_asset(io.BytesIO(content), file_name=f"{folder}/{file}")
        else:
            stem, _, extension = file.rpartition(".")
            run[f"{folder}/{stem}"].upload(sys.modules["neptune"].types.File.from_content(content, extension=extension))


def run_folder(trainer: Any, log_dir: str | None, new: str) -> str:
    """Return a folder that no other run of the same project uses: that of the first logger's checkpoints.

    ``Trainer.log_dir`` is specific to the run only for loggers of files; for others it is the folder of all runs.
    ``new`` is the path of a folder that does not exist, for runs without a logger or name.
    """
    root, logger = trainer.default_root_dir, next(iter(trainer.loggers), None)
    if logger is not None and trainer.is_global_zero:
        if base_class(type(logger), ("TensorBoardLogger", "CSVLogger")) is not None and log_dir:
            return log_dir
        root, version = getattr(logger, "save_dir", None) or root, logger.version  # loggers of Fabric have no save_dir
        if version not in (None, ""):
            return os.path.join(
                root, str(logger.name or ""), version if isinstance(version, str) else f"version_{version}"
            )
    return os.path.join(root, new)
