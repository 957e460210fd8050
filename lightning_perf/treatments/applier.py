"""Applies treatments to a training, at the hooks where each can be applied, and takes them out again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lightning_perf import seams
from lightning_perf.errors import TreatmentError

from .doses import Dose, check_together
from .rebuild import rebuilt
from .treatment import Undo


class Applier:
    """Applies treatments to one Trainer.

    Args:
        doses: The treatments.
        refused: Told of a loader that cannot be made anew, which the training then keeps; None to end the training.

    Raises:
        ConfigError: They exclude one another.
    """

    def __init__(self, doses: Sequence[Dose], refused: Callable[[TreatmentError], None] | None = None) -> None:
        check_together(doses)
        self.doses = tuple(doses)
        self._refused = refused
        self._undos = seams.Undos()
        self._by_loader = [dose for dose in doses if dose.treatment.asks_loader]
        self._merged = [dose for dose in doses if not dose.treatment.asks_loader]
        self._is_followed = False

    def change_trainer_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The keyword arguments of ``Trainer`` with the treatments in them; those given are left as they are.

        Raises:
            TreatmentError: The arguments given leave no place for a treatment.
        """
        changed = dict(arguments)
        for dose in self.doses:
            self._keep(dose.treatment.change_trainer_arguments(_value(dose), changed))
        return changed

    def set_up(self, trainer: Any, module: Any) -> None:
        """To be called in the callback hook ``setup``; does nothing but in ``fit``.

        Raises:
            TreatmentError: A treatment cannot be applied; the others stay until ``undo``.
        """
        if not seams.is_fitting(trainer):
            return
        arguments = loader_args(self._merged)
        if arguments or self._by_loader:
            self._is_followed = False
            self._keep(seams.tap_train_loaders(trainer, lambda loader: self._changed(trainer, loader, arguments)))
        self._each(lambda dose: dose.treatment.set_up(_value(dose), trainer, module))

    def configured(self, trainer: Any, module: Any) -> None:
        """To be called in ``on_train_start``, when the optimizers stand as they were restored.

        Raises:
            TreatmentError: A treatment cannot be applied; the others stay until ``undo``.
        """
        self._each(lambda dose: dose.treatment.configured(_value(dose), trainer, module))

    def apply_live(self, trainer: Any, module: Any) -> None:
        """Applies them between two epochs, in ``on_train_epoch_start``, before the epoch's loaders are started.

        Raises:
            TreatmentError: A treatment cannot be applied; those before it stay until ``undo``.
        """
        arguments = loader_args(self._merged)
        if arguments:
            self._keep(
                seams.exchange_train_loaders(
                    trainer,
                    lambda loader: rebuilt(loader, arguments),
                    lambda loader: self._rebuilt(loader, arguments),
                )
            )
        for dose in self.doses:
            self._keep(dose.treatment.apply_live(_value(dose), trainer, module))

    def undo(self) -> None:
        """Puts everything back, last first; may be called at any time, and twice."""
        self._undos.close()

    def _changed(self, trainer: Any, loader: Any, arguments: dict[str, Any]) -> Any:
        """The training loader made anew; what one treatment is refused, others may still change."""
        new = self._rebuilt(loader, arguments) if arguments else loader
        for dose in self._by_loader:
            before = new
            new = self._rebuilt(before, dose.treatment.loader_args_for(_value(dose), before))
            if new is not before and not self._is_followed:  # several loaders are one batch together
                self._keep(dose.treatment.follow_loader(_value(dose), trainer, before, new))
        self._is_followed = True
        return new

    def _rebuilt(self, loader: Any, arguments: dict[str, Any]) -> Any:
        try:
            return rebuilt(loader, arguments)
        except TreatmentError as error:
            if self._refused is None:
                raise
            self._refused(error)
            return loader

    def _each(self, apply: Callable[[Dose], Undo | None]) -> None:
        """One that cannot be applied keeps no other from it: where training goes on, it goes on with the others."""
        errors: list[Exception] = []
        for dose in self.doses:
            try:
                self._keep(apply(dose))
            except Exception as error:  # noqa: BLE001 - raised when the others are done
                errors.append(error)
        if len(errors) > 1:
            raise TreatmentError("; ".join(map(str, errors))) from errors[0]
        if errors:
            raise errors[0]

    def _keep(self, undo: Undo | None) -> None:
        if undo is not None:
            self._undos.note(undo)


def environment(doses: Sequence[Dose]) -> dict[str, str]:
    """Variables that must be set before the process starts, of all treatments together."""
    merged: dict[str, str] = {}
    for dose in doses:
        merged.update(dose.treatment.environment(_value(dose)))
    return merged


def loader_args(doses: Sequence[Dose]) -> dict[str, Any]:
    """The ``DataLoader`` arguments of all treatments together."""
    merged: dict[str, Any] = {}
    for dose in doses:
        merged.update(dose.treatment.loader_args(_value(dose)))
    return merged


def _value(dose: Dose) -> Any:
    """The value, chosen without a session where none was given."""
    return dose.value if dose.value is not None else dose.treatment.default_value(None)
