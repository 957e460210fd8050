"""Loaders of other libraries: recognized, measured, treated or refused, and never changed by being observed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lightning_perf.errors import TreatmentError
from lightning_perf.loader_kinds import call_of, dali_settings, inner_loader, keeps_state, n_shards, why_not_changed
from lightning_perf.probes.loader import stages
from lightning_perf.probes.loader.copying import why_not_copied
from lightning_perf.probes.loader.prober import LoaderProber
from lightning_perf.treatments.rebuild import rebuilt, require_stateless

from .trainings import train

N_SAMPLES, N_SHARDS = 32, 4


class Numbers(Dataset):
    def __len__(self) -> int:
        return N_SAMPLES

    def __getitem__(self, index: int) -> np.ndarray:
        return np.full(8, index, dtype=np.float32)


def in_tar_files(folder: Path) -> Any:
    wds = pytest.importorskip("webdataset")
    for shard in range(N_SHARDS):
        with wds.TarWriter(str(folder / f"{shard}.tar")) as writer:
            for index in range(shard, N_SAMPLES, N_SHARDS):
                writer.write({"__key__": str(index), "x.npy": Numbers()[index]})
    urls = [str(folder / f"{shard}.tar") for shard in range(N_SHARDS)]
    return wds.WebDataset(urls, shardshuffle=False).decode().to_tuple("x.npy")


def web_loader(folder: Path) -> Any:
    pytest.importorskip("webdataset")
    import webdataset

    return webdataset.WebLoader(in_tar_files(folder).batched(4), batch_size=None)


def web_dataset(folder: Path) -> Any:
    return DataLoader(in_tar_files(folder), batch_size=4)


def streaming(folder: Path) -> Any:
    litdata = pytest.importorskip("litdata")
    from litdata.streaming import Cache

    cache = Cache(str(folder), chunk_size=4)
    for index in range(N_SAMPLES):
        cache[index] = torch.from_numpy(Numbers()[index])
    cache.done()
    cache.merge()
    return litdata.StreamingDataLoader(litdata.StreamingDataset(str(folder), shuffle=True), batch_size=4)


def stateful(folder: Path) -> Any:
    return pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader(
        Numbers(), batch_size=4, shuffle=True
    )


def by_index(folder: Path) -> Any:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"x": [[float(index)] * 8 for index in range(N_SAMPLES)]}).with_format("torch")
    return DataLoader(data, batch_size=4, shuffle=True, collate_fn=stacked)


def rows(shards: list[int]) -> Iterator[dict[str, list[float]]]:
    for shard in shards:
        for index in range(shard, N_SAMPLES, N_SHARDS):
            yield {"x": [float(index)] * 8}


def in_order(folder: Path) -> Any:
    datasets = pytest.importorskip("datasets")
    made = datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": list(range(N_SHARDS))})
    return DataLoader(made.with_format("torch"), batch_size=4, collate_fn=stacked)


def stacked(samples: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    return torch.stack([sample["x"] for sample in samples])


def graphs(folder: Path) -> Any:
    loader = pytest.importorskip("torch_geometric.loader")
    from torch_geometric.data import Data

    samples = [Data(x=torch.full((1, 8), float(index))) for index in range(N_SAMPLES)]
    return loader.DataLoader(samples, batch_size=4, shuffle=True)


LOADERS: list[tuple[Callable[[Path], Any], str, int | None]] = [
    (web_loader, "WebLoader", N_SHARDS),
    (web_dataset, "DataLoader", N_SHARDS),
    (streaming, "StreamingDataLoader", None),
    (stateful, "StatefulDataLoader", None),
    (by_index, "DataLoader", None),
    (in_order, "DataLoader", N_SHARDS),
    (graphs, "torch_geometric.loader.DataLoader", None),
]
every_library = pytest.mark.parametrize(
    ("make", "call", "shards"), LOADERS, ids=[make.__name__ for make, _, _ in LOADERS]
)


def batches(loader: Any) -> list[torch.Tensor]:
    first = [batch[0] if isinstance(batch, (list, tuple)) else batch for batch in loader]
    return [batch.x if hasattr(batch, "x") else torch.as_tensor(batch) for batch in first]


@every_library
def test_loader_gets_workers_and_yields_each_sample_once(
    make: Callable[[Path], Any], call: str, shards: int | None, tmp_path: Path
) -> None:
    loader = make(tmp_path)
    assert (call_of(loader), why_not_changed(loader), n_shards(inner_loader(loader).dataset)) == (call, "", shards)

    new = rebuilt(loader, {"num_workers": 2})
    seen = torch.cat(batches(new))[:, 0]
    assert inner_loader(new).num_workers == 2
    assert sorted(seen.tolist()) == list(range(N_SAMPLES))
    assert inner_loader(loader).num_workers == 0
    assert sorted(torch.cat(batches(loader))[:, 0].tolist()) == list(range(N_SAMPLES))

    if shards is not None:
        with pytest.raises(TreatmentError, match=f"has {shards} shards"):
            rebuilt(loader, {"num_workers": shards + 1})


@every_library
def test_probe_makes_samples_and_changes_nothing(
    make: Callable[[Path], Any], call: str, shards: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages._Stages, "_time_transport", lambda *_: None)
    monkeypatch.setattr(stages._Stages, "_measure_curve", lambda *_: None)
    for name in ("SAMPLES_SHARE", "LINES_SHARE"):
        monkeypatch.setattr(stages, name, 0.05)  # a batch is made in any case
    (tmp_path / "plain").mkdir()
    (tmp_path / "probed").mkdir()
    torch.manual_seed(3)
    expected = batches(make(tmp_path / "plain"))
    torch.manual_seed(3)
    loader = make(tmp_path / "probed")
    state = copy.copy(vars(inner_loader(loader)))
    prober = LoaderProber(6.0)
    try:
        probe = prober.start(loader) or prober.wait()
    finally:
        prober.close()
    assert probe is not None
    assert probe.status in ("measured", "partial"), probe.reason
    assert probe.getitem is not None
    assert vars(inner_loader(loader)) == state
    assert all(torch.equal(one, other) for one, other in zip(batches(loader), expected, strict=True))


def test_webloader_with_later_stages_is_not_probed_on_a_copy(tmp_path: Path) -> None:
    assert "further stages" in (why_not_copied(web_loader(tmp_path).unbatched().batched(8)) or "")


def test_downloaded_chunks_are_not_probed_on_a_copy(tmp_path: Path) -> None:
    loader = streaming(tmp_path)
    loader.dataset.input_dir.url = "s3://bucket/data"
    assert "downloaded" in (why_not_copied(loader) or "")


@pytest.mark.parametrize("make", [streaming, stateful])
def test_loader_whose_state_is_saved_is_not_changed_between_epochs(make: Callable[[Path], Any], tmp_path: Path) -> None:
    loader = make(tmp_path)
    assert keeps_state(loader)
    with pytest.raises(TreatmentError, match="checkpoints hold the state"):
        require_stateless(loader)


class _DaliBaseIterator:
    """The interface of DALI's iterators that is read, from DALI's documentation."""

    __module__ = "nvidia.dali.plugin.base_iterator"

    def __init__(self, depth: Any) -> None:
        self._pipes = [SimpleNamespace(num_threads=2, prefetch_queue_depth=depth, max_batch_size=16)]
        self.batch_size = 16


@pytest.mark.parametrize("depth", [3, {"cpu_size": 3, "gpu_size": 2}])
def test_dali_pipeline_is_read_and_refused_with_its_own_arguments(depth: Any) -> None:
    loader = type("DALIGenericIterator", (_DaliBaseIterator,), {"__module__": "nvidia.dali.plugin.pytorch"})(depth)
    assert call_of(loader) == "pipeline_def"
    assert dali_settings(loader) == {"n_threads": 2, "prefetch_factor": 3, "batch_size": 16}
    with pytest.raises(TreatmentError, match="num_threads and prefetch_queue_depth"):
        rebuilt(loader, {"num_workers": 2})


def test_trial_trains_on_all_samples_of_a_webloader(tmp_path: Path) -> None:
    loader = web_loader(tmp_path)
    seen = train("loader-workers=2", data=loader, max_epochs=1, look=lambda t, _: inner_loader(t.train_dataloader))
    assert inner_loader(loader).num_workers == 0
    assert len(seen.losses) == N_SAMPLES // 4
