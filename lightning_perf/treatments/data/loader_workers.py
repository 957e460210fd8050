"""Worker processes that fetch batches ahead."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from lightning_perf.records import LoaderSettings, Session
from lightning_perf.treatments.cores import whole_cores_per_rank
from lightning_perf.treatments.train_loader import LoaderTreatment, train_loaders

MOST_BY_DEFAULT = 8  # where nothing was measured: more rarely helps and each holds a copy of what it fetches
_FORM = re.compile(r"(?P<n>\d+)(x(?P<ahead>[1-9]\d*))?(?P<pinned>-pinned)?", re.A)


class Wanted(NamedTuple):
    """What a value means.

    Attributes:
        n: Worker processes.
        ahead: Batches that each prepares ahead; None to leave that as it is.
        is_pinned: Whether batches go into page-locked memory; otherwise that stays as it is.
    """

    n: int
    ahead: int | None = None
    is_pinned: bool = False

    @property
    def text(self) -> str:
        """As it is written behind ``loader-workers=``."""
        ahead = "" if self.ahead is None else f"x{self.ahead}"
        return f"{self.n}{ahead}{'-pinned' if self.is_pinned else ''}"


class LoaderWorkers(LoaderTreatment):
    id = "loader-workers"
    summary = "fetches batches in worker processes, ahead of the training"
    when = (
        "Where the device waits for data. Workers live on from epoch to epoch, so that short epochs do not wait for "
        "their start; a dataset that is changed between epochs does not reach them: leave `persistent_workers` out "
        "there. `=0` takes workers away where a batch costs less than handing it over. "
        "Random augmentation inside the dataset draws from the workers' own seeds: other numbers of the same kind. "
        "Several loaders that shuffle without a generator of their own draw their orders in another sequence."
    )
    value_form = "N workers, 0 for none; NxP for P batches ahead each; -pinned behind it for page-locked memory"

    def applies_to_loader(self, loader: LoaderSettings, session: Session) -> str | None:
        wanted = _read(self.default_value(session))
        is_there = wanted.n == loader.num_workers and wanted.ahead in (None, loader.prefetch_factor)
        return f"num_workers is {wanted.n} already" if is_there else None

    def parse_value(self, text: str | None) -> str | None:
        """As it was given."""
        match = _FORM.fullmatch(text) if text is not None else None
        if text is not None and (match is None or (match["ahead"] and not int(match["n"]))):
            raise self.bad_value(text)
        return text

    def default_value(self, session: Session | None) -> str:
        prescription = self.prescribed(session)
        said = prescription.loader_args if prescription is not None else {}
        if "num_workers" in said:
            return Wanted(int(said["num_workers"]), said.get("prefetch_factor"), bool(said.get("pin_memory"))).text
        loaders = train_loaders(session) if session is not None else ()
        cores = min(whole_cores_per_rank(session), MOST_BY_DEFAULT)
        if loaders and loaders[0].num_workers == cores and cores > 1:
            return str(cores - 1)
        return str(cores)

    def loader_args(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        """As the diagnosis writes them: without workers a DataLoader refuses ``persistent_workers=True``."""
        workers = _read(value)
        arguments: dict[str, Any] = {"num_workers": workers.n, "persistent_workers": workers.n > 0}
        if workers.ahead is not None:
            arguments["prefetch_factor"] = workers.ahead
        if workers.is_pinned:
            arguments["pin_memory"] = True
        return arguments


def _read(value: str) -> Wanted:
    match = _FORM.fullmatch(value)
    assert match is not None
    return Wanted(int(match["n"]), int(match["ahead"]) if match["ahead"] else None, bool(match["pinned"]))


TREATMENT = LoaderWorkers()
