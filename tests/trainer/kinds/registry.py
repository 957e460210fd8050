"""Declaration of kinds of training, and the arguments of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer


class SkipKind(Exception):
    """Raised by a kind that cannot run on this machine."""


@dataclass(frozen=True)
class Kind:
    """One kind of training.

    Attributes:
        name: Its unique name.
        train: Does the training.
        core: Whether ``make test`` runs it; ``make torture`` runs all.
        probes: Whether ``make test`` probes its loaders as well, as ``make torture`` does in all kinds.
        fresh: Whether each run needs a newly started interpreter instead of a forked one.
        rounds: Times that ``make torture`` runs it at most.
        limit_s: Time limit of one run.
        ignore: Patterns of observations that differ between two bare runs.
        may_fail: Probes that may be switched off here, and reports that may fail.
        configurations: The settings of PerfDoctor to compare with; fewer where runs are slow.
    """

    name: str
    train: Callable[[Run], None]
    core: bool = False
    probes: bool = False
    fresh: bool = False
    rounds: int = 1000
    limit_s: float = 120.0
    ignore: tuple[str, ...] = ()
    may_fail: tuple[str, ...] = ()
    configurations: tuple[str, ...] = ("defaults", "windows", "everything")


KINDS: dict[str, Kind] = {}


def kind(name: str, **options: Any) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Declare a function as a kind of training.

    Args:
        name: Unique name, shown as the test's id.
        options: Further attributes of ``Kind``.
    """

    def declare(train: Callable[[Run], None]) -> Callable[[Run], None]:
        if name in KINDS:
            raise ValueError(f"two kinds are named {name!r}")
        KINDS[name] = Kind(name, train, **options)
        return train

    return declare


@dataclass
class Run:
    """One run of a kind: bare, or with PerfDoctor.

    Attributes:
        folder: Empty folder that the run may write to; the current directory is below it.
        doctors: PerfDoctor as a list of one; empty in a bare run.
        make_doctors: Creates another such list, e.g. for a Trainer of another namespace.
        trainers: Trainers to observe after the run.
        notes: What the kind observed itself, compared as well.
        used: Every PerfDoctor that a Trainer was given.
    """

    folder: Path
    doctors: list[Any]
    make_doctors: Callable[[str], list[Any]]
    trainers: list[Any] = field(default_factory=list)
    notes: list[Any] = field(default_factory=list)
    used: list[Any] = field(default_factory=list)

    def arguments(self, **arguments: Any) -> dict[str, Any]:
        """Return arguments of a quiet CPU Trainer that writes below the run's folder."""
        defaults: dict[str, Any] = {
            "accelerator": "cpu",
            "devices": 1,
            "max_epochs": 2,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": self.folder / "root",
        }
        if arguments.get("barebones"):
            defaults = {name: defaults[name] for name in ("accelerator", "max_epochs", "default_root_dir")}
        return {**defaults, **arguments}

    def trainer(
        self,
        *callbacks: Any,
        before: Any = (),
        trainer_class: type = Trainer,
        same_doctors: bool = False,
        **arguments: Any,
    ) -> Any:
        """Return a Trainer with a PerfDoctor, if this run has one, and a callback that records each step.

        Args:
            callbacks: Callbacks after PerfDoctor.
            before: Callbacks before PerfDoctor.
            trainer_class: The Trainer's class.
            same_doctors: Whether to give it the PerfDoctor of the Trainer before.
            arguments: Arguments of the Trainer besides the defaults.
        """
        from trainer.observations import step_recorder

        if any(one in self.used for one in self.doctors) and not same_doctors:
            self.doctors = self.make_doctors("lightning.pytorch")  # a used one would first clean up after its last run
        self.used += self.doctors
        everyone = [*before, *self.doctors, *callbacks, step_recorder(self.notes, trainer_class)]
        return self.watch(trainer_class(callbacks=everyone, **self.arguments(**arguments)))

    def watch(self, trainer: Any) -> Any:
        """Observe this Trainer after the run."""
        self.trainers.append(trainer)
        return trainer

    def note(self, *values: Any) -> None:
        """Compare these values between the runs."""
        self.notes.append(values)

    def attempt(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function and note the exception that it raises, if any."""
        try:
            return function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - compared
            self.note("raised", type(error).__name__, str(error))
            return None
