"""Save one run in the history, and report once if it is slower than earlier runs of the same training."""

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from lightning_perf.records import Comparison, EarlierRun, EarlierRuns, Session
from lightning_perf.reports.sections.machine import other_programs_fact
from lightning_perf.reports.wording import line, phase_name, seconds, share, times
from lightning_perf.stats.comparison import BAND, compare_sessions, typical_step_s
from lightning_perf.stats.next_run import LAST_RUNS, MIN_RUNS, alpha_of

from .entry import reduced
from .slower import Slower, detectable_factor, explained_factor, like_runs, machine_factor, slower_times
from .store import History
from .suspects import changes, differences, settings_of, suspects

MIN_STEPS = 200
"""Steady steps before a run is compared; then again whenever their number has doubled."""

MAX_RUNS = 20
"""Earlier runs that show how much runs differ, and that plots show."""

_LEAST_SCORE = 0.1
"""Weaker suspects are not named during the run."""

_MAX_SUSPECTS = 2

_MIN_PART = 0.2
"""Part of the whole growth that a phase accounts for if it is named."""

_log = logging.getLogger("lightning_perf")
T = TypeVar("T")


class RunHistory:
    """The history of one run, in ``file``; None to keep no history. If the file cannot be used, there is none."""

    def __init__(self, file: Path | None) -> None:
        self._history = None if file is None else History(file)
        self._runs: list[Session] | None = None
        self._past: tuple[EarlierRun, ...] = ()
        self._next_step, self._n_comparisons = MIN_STEPS, 0
        self._news = ""
        self._detectable: float | None = None
        self._machine_factor: float | None = None

    @property
    def is_kept(self) -> bool:
        """Whether the run is saved, and compared with earlier ones."""
        return self._history is not None

    def news(self, session: Session) -> str | None:
        """Return once, in one line, what is slower than in the last runs; None if nothing is, or if it is unknown."""
        n_steps = session.steady.n_steps if session.steady is not None else 0
        if self._news or n_steps < self._next_step:
            return None
        self._next_step = 2 * n_steps
        # Because of rare slow steps, the level of a step depends a little on the length of the run.
        least = max(MIN_STEPS // 2, n_steps // 4)
        base = [one for one in self._earlier(session) if one.steady is not None and one.steady.n_steps >= least]
        if len(base) >= MIN_RUNS:
            new, alpha = reduced(session), alpha_of(self._n_comparisons)
            base = like_runs(base, new)
            self._news = news_of(base, new, alpha, other_programs_fact(session))
            if self._n_comparisons == 0:  # later comparisons find little that the first does not
                self._detectable = detectable_factor(base, new, alpha)
            factor = explained_factor(base, new, "step")
            self._machine_factor = factor if factor != 1 else None
            self._n_comparisons += 1
        return self._news or None

    def earlier(self, session: Session) -> EarlierRuns | None:
        """Return the earlier runs and this one; None without any, or before the first steady steps."""
        if typical_step_s(session) is None:
            return None
        past = self._earlier(session)
        if not past:
            return None
        if not self._past:  # reading their settings takes longer than all else here, and is needed once
            self._past = earlier_runs(past)
        runs = (*self._past, *earlier_runs([past[-1], reduced(session)])[1:])
        return EarlierRuns(runs=runs, news=self._news, detectable=self._detectable, machine_factor=self._machine_factor)

    def save(self, session: Session) -> None:
        """Save the run as it is now."""
        if session.steady is not None:
            self._use_history(lambda history: history.save(session))

    def _earlier(self, session: Session) -> list[Session]:
        if self._runs is None:
            found = self._use_history(lambda history: history.same_training(session, MAX_RUNS)) or []
            self._runs = [one for one in found if typical_step_s(one) is not None]
        return self._runs

    def _use_history(self, use: Callable[[History], T]) -> T | None:
        try:
            return None if self._history is None else use(self._history)
        except (OSError, sqlite3.Error) as error:  # e.g. a read-only home directory
            _log.info("PerfDoctor keeps no history of this run: %s.", error)
            self._history = None
            return None


def news_of(base: list[Session], session: Session, alpha: float, others: str = "") -> str:
    """Return in one line that a run is slower than the last runs, in which phase, and what changed; empty if not.

    ``others`` says that other programs use many cores, if they do.
    """
    all_slower = slower_times(base, session, alpha)
    if not all_slower:
        return ""
    slower = all_slower[0]
    explanation = _explanation(slower, machine_factor(base, session))
    base = base[-LAST_RUNS:]
    comparison = _with_explained(compare_sessions([("", one) for one in base], [("", session)]), slower.explained)
    found = [str(each) for each in suspects(base, [session], comparison) if each.score >= _LEAST_SCORE]
    if found:
        since = f"since then {', '.join(found[:_MAX_SUSPECTS])}"
    else:
        since = "no changed setting explains it" if changes(base[-1], session) else "no setting or version changed"
    last = f"your last {len(base)} runs"
    by = slower.factor
    much = f"{share(by - 1, 0)} slower than" if by < 2 else f"{times(by)} the time per step of"
    parts = (f"{much} {last}{explanation}{_longer_phase(comparison, slower)}", since, others)
    return line("; ".join(part for part in parts if part), 400)


def _explanation(slower: Slower, machine: float | None) -> str:
    """Return the text on what the factor excludes, or that the machine itself is slower."""
    explained = slower.explained
    if explained > 1 + BAND:
        why = "by which all else in a step is slower" if slower.has_slower_rest else "because the machine is slower"
        return f", on top of {share(explained - 1, 0)} {why}"
    if explained < 1 / (1 + BAND):
        return f", although the machine is faster, which saves {share(1 - explained, 0)}"
    if explained == 1 and machine is not None and machine > 1 + BAND:
        return f" (the machine itself is {share(machine - 1, 0)} slower)"
    return ""


def _with_explained(comparison: Comparison, explained: float) -> Comparison:
    """Return a comparison whose base times include what is explained."""
    found = tuple(
        msgspec.structs.replace(one, base_s=one.base_s * explained) if one.base_s is not None else one
        for one in comparison.times
    )
    return msgspec.structs.replace(comparison, times=found)


def _longer_phase(comparison: Comparison, slower: Slower) -> str:
    """Return the phase that grew most; empty if none accounts for much of it."""
    grown_s = {one.name: (one.new_s or 0.0) - (one.base_s or 0.0) for one in comparison.times}
    phases = [slower.phase] if slower.phase else [one.name for one in comparison.times[2:]]
    most = max(phases, key=lambda name: grown_s.get(name, 0.0), default="")
    is_much = grown_s.get(most, 0.0) > _MIN_PART * grown_s[slower.name] > 0
    return f": {phase_name(most)} +{seconds(grown_s[most])} per {comparison.per}" if is_much else ""


def earlier_runs(sessions: list[Session]) -> tuple[EarlierRun, ...]:
    """Return runs of one training, oldest first, each with what changed since the one before it."""
    found: list[EarlierRun] = []
    before: dict[str, str] | None = None
    for session in sessions:
        step_s, steady = typical_step_s(session), session.steady
        if step_s is None or steady is None:
            continue
        settings = settings_of(session)
        found.append(
            EarlierRun(
                id=session.run.id,
                started_at=session.run.started_at,
                n_steps=steady.n_steps,
                step_s=step_s,
                phase_s={name: phase.total_s / steady.n_span_steps for name, phase in steady.phases.items()},
                changes=() if before is None else differences(before, settings),
            )
        )
        before = settings
    return tuple(found)
