"""Results of a PerfDoctor in Python: verdict, findings, report, and how notebooks show them."""

from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult

from lightning_perf.errors import PerfDoctorError
from lightning_perf.records import Finding, Safety, Session, Verdict
from lightning_perf.records.remote import AnyPath
from lightning_perf.reports import console as console_report
from lightning_perf.reports.render.console import DocumentReport
from lightning_perf.reports.render.html import to_fragment
from lightning_perf.reports.session_document import session_document
from lightning_perf.reports.text import report_text

_BRIEF_WIDTH = 80
_FULL_WIDTH = 100


class Report:
    """The report of a run; prints as on the terminal, and as HTML in notebooks.

    ``place`` is the path of its session file, None if it was not saved.
    """

    def __init__(self, session: Session, place: str | None, full: bool) -> None:
        self.session = session
        self._place = place
        self._is_full = full

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._is_full:
            yield DocumentReport(session_document(self.session, place=self._place))
        else:
            yield console_report.brief_report(self.session, self._place)

    def __str__(self) -> str:
        return report_text(self, _FULL_WIDTH if self._is_full else _BRIEF_WIDTH)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        place = self._place if self._is_full else None
        return to_fragment(session_document(self.session, self._is_full, place))


class Results:
    """The results of a callback's latest run.

    Attributes:
        session: The latest session; None before the first run.
    """

    session: Session | None = None
    _saved_at: AnyPath | None = None

    @property
    def verdict(self) -> Verdict | None:
        """The most important result; None before the first run."""
        return None if self.session is None else self.session.verdict

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, the most valuable first; empty before the first run."""
        return () if self.session is None else self.session.findings

    def trainer_flags(self, safety: Safety = "exact") -> dict[str, Any]:
        """Return the recommended ``Trainer`` arguments; see ``Session.trainer_flags``. Empty before the first run."""
        return {} if self.session is None else self.session.trainer_flags(safety)

    def loader_args(self, safety: Safety = "exact") -> dict[str, Any]:
        """Return the recommended arguments of the training ``DataLoader``. Empty before the first run."""
        return {} if self.session is None else self.session.loader_args(safety)

    def left_out(self, safety: Safety = "exact") -> dict[str, str]:
        """Return why recommendations are in neither of these, by recommendation. Empty before the first run."""
        return {} if self.session is None else self.session.left_out(safety)

    def report(self, full: bool = False) -> Report:
        """Return the report of the latest run: ``print`` it, or end a notebook's cell with it.

        Args:
            full: Return the complete report instead of the 15 most important lines.

        Raises:
            PerfDoctorError: There was no run yet.
        """
        if self.session is None:
            raise PerfDoctorError(
                f"{type(self).__name__} has nothing to report yet: call trainer.fit(...) with it in "
                "Trainer(callbacks=[...]) first. After a strategy that starts its own processes (ddp_spawn, "
                "ddp_notebook), read perf_session.json with lightning_perf.load(...)."
            )
        place = None if self._saved_at is None else console_report.short_path(self._saved_at)
        return Report(self.session, place, full)

    def __repr__(self) -> str:
        """Return one line: the verdict of the latest run."""
        return f"{type(self).__name__}({'no run yet' if self.session is None else repr(self.session)})"

    def _repr_html_(self) -> Any:
        return None if self.session is None else self.session._repr_html_()
