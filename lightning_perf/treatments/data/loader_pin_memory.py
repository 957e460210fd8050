"""Batches in page-locked memory."""

from __future__ import annotations

from typing import Any

from lightning_perf.records import LoaderSettings, Session
from lightning_perf.treatments.train_loader import LoaderTreatment


class LoaderPinMemory(LoaderTreatment):
    id = "loader-pin-memory"
    summary = (
        "puts batches into page-locked memory, from which they are copied to the device faster and beside its work"
    )
    when = (
        "With an accelerator and copies that show. It costs the loader a copy, and host memory that cannot be swapped."
    )

    def applies_to_loader(self, loader: LoaderSettings, session: Session) -> str | None:
        if session.settings.trainer.accelerator in (None, "cpu", "mps"):
            return (
                f"there is nothing to copy to: the accelerator is {session.settings.trainer.accelerator or 'not known'}"
            )
        return "pin_memory is on already" if loader.pin_memory else None

    def loader_args(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        return {"pin_memory": True}


TREATMENT = LoaderPinMemory()
