"""What a treatment is: one change to a training, how safe it is, how a user writes it, and how it is applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from lightning_perf.errors import ConfigError
from lightning_perf.records import Effort, Prescription, Safety, Session

Undo = Callable[[], None]
"""Puts back what was changed; calling it twice does no harm."""

ActsOn = Literal["step", "loop"]


class Treatment:
    """One change. Treatments hold no state: what one changed is put back by the ``Undo`` that it returned.

    Attributes:
        id: E.g. ``"loader-workers"``.
        safety: ``exact`` (same results up to data order), ``numerics`` (rounding), ``semantics`` (the training itself).
        effort: What it takes a user to write it.
        summary: One sentence.
        when: When it helps, and when it does not; for the reference page.
        acts_on: ``"step"``: its effect shows inside steps; ``"loop"``: at the boundaries of epochs, in validation or
            checkpoints, which a trial of a few steps does not see.
        conflicts: Ids of treatments that cannot be applied beside it; one of the two naming the other is enough.
        is_live: Whether it can be applied between two epochs of a running training.
        asks_loader: Whether its loader arguments depend on the loader: see ``loader_args_for``.
        value_form: What may follow ``id=``, for messages and docs; empty where it takes no value.
    """

    id: ClassVar[str]
    safety: ClassVar[Safety] = "exact"
    effort: ClassVar[Effort] = "one line"
    summary: ClassVar[str]
    when: ClassVar[str] = ""
    acts_on: ClassVar[ActsOn] = "step"
    conflicts: ClassVar[frozenset[str]] = frozenset()
    is_live: ClassVar[bool] = False
    asks_loader: ClassVar[bool] = False
    value_form: ClassVar[str] = ""

    # -- what it is for a session ------------------------------------------------------------

    def applies_to(self, session: Session) -> str | None:
        """Why it does not apply to the training that a session is of; None where it does."""
        return None

    def default_value(self, session: Session | None) -> Any:
        """The value to use where none is given, from what the session's findings prescribe."""
        return None

    def parse_value(self, text: str | None) -> Any:
        """The value behind ``id=``.

        Args:
            text: What stands there; None where only the id was given.

        Returns:
            The value; None for the default, to be chosen by ``default_value``.

        Raises:
            ConfigError: It is not a value of this treatment.
        """
        if text is not None:
            raise ConfigError(f"{self.id}={text!r}: {self.id} takes no value; write {self.id}")
        return None

    # -- how a user writes it ------------------------------------------------------------

    def trainer_flags(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        """Keyword arguments for ``Trainer`` that JSON can hold."""
        return {}

    def trainer_code(self, value: Any) -> dict[str, str]:
        """Keyword arguments for ``Trainer`` that only code can hold, as Python expressions."""
        return {}

    def imports(self, value: Any) -> str:
        """The import that ``trainer_code`` needs; empty for none."""
        return ""

    def trainer_yaml(self, value: Any) -> dict[str, Any]:
        """The same for a LightningCLI configuration, below ``trainer:``."""
        return {}

    def strategy_args(self, value: Any) -> dict[str, Any]:
        """Keyword arguments for ``DDPStrategy``."""
        return {}

    def loader_args(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        """Keyword arguments for the training ``DataLoader``."""
        return {}

    def environment(self, value: Any) -> dict[str, str]:
        """Variables that must be set before the process starts."""
        return {}

    def statements(self, value: Any) -> str:
        """Python lines beside ``Trainer(...)`` and ``DataLoader(...)``; empty where there are none."""
        return ""

    # -- how it is applied ------------------------------------------------------------

    def change_trainer_arguments(self, value: Any, arguments: dict[str, Any]) -> Undo | None:
        """Changes the keyword arguments of ``Trainer`` in place, before it is built."""
        arguments.update(self.trainer_flags(value))
        return None

    def set_up(self, value: Any, trainer: Any, module: Any) -> Undo | None:
        """Applies it in the callback hook ``setup``: the module stands; loaders, DDP and optimizers do not yet.

        Raises:
            TreatmentError: It cannot be applied to this training.
        """
        return None

    def loader_args_for(self, value: Any, loader: Any) -> dict[str, Any]:
        """The ``DataLoader`` arguments to make a training loader anew with; asked only where ``asks_loader``."""
        return self.loader_args(value)

    def follow_loader(self, value: Any, trainer: Any, before: Any, after: Any) -> Undo | None:
        """What has to change with the first training loader, once it was made anew; called where ``asks_loader``."""
        return None

    def configured(self, value: Any, trainer: Any, module: Any) -> Undo | None:
        """Applies it in ``on_train_start``: the optimizers stand, restored where a checkpoint is resumed.

        Raises:
            TreatmentError: It cannot be applied to this training.
        """
        return None

    def apply_live(self, value: Any, trainer: Any, module: Any) -> Undo | None:
        """Applies it between two epochs; only where ``is_live``. Loader arguments are the Applier's business.

        Raises:
            TreatmentError: It cannot be applied to this training.
        """
        return self.set_up(value, trainer, module)

    # -- small help for treatments ------------------------------------------------------------

    def prescribed(self, session: Session | None) -> Prescription | None:
        """The first prescription of this treatment in the session's findings, best finding first."""
        if session is None:
            return None
        prescriptions = (p for finding in session.findings for p in finding.prescriptions)
        return next((p for p in prescriptions if p.treatment == self.id), None)

    def bad_value(self, text: str | None) -> ConfigError:
        """The error for a value of no use."""
        return ConfigError(f"{self.id}={text!r}: expected {self.id}={self.value_form}")

    def whole(self, text: str | None, least: int) -> int | None:
        """A whole number of at least ``least``; None where no value was given."""
        if text is None:
            return None
        if not text.isdecimal() or int(text) < least:
            raise self.bad_value(text)
        return int(text)
