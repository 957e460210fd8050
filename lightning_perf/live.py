"""Treatments that PerfDoctor switches on in a running training, between two epochs or steps, and off again."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from lightning_perf.errors import TreatmentError
from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.records import AppliedTreatment, Session
from lightning_perf.seams import Undos
from lightning_perf.treatments.applier import Applier
from lightning_perf.treatments.specs import TreatmentSpec, parse, with_default

Request = tuple[str, str]
"""A treatment with its value as text, and the code of the finding that recommends it."""

_log = logging.getLogger("lightning_perf")


class Switch:
    """One treatment, on or off; it can be switched again and again."""

    def __init__(self, applier: Applier, undos: Undos) -> None:
        self.applier, self.is_on = applier, False
        undos.note(self.off)

    def on(self, trainer: Any, module: Any) -> str:
        """Apply the treatment; if that is not possible, restore everything and return why, else an empty string."""
        if self.is_on:
            return ""
        self.is_on = True
        try:
            self.applier.apply_live(trainer, module)
        except Exception as error:  # noqa: BLE001 - recorded; the training goes on without it
            raise_if_from_signal(error)
            self.off()
            return str(error) or type(error).__name__
        return ""

    def off(self) -> None:
        """Restore everything; can be called twice."""
        self.applier.undo()
        self.is_on = False


class LiveTreatments:
    """Applies each treatment once after a finding recommended it: those of loaders at the start of the next epoch.

    Args:
        texts: The treatments, as a user names them; all can be changed between epochs, and between steps unless they
            change loaders.

    Attributes:
        applied: The results of those that a finding recommended.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        # Workers come before what needs them.
        self._waiting: list[TreatmentSpec] = sorted(
            map(parse, texts), key=lambda spec: spec.treatment.id != "loader-workers"
        )
        self._undos = Undos()
        self.applied: tuple[AppliedTreatment, ...] = ()

    def requests(self, session: Session | None, is_within_epoch: bool = False) -> list[Request]:
        """Return the treatments that a diagnosis recommends and that are not applied yet, as data for other ranks."""
        if session is None:
            return []
        possible = [spec for spec in self._waiting if not (is_within_epoch and Applier([spec]).changes_loaders)]
        asked = [(spec, _recommending(session, spec)) for spec in possible]
        return [(with_default(spec, session).text, code) for spec, code in asked if code is not None]

    def apply(self, requests: Sequence[Request], trainer: Any, module: Any) -> None:
        """Apply treatments in ``on_train_epoch_start`` or between steps; undo one that cannot be applied."""
        for text, code in requests:
            spec, epoch = parse(text), trainer.current_epoch
            self._waiting = [one for one in self._waiting if one.treatment.id != spec.treatment.id]
            reason = self.switch(Applier([spec], partial(_warn_unchanged, text))).on(trainer, module)
            self.note(text, code, epoch, reason)
            if trainer.is_global_zero and reason:
                _log.warning("PerfDoctor could not apply %s, which %s recommends: %s", text, code, reason)
            elif trainer.is_global_zero:
                _log.warning("PerfDoctor applied %s from epoch %d on, as %s recommends.", text, epoch, code)

    def switch(self, applier: Applier) -> Switch:
        """Return a switch that is off at the end of the run."""
        return Switch(applier, self._undos)

    def note(self, text: str, code: str, epoch: int, reason: str = "") -> None:
        """Record a treatment that is applied from now on, or why it is refused."""
        record = AppliedTreatment(
            treatment=text, finding=code, epoch=epoch, status="refused" if reason else "applied", reason=reason
        )
        self.applied = (*self.applied, record)

    def undo(self) -> None:
        """Restore everything in reverse order, even if single treatments raise. Can be called twice."""
        self._undos.close()


def _warn_unchanged(treatment: str, error: TreatmentError) -> None:
    _log.warning("PerfDoctor left a training loader unchanged: %s cannot be applied to it: %s", treatment, error)


def _recommending(session: Session, spec: TreatmentSpec) -> str | None:
    """Return the code of the best finding that recommends a treatment."""
    for finding in session.findings:
        if any(prescription.treatment == spec.treatment.id for prescription in finding.prescriptions):
            return finding.code
    return None
