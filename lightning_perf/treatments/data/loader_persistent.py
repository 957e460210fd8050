"""Workers that live on from epoch to epoch."""

from __future__ import annotations

from typing import Any

from lightning_perf.records import LoaderSettings, Session
from lightning_perf.treatments.train_loader import LoaderTreatment


class LoaderPersistent(LoaderTreatment):
    id = "loader-persistent"
    summary = "keeps worker processes from epoch to epoch instead of starting them anew"
    when = "Where epochs are short beside the start of a worker. The workers' memory stays in use during validation."
    acts_on = "loop"

    def applies_to_loader(self, loader: LoaderSettings, session: Session) -> str | None:
        if not loader.num_workers:
            return "there are no worker processes; loader-workers comes first"
        return "persistent_workers is on already" if loader.persistent_workers else None

    def loader_args(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        return {"persistent_workers": True}


TREATMENT = LoaderPersistent()
