"""Apply each treatment in the hooks that it needs, and restore what it changed."""

from collections.abc import Callable, Sequence
from typing import Any

from lightning_perf import seams
from lightning_perf.errors import TreatmentError
from lightning_perf.interrupts import raise_if_from_signal

from .rebuild import rebuilt, require_forked_workers, require_stateless
from .specs import TreatmentSpec, check_together, with_default


class Applier:
    """Applies treatments to one Trainer.

    Args:
        specs: The treatments.
        refused: Called with the error if arguments of the Trainer or a loader cannot be changed, which the training
            then keeps; None to raise it.
        check_loader: Called with each training loader and its new arguments before it is rebuilt; raises an error to
            refuse.
        without: Loader arguments that ``apply_live`` does not change; ``set_up`` ignores this.

    Raises:
        ConfigError: Treatments cannot be combined.
    """

    def __init__(
        self,
        specs: Sequence[TreatmentSpec],
        refused: Callable[[TreatmentError], None] | None = None,
        check_loader: Callable[[Any, dict[str, Any]], None] | None = None,
        without: Sequence[str] = (),
    ) -> None:
        self.specs = tuple(with_default(spec, None) for spec in specs)
        check_together(self.specs)
        self._refused, self._check_loader, self._without = refused, check_loader, without
        self._undos = seams.Undos()
        self._applied = self.specs
        self._is_trainer_adapted = False

    @property
    def _loader_dependent(self) -> list[TreatmentSpec]:
        return [spec for spec in self._applied if spec.treatment.needs_loader]

    @property
    def _independent(self) -> list[TreatmentSpec]:
        return [spec for spec in self._applied if not spec.treatment.needs_loader]

    @property
    def changes_loaders(self) -> bool:
        """Whether a treatment changes the training loaders."""
        return bool(self._loader_dependent or loader_args(self._independent))

    def change_trainer_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of the keyword arguments of ``Trainer`` with the treatments applied.

        Raises:
            TreatmentError: The arguments conflict with a treatment.
        """
        changed, refused = dict(arguments), []
        for spec in self.specs:
            try:
                spec.treatment.change_trainer_arguments(spec.value, changed, self._undos)
            except TreatmentError as error:
                if self._refused is None:
                    raise
                self._refused(error)
                refused.append(spec)
        self._applied = tuple(spec for spec in self.specs if spec not in refused)
        return changed

    def apply_nothing(self) -> None:
        """Apply no treatment to this Trainer, which rejects the changed arguments."""
        self._applied = ()

    def set_up(self, trainer: Any, module: Any) -> None:
        """Apply the treatments in the callback hook ``setup``; do nothing outside ``fit``.

        Raises:
            TreatmentError: A treatment cannot be applied; the others are applied until ``undo``.
        """
        if not seams.is_fitting(trainer):
            return
        arguments = loader_args(self._independent)
        if arguments or self._loader_dependent:
            self._is_trainer_adapted = False
            seams.tap_train_loaders(trainer, lambda loader: self._changed(trainer, loader, arguments), self._undos)
        self._each(lambda spec: spec.treatment.set_up(spec.value, trainer, module, self._undos))

    def configured(self, trainer: Any, module: Any) -> None:
        """Apply the treatments in ``on_train_start``, when optimizers are created and restored.

        Raises:
            TreatmentError: A treatment cannot be applied; the others are applied until ``undo``.
        """
        self._each(lambda spec: spec.treatment.configured(spec.value, trainer, module, self._undos))

    def apply_live(self, trainer: Any, module: Any) -> None:
        """Apply the treatments between two epochs, in ``on_train_epoch_start``, before the epoch's loaders are started.

        Raises:
            TreatmentError: A treatment cannot be applied; those before it are applied until ``undo``.
        """
        arguments = {name: value for name, value in loader_args(self._independent).items() if name not in self._without}
        if arguments:
            seams.exchange_train_loaders(
                trainer,
                lambda loader: self._checked(loader, arguments, is_live=True),
                lambda loader: self._rebuilt(loader, arguments, is_live=True),
                self._undos,
            )
        for spec in self._applied:
            spec.treatment.apply_live(spec.value, trainer, module, self._undos)

    def undo(self) -> None:
        """Restore everything, last first; may be called at any time, and twice."""
        self._undos.close()

    def _changed(self, trainer: Any, loader: Any, arguments: dict[str, Any]) -> Any:
        """Rebuild a training loader. If one treatment is refused, the others may still change it."""
        new = self._rebuilt(loader, arguments) if arguments else loader
        for spec in self._loader_dependent:
            before = new
            new = self._rebuilt(before, spec.treatment.loader_args_for(spec.value, before, self._refused is None))
            if new is not before and not self._is_trainer_adapted:  # several loaders are one batch together
                spec.treatment.follow_loader(spec.value, trainer, before, new, self._undos)
        self._is_trainer_adapted = True
        return new

    def _checked(self, loader: Any, arguments: dict[str, Any], is_live: bool = False) -> Any:
        if is_live:
            require_stateless(loader)
        if self._check_loader is not None:
            self._check_loader(loader, arguments)
        new = rebuilt(loader, arguments)
        if is_live:
            require_forked_workers(loader, arguments)
        return new

    def _rebuilt(self, loader: Any, arguments: dict[str, Any], is_live: bool = False) -> Any:
        try:
            return self._checked(loader, arguments, is_live)
        except TreatmentError as error:
            if self._refused is None:
                raise
            self._refused(error)
            return loader

    def _each(self, apply: Callable[[TreatmentSpec], None]) -> None:
        """Apply every treatment; raise the errors afterwards, so that training may go on with the others."""
        errors: list[Exception] = []
        for spec in self._applied:
            try:
                apply(spec)
            except Exception as error:  # noqa: BLE001 - raised when the others are done
                raise_if_from_signal(error)
                errors.append(error)
        if len(errors) > 1:
            raise TreatmentError("; ".join(map(str, errors))) from errors[0]
        if errors:
            raise errors[0]


def loader_args(specs: Sequence[TreatmentSpec]) -> dict[str, Any]:
    """Return the ``DataLoader`` arguments of all treatments."""
    complete = (with_default(spec, None) for spec in specs)
    return {name: value for spec in complete for name, value in spec.treatment.loader_args(spec.value).items()}
