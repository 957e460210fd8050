"""PerfDoctor's values in Lightning's progress bar."""

from collections.abc import Callable

from lightning_perf.records import Verdict

REFRESH_S = 1.0
"""Interval between updates: values that change more often cannot be read."""


class BarFigures:
    """Figures for a progress bar, computed at most once per ``REFRESH_S``.

    ``wait_share`` returns the share of the last steps' time spent waiting for data; both return None if unknown.
    """

    def __init__(
        self,
        wait_share: Callable[[], float | None],
        verdict: Callable[[], Verdict | None],
        now_s: Callable[[], float],
    ) -> None:
        self._wait_share = wait_share
        self._verdict = verdict
        self._now_s = now_s
        self._due_s = now_s() + REFRESH_S
        self._shown: dict[str, str] = {}

    def __call__(self) -> dict[str, str]:
        """Return ``{"wait": "54%", "perf": "PD101"}``, without values that are not known yet."""
        now_s = self._now_s()
        if now_s >= self._due_s:
            self._due_s = now_s + REFRESH_S
            share, verdict = self._wait_share(), self._verdict()
            if share is not None:
                self._shown = {**self._shown, "wait": f"{share:.0%}"}
            if verdict is not None:
                self._shown = {**self._shown, "perf": verdict.code or verdict.category}
        return self._shown
