"""More batches prepared ahead."""

from __future__ import annotations

from typing import Any

from lightning_perf.records import LoaderSettings, Session
from lightning_perf.treatments.train_loader import LoaderTreatment

DEFAULT_FACTOR = 4  # twice torch's own default of 2


class LoaderPrefetch(LoaderTreatment):
    id = "loader-prefetch"
    summary = "lets each worker prepare more batches ahead, which evens out samples of uneven cost"
    when = "Where fetches come in bursts. Memory grows with workers × factor × batch."
    value_form = "N, batches ahead for each worker, at least 1"

    def applies_to_loader(self, loader: LoaderSettings, session: Session) -> str | None:
        if not loader.num_workers:
            return "there are no worker processes; loader-workers comes first"
        value = self.default_value(session)
        return f"prefetch_factor is {value} already" if loader.prefetch_factor == value else None

    def parse_value(self, text: str | None) -> int | None:
        return self.whole(text, least=1)

    def default_value(self, session: Session | None) -> int:
        prescription = self.prescribed(session)
        if prescription is not None and "prefetch_factor" in prescription.loader_args:
            return int(prescription.loader_args["prefetch_factor"])
        return DEFAULT_FACTOR

    def loader_args(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        return {"prefetch_factor": value}


TREATMENT = LoaderPrefetch()
