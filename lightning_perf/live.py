"""Treatments that PerfDoctor applies to a running training, between two epochs or steps."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from lightning_perf.errors import TreatmentError
from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.records import AppliedTreatment, Session
from lightning_perf.seams import Undos
from lightning_perf.treatments.applier import Applier
from lightning_perf.treatments.specs import TreatmentSpec, parse, with_default

Request = tuple[str, str]
"""A treatment with its value as text, and the code of the finding that asks for it."""

_log = logging.getLogger("lightning_perf")


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
        asked = [(spec, _asking(session, spec)) for spec in possible]
        return [(with_default(spec, session).text, code) for spec, code in asked if code is not None]

    def apply(self, requests: Sequence[Request], trainer: Any, module: Any) -> None:
        """Apply treatments in ``on_train_epoch_start`` or between steps; undo one that cannot be applied."""
        for text, code in requests:
            spec = parse(text)
            self._waiting = [one for one in self._waiting if one.treatment.id != spec.treatment.id]
            applier = Applier([spec], partial(_tell_kept, text))
            reason = ""
            self._undos.note(applier.undo)  # before the change: an interrupt may come meanwhile
            try:
                applier.apply_live(trainer, module)
            except Exception as error:  # noqa: BLE001 - recorded; the training goes on without it
                raise_if_from_signal(error)
                applier.undo()
                reason = str(error) or type(error).__name__
            record = AppliedTreatment(
                treatment=text, finding=code, epoch=trainer.current_epoch, status="refused" if reason else "applied"
            )
            self._note(record, reason, trainer.is_global_zero)

    def undo(self) -> None:
        """Restore everything in reverse order, even if single treatments raise. Can be called twice."""
        self._undos.close()

    def _note(self, record: AppliedTreatment, reason: str, is_to_log: bool) -> None:
        self.applied = (*self.applied, msgspec.structs.replace(record, reason=reason))
        if not is_to_log:
            return
        if reason:
            _log.warning(
                "PerfDoctor could not apply %s, which %s recommends: %s", record.treatment, record.finding, reason
            )
        else:
            _log.warning(
                "PerfDoctor applied %s from epoch %d on, as %s recommends.",
                record.treatment,
                record.epoch,
                record.finding,
            )


def _tell_kept(treatment: str, error: TreatmentError) -> None:
    _log.warning("PerfDoctor left a training loader unchanged: %s cannot be applied to it: %s", treatment, error)


def _asking(session: Session, spec: TreatmentSpec) -> str | None:
    """Return the code of the best finding that recommends a treatment."""
    for finding in session.findings:
        if any(prescription.treatment == spec.treatment.id for prescription in finding.prescriptions):
            return finding.code
    return None
