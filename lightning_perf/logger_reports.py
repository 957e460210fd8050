"""Reports of a session in the user's loggers."""

from collections.abc import Callable
from typing import Any

from lightning_perf import seams
from lightning_perf.records import Session
from lightning_perf.records.files import require_free_space
from lightning_perf.reports import tensorboard as tensorboard_report


class LoggerReports:
    """Reports of one run in the user's loggers: TensorBoard's writer, and hosted services that take any figure.

    Each report is logged as a separate row; Lightning's own rows do not change. Other loggers get nothing.
    """

    def __init__(self) -> None:
        self._sessions: dict[int, tensorboard_report.SessionWriter] = {}

    def write(self, trainer: Any, session: Session, guard: Callable[..., None]) -> None:
        """Report a session to each logger.

        ``guard(name, function, *arguments)`` calls the function; if it raises, that name is switched off.
        """
        step = seams.logged_step(trainer)
        for logger in trainer.loggers:
            if seams.accepts_any_figure(logger):
                # With the step of the epoch's last row, which Lightning's own row for the epoch has too.
                guard(type(logger).__name__, self._log_figures, logger, session, max(0, step - 1))
            else:
                guard("tensorboard", self._write_events, logger, session, step)

    def _log_figures(self, logger: Any, session: Session, step: int) -> None:
        require_free_space(logger.save_dir or ".", 0)  # services keep files of their own on this machine
        seams.log_own_row(logger, tensorboard_report.scalars(session), step)

    def _write_events(self, logger: Any, session: Session, step: int) -> None:
        writer = seams.tensorboard_writer(logger)
        if writer is None:
            return
        # If a write fails, each later write of the user's raises too: torch's writer does not recover.
        require_free_space(getattr(writer, "log_dir", None) or ".", tensorboard_report.EVENT_BYTES)
        tensorboard_report.write_scalars(writer, session, step)
        tensorboard_report.write_text(writer, session, step)
        self._sessions.setdefault(id(logger), tensorboard_report.SessionWriter()).write(writer, session, step)
