"""The base class of treatments: one change to a training, how a user writes it, and how it is applied."""

import re
from types import FunctionType
from typing import Any, ClassVar, Literal

from lightning_perf.cgroups import ranks_on_node, read_usable_cores
from lightning_perf.errors import ConfigError, TreatmentError
from lightning_perf.records import Effort, Prescription, Safety, Session
from lightning_perf.seams import Undos, calls_clip_gradients


class Treatment:
    """One change to a training.

    Treatments hold no state: a method that changes something notes in ``undos``, before the change, how to restore it,
    because an interrupt can come at any line. A change that is only an argument of ``Trainer`` or ``DataLoader`` is
    declared by the attributes; other treatments override methods.

    Attributes:
        id: For example ``"loader-workers"``.
        safety: ``exact`` (same results up to data order), ``numerics`` (rounding), ``semantics`` (the training itself).
        effort: How much work a user has to write it.
        summary: One sentence.
        when: When it helps and when it does not, for the reference page.
        acts_on: ``"step"``: it changes the time of steps. ``"loop"``: it changes epoch boundaries, validation,
            checkpoints or later epochs, which a trial of a few steps does not measure.
        conflicts: Ids of treatments that cannot be combined with it. Only one of the two has to name the other.
        is_measurement: Whether it is only for comparison: a trial measures it alone and never keeps it.
        is_live: Whether it can be applied between two epochs of a running training.
        hides_errors: Whether the training may continue where it would have raised an error, so that the autopilot does
            not try it while results must be exact.
        needs_loader: Whether its loader arguments depend on the loader (see ``loader_args_for``).
        value_form: Values that ``id=`` accepts, for messages and docs; empty if it takes no value.
        value_pattern: Regular expression that values match; unused if ``least`` is set.
        least: Smallest value, for treatments whose value is a whole number.
        default: Value if neither the user nor a finding gives one.
        trainer_flag: Argument of ``Trainer`` that it sets.
        loader_argument: Argument of ``DataLoader`` that it sets.
        setting: What the argument is set to; None for the treatment's value.
        trainer_code: Arguments of ``Trainer`` as Python code that only the user can complete.
        code: Python lines to write besides ``Trainer(...)`` and ``DataLoader(...)``, whatever the value; empty if none.
    """

    id: ClassVar[str]
    safety: ClassVar[Safety] = "exact"
    effort: ClassVar[Effort] = "one line"
    summary: ClassVar[str]
    when: ClassVar[str] = ""
    acts_on: ClassVar[Literal["step", "loop"]] = "step"
    conflicts: ClassVar[frozenset[str]] = frozenset()
    is_measurement: ClassVar[bool] = False
    is_live: ClassVar[bool] = False
    hides_errors: ClassVar[bool] = False
    needs_loader: ClassVar[bool] = False
    value_form: ClassVar[str] = ""
    value_pattern: ClassVar[str] = ""
    least: ClassVar[int | None] = None
    default: ClassVar[Any] = None
    trainer_flag: ClassVar[str] = ""
    loader_argument: ClassVar[str] = ""
    setting: ClassVar[Any] = None
    trainer_code: ClassVar[dict[str, str]] = {}
    code: ClassVar[str] = ""

    # -- for a session ------------------------------------------------------------

    def applies_to(self, session: Session) -> str | None:
        """Return why it does not apply to the session's training; None if it applies."""
        return None

    def default_value(self, session: Session | None) -> Any:
        """Return the value that the best finding recommends, or ``default``."""
        prescription = self.recommended(session)
        if prescription is None or not self.value_form:
            return self.default
        arguments = {**prescription.trainer_flags, **prescription.loader_args}
        given = arguments.get(self.trainer_flag or self.loader_argument, prescription.value)
        return self.default if given is None else self.parse_value(str(given))

    def excluded_by(self, value: Any) -> frozenset[str]:
        """Return the ids of treatments that cannot be combined with this value."""
        return self.conflicts

    def live_cost_s(self, session: Session) -> float:
        """Return the seconds that applying it during the run takes, as far as the session shows."""
        return 0.0

    def recommended(self, session: Session | None) -> Prescription | None:
        """Return the first recommendation of this treatment in the session's findings, which are sorted best first."""
        findings = session.findings if session is not None else ()
        return next((p for finding in findings for p in finding.prescriptions if p.treatment == self.id), None)

    def parse_value(self, text: str | None) -> Any:
        """Return the value after ``id=``; None if the user gave none.

        Raises:
            ConfigError: The treatment does not accept this value.
        """
        if text is None:
            return None
        if not self.value_form:
            raise ConfigError(f"{self.id}={text!r}: {self.id} takes no value; write {self.id}")
        if self.least is not None:
            if text.isdecimal() and int(text) >= self.least:
                return int(text)
        elif re.fullmatch(self.value_pattern, text, re.ASCII):
            return text
        raise ConfigError(f"{self.id}={text!r}: expected {self.id}={self.value_form}")

    # -- as a user writes it ------------------------------------------------------------

    def trainer_flags(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        """Return keyword arguments for ``Trainer`` that JSON can hold."""
        return {self.trainer_flag: value if self.setting is None else self.setting} if self.trainer_flag else {}

    def trainer_objects(self, value: Any) -> dict[str, Any]:
        """Return keyword arguments for ``Trainer`` that are objects, as in a LightningCLI configuration.

        An object is a dict with ``class_path`` and ``init_args``; an argument is an object or a list of objects.
        """
        return {}

    def loader_args(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        """Return keyword arguments for the training ``DataLoader``."""
        return {self.loader_argument: value if self.setting is None else self.setting} if self.loader_argument else {}

    def environment(self, value: Any) -> dict[str, str]:
        """Return variables that must be set before the process starts."""
        return {}

    def statements(self, value: Any) -> str:
        """Return the Python lines to write for a value besides ``Trainer(...)`` and ``DataLoader(...)``, if any."""
        return self.code

    # -- applied to a run; each raises TreatmentError if that is not possible ---------------------------------

    def change_trainer_arguments(self, value: Any, arguments: dict[str, Any], undos: Undos) -> None:
        """Change the keyword arguments of ``Trainer`` in place, before it is created."""
        arguments.update(self.trainer_flags(value))

    def set_up(self, value: Any, trainer: Any, module: Any, undos: Undos) -> None:
        """Apply it in the callback hook ``setup``, before loaders, DDP and optimizers are created."""

    def loader_args_for(self, value: Any, loader: Any, is_strict: bool) -> dict[str, Any]:
        """Return the arguments of ``rebuilt`` for one training loader; called if ``needs_loader``.

        ``is_strict`` is whether the run must end if the treatment later proves not to be applicable.
        """
        return self.loader_args(value)

    def follow_loader(self, value: Any, trainer: Any, before: Any, after: Any, undos: Undos) -> None:
        """Adapt the Trainer to the first training loader after it was rebuilt; called if ``needs_loader``."""

    def configured(self, value: Any, trainer: Any, module: Any, undos: Undos) -> None:
        """Apply it in ``on_train_start``, when optimizers are created and restored from a checkpoint."""

    def apply_live(self, value: Any, trainer: Any, module: Any, undos: Undos) -> None:
        """Apply it between two epochs; called if ``is_live``. The ``Applier`` handles loader arguments."""
        self.set_up(value, trainer, module, undos)


def clipped_by(trainer: Any, module: Any) -> str:
    """Return what has Lightning clip gradients, an argument of ``Trainer`` or a call in the module; empty if none."""
    if trainer.gradient_clip_val:
        return f"gradient_clip_val={trainer.gradient_clip_val!r}"
    return "the module's calls of clip_gradients" if module is not None and calls_clip_gradients(module) else ""


def require_uncompiled(treatment: str, module: Any) -> None:
    """Refuse a live treatment that would make ``torch.compile`` compile the module again.

    Raises:
        TreatmentError: The module, a part of it, or one of their methods is compiled.
    """
    parts = list(module.modules())
    owners = {*parts, *(cls for kind in set(map(type, parts)) for cls in kind.__mro__)}
    values = (getattr(value, "__func__", value) for owner in owners for value in vars(owner).values())
    if any(isinstance(value, FunctionType) and "_torchdynamo_orig_callable" in vars(value) for value in values) or any(
        type(part).__name__ == "OptimizedModule" or vars(part).get("_compiled_call_impl") for part in parts
    ):
        raise TreatmentError(f"{treatment} would have torch.compile compile the module again")


def whole_cores_per_rank(session: Session | None) -> int:
    """Return the whole CPU cores per rank, at least 1, of the session's machine or of this process."""
    if session is not None:
        return max(1, int(session.machine.usable_cores / max(session.machine.local_world_size, 1)))
    return max(1, int(read_usable_cores() / ranks_on_node()))
