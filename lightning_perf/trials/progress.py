"""Show the progress of a trial: a status line on a terminal, elsewhere one line per run."""

import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status

from lightning_perf.records import Arm, ArmRun, Session, Trial
from lightning_perf.reports.sections.machine import other_programs_fact
from lightning_perf.reports.sections.trials import MEASUREMENT, baseline_noise
from lightning_perf.reports.wording import line, seconds
from lightning_perf.trials.rounds import MIN_ROUNDS, PlannedRun
from lightning_perf.trials.trial import State


class Progress:
    """Prints the progress of a trial to stderr, because ``--json`` prints to stdout."""

    def __init__(self, folder: Path, is_quiet: bool = False) -> None:
        self.console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False, quiet=is_quiet)
        self.folder = folder
        self._status: Status | None = None
        self._noise = ""

    def __enter__(self) -> "Progress":
        self.console.print(f"The trial is in {self.folder}")
        return self

    def __exit__(self, *_: Any) -> None:
        self._end()

    def diagnosing(self) -> None:
        """Show that the baseline runs with PerfDoctor."""
        self._show("diagnosing the training as it is")

    def planned(self, session: Session, state: State) -> None:
        """Print the diagnosis and the treatments to try."""
        self._end()
        trial = state.trial
        self.console.print(f"Diagnosis: {line(session.verdict.text, 300)}")
        others = other_programs_fact(session)
        if others:
            self.console.print(f"Caution: {others}; stop them for a reliable result")
        named = [one.treatment for one in state.plan.candidates]
        names = ", ".join([*named, *["the fastest batch size"] * state.plan.finds_batch]) or "nothing"
        often = f"{trial.repeats} runs each, fewer if results are clear, more if not"
        if trial.repeats < MIN_ROUNDS:
            often = f"1 run each, too few for a verdict (--repeats {MIN_ROUNDS})"
        self.console.print(f"To try: {names}; {trial.steps} steps per run, {often}")
        for name, reason in trial.not_tried.items():
            self.console.print(f"  not tried: {name}: {line(reason, 300)}")

    def running(self, run: PlannedRun, about: int, trial: Trial) -> None:
        """Show the start of a run, the first of ``about`` runs that remain."""
        number = len(trial.runs) + 1
        left = f"{about - 1} or more" if about > 1 else "perhaps no more"
        self._show(f"run {number}, {left} after it: {run.arm}{_best_so_far(trial)}")

    def ran(self, run: ArmRun, trial: Trial) -> None:
        """Print the result of a run, with the updated trial."""
        self._end()
        arm = next((one for one in trial.arms if one.id == run.arm), None)
        self.console.print(f"{len(trial.runs):3d}  {run.arm}: {_result(run, arm)}")
        noise = baseline_noise(trial)
        if noise and not self._noise:
            self.console.print(f"{noise}; Ctrl-C ends the trial")
        self._noise = noise

    def _show(self, text: str) -> None:
        self._end()
        if self.console.is_terminal and not self.console.quiet:
            self._status = self.console.status(text)
            self._status.start()
        else:
            self.console.print(text)

    def _end(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


def _result(run: ArmRun, arm: Arm | None) -> str:
    if run.status == "failed":
        return f"failed: {line(run.reason, 300)}"
    if not run.block_means_s:
        return f"not measured: {line(run.reason, 300)}"
    text = f"{seconds(sum(run.block_means_s) / len(run.block_means_s))} per step"
    if arm is not None and arm.speedup is not None:
        text += f"; so far {arm.speedup.value:.2f}x ({arm.speedup.low:.2f}–{arm.speedup.high:.2f})"
    return text


def _best_so_far(trial: Trial) -> str:
    improved = [arm for arm in trial.arms if arm.verdict == "improved" and arm.id != MEASUREMENT]
    speedups = [(arm.speedup.value, arm.id) for arm in improved if arm.speedup is not None]
    if not speedups:
        return ""
    speedup, name = max(speedups)
    return f" (best so far {name}: {speedup:.2f}x)"
