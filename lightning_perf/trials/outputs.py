"""Redirect what a measured training writes away from the user's folders and services."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning_perf import seams
from lightning_perf.hooks import DoctorHooks


class Outputs:
    """Redirects checkpoints, logs and profiles of one Trainer into a folder; ``package`` is the Trainer's namespace."""

    def __init__(self, folder: Path, package: str) -> None:
        self.folder = folder
        self.package = package
        self.has_saved_checkpoint = False
        folder.mkdir(parents=True, exist_ok=True)

    def change_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of ``Trainer`` with all output paths redirected."""
        changed = {**arguments, "default_root_dir": str(self.folder)}
        loggers = arguments.get("logger")
        if isinstance(loggers, (list, tuple)):
            changed["logger"] = [self._logger(one) for one in loggers]
        elif loggers is not None and not isinstance(loggers, bool):
            changed["logger"] = self._logger(loggers)
        return changed

    def redirect(self, trainer: Any) -> None:
        """Redirect the loggers, callbacks and profiler of a built Trainer; may be called again."""
        loggers = [self._logger(one) for one in trainer.loggers]
        if any(new is not old for new, old in zip(loggers, trainer.loggers, strict=True)):
            trainer.loggers = loggers
        for index, callback in enumerate(trainer.callbacks):
            if seams.is_checkpoint_callback(callback):
                place = getattr(callback, "dirpath", None)
                if place is not None and not self._is_inside(place):
                    callback.dirpath = str(self.folder / f"checkpoints-{index}")
            elif isinstance(callback, DoctorHooks) and not (callback.out_dir and self._is_inside(callback.out_dir)):
                callback.out_dir = self.folder / "doctor"
        profiler: Any = seams.user_profiler(trainer)
        if getattr(profiler, "dirpath", None) is not None:
            profiler.dirpath = str(self.folder)

    def guard_checkpoints(self, trainer: Any) -> None:
        """Redirect checkpoints that are saved outside the folder, and ignore their removal."""
        seams.wrap_checkpoint_io(trainer, self._save, self._remove)

    def _save(self, save: Callable[..., Any], checkpoint: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        self.has_saved_checkpoint = True
        if not self._is_inside(filepath):
            filepath = str(self.folder / "saved" / Path(str(filepath)).name)
        return save(checkpoint, filepath, *args, **kwargs)

    def _remove(self, remove: Callable[..., Any], filepath: Any) -> Any:
        return remove(filepath) if self._is_inside(filepath) else None

    def _logger(self, logger: Any) -> Any:
        return seams.redirected_logger(logger, str(self.folder), self.package)

    def _is_inside(self, path: Any) -> bool:
        folder = os.path.realpath(self.folder)
        return os.path.commonpath([folder, os.path.realpath(str(path))]) == folder if "://" not in str(path) else False
