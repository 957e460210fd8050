"""Worker processes that fetch batches ahead."""

from __future__ import annotations

from typing import Any

from lightning_perf.records import LoaderSettings, Session
from lightning_perf.treatments.cores import cores_per_rank
from lightning_perf.treatments.train_loader import LoaderTreatment, train_loaders

MOST_BY_DEFAULT = 8  # where nothing was measured: more rarely helps and each holds a copy of what it fetches


class LoaderWorkers(LoaderTreatment):
    id = "loader-workers"
    summary = "fetches batches in worker processes, ahead of the training"
    when = (
        "Where the device waits for data. `=0` takes workers away where a batch costs less than handing it over. "
        "Random augmentation inside the dataset draws from the workers' own seeds: other numbers of the same kind. "
        "Several loaders that shuffle without a generator of their own draw their orders in another sequence."
    )
    value_form = "N, a whole number of workers, 0 for none"

    def applies_to_loader(self, loader: LoaderSettings, session: Session) -> str | None:
        value = self.default_value(session)
        if value == loader.num_workers:
            return f"num_workers is {value} already"
        return None

    def parse_value(self, text: str | None) -> int | None:
        return self.whole(text, least=0)

    def default_value(self, session: Session | None) -> int:
        prescription = self.prescribed(session)
        if prescription is not None and "num_workers" in prescription.loader_args:
            return int(prescription.loader_args["num_workers"])
        loaders = train_loaders(session) if session is not None else ()
        cores = min(cores_per_rank(session), MOST_BY_DEFAULT)
        if loaders and loaders[0].num_workers == cores and cores > 1:
            return cores - 1
        return cores

    def loader_args(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        return {"num_workers": value}


TREATMENT = LoaderWorkers()
