"""Data among a module's hyperparameters is found, without what a checkpoint holds anyway."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from lightning_perf.probes.settings import hyperparameters
from lightning_perf.probes.settings.hyperparameters import HyperparametersProbe, read_hyperparameters
from lightning_perf.records import files
from tests.rules.session_builder import build_session

MIB = 2**20
reference = torch.zeros(MIB // 4, dtype=torch.float32)
ARRAY = np.zeros(MIB, dtype=np.uint8)


class Saving(LightningModule):
    def __init__(self, data: Any = None, width: int = 4) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = nn.Linear(width, width)


class NotSaving(LightningModule):
    def __init__(self, data: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("data", "n_bytes"),
    [
        (reference, MIB),
        (np.zeros(MIB, dtype=np.uint8), MIB),
        ({"train": (reference, [np.zeros(2 * MIB, dtype=np.uint8)])}, 3 * MIB),
        ([reference, reference, ARRAY, ARRAY], 2 * MIB),  # each is saved once
        (reference[:3], MIB),  # and whole
        (nn.Linear(512, 1024, bias=False), 2 * MIB),
    ],
)
def test_data_is_measured_by_what_a_checkpoint_takes(data: Any, n_bytes: int, tmp_path: Path) -> None:
    found = read_hyperparameters(Saving(data), tmp_path)
    assert found is not None
    assert (found.largest, found.n_bytes, found.largest_bytes) == ("data", n_bytes, n_bytes)
    line = inspect.getsourcelines(Saving.__init__)[1] + 2
    assert found.site == f"test_hyperparameters.py:{line}"
    assert found.costs_s is not None
    assert list(tmp_path.iterdir()) == []


ROWS = [(f"sender {i}", -40.5, [i, None, True]) for i in range(60_000)]


@pytest.mark.parametrize(
    "data", [ROWS, {"train": tuple(ROWS), "count": 3}, {f"row {i}": row for i, row in enumerate(ROWS)}]
)
def test_lists_of_numbers_and_strings_are_measured_by_some_of_their_items(data: Any, tmp_path: Path) -> None:
    found = read_hyperparameters(Saving(data), tmp_path)
    assert found is not None
    torch.save(data, tmp_path / "data")
    assert found.n_bytes == pytest.approx((tmp_path / "data").stat().st_size, rel=0.25)


def test_time_of_lists_is_that_of_some_items_in_proportion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hyperparameters, "added_save_s", lambda n_bytes, folder: 2.0)
    monkeypatch.setattr(hyperparameters, "_serializing_s", lambda content: 0.1 + 0.005 * len(content))
    found = read_hyperparameters(Saving(ROWS), tmp_path)
    assert found is not None
    assert found.costs_s == pytest.approx(2.0 + 0.005 * len(ROWS))


class Key:
    def __hash__(self) -> int:
        return 1

    def __reduce__(self) -> Any:
        raise AssertionError("user code ran")


ITSELF: list[Any] = []
ITSELF += [ITSELF] * 150


@pytest.mark.parametrize(
    "data",
    [
        ITSELF,
        [[[0.5] * 50 for _ in range(300)] for _ in range(300)],
        [[list(range(9)) for _ in range(1500)] for _ in range(600)],
        [{Key(): 1} for _ in range(60_000)],
        ROWS[:300] * 200,  # each row is saved once
        ["x" * 2**17 for _ in range(1000)],
    ],
)
def test_lists_that_cannot_be_estimated_end_the_search_soon(data: Any) -> None:
    lists = hyperparameters._Lists()
    n_bytes = lists.of(data).n_bytes
    assert n_bytes == 0 or isinstance(data[0][0], list)
    assert len(lists._seen) <= 20_000
    assert lists.of(data).n_bytes == 0  # under another name


class Hostile:
    def __iter__(self) -> Any:
        raise AssertionError("user code ran")

    __len__ = __getitem__ = __iter__

    @property
    def nbytes(self) -> int:
        raise AssertionError("user code ran")


@pytest.mark.parametrize(
    "module", [Saving(), Saving(reference[1:].clone()), Saving(Hostile()), Saving([Hostile()] * 10**5), NotSaving(ROWS)]
)
def test_little_data_or_none_is_not_reported(module: LightningModule, tmp_path: Path) -> None:
    assert read_hyperparameters(module, tmp_path) is None


def test_time_of_more_data_than_is_written_is_taken_in_proportion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([9.0, 1.0, 3.0])
    monkeypatch.setattr(hyperparameters, "_MOST_WRITTEN_BYTES", MIB // 2)
    monkeypatch.setattr(hyperparameters, "_timed_save", lambda content, folder: next(times))
    found = read_hyperparameters(Saving(reference), tmp_path)
    assert found is not None
    assert found.costs_s == 4.0


def test_default_device_is_not_where_saving_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, saved = Saving(reference), list[torch.Tensor]()
    monkeypatch.setattr(hyperparameters, "_timed_save", lambda content, folder: saved.append(content) or 1.0)
    with torch.device("meta"):
        assert read_hyperparameters(module, tmp_path) is not None
    assert {one.device.type for one in saved} == {"cpu"}


def test_parameters_of_the_module_itself_are_saved_once() -> None:
    layer = nn.Linear(1024, 1024)
    module = Saving(layer)
    module.layer = layer
    assert read_hyperparameters(module, None) is None


def test_cost_is_not_timed_without_a_folder_or_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def costs_s(folder: Path | None) -> float | None:
        found = read_hyperparameters(Saving(reference), folder)
        assert found is not None
        return found.costs_s

    assert costs_s(None) is None
    assert costs_s(tmp_path / "missing") is None
    with monkeypatch.context() as patch:
        patch.setattr(files, "_free_bytes", lambda folder: files.RESERVE_BYTES + MIB - 1)
        assert costs_s(tmp_path) is None


def test_probe_reads_at_the_end_only_and_fills_the_model_settings(tmp_path: Path) -> None:
    trainer = SimpleNamespace(is_global_zero=True)
    run: Any = SimpleNamespace(pl_module=Saving(reference), folder=tmp_path, trainer=trainer)
    probe, session = HyperparametersProbe(run), build_session({"settings": {"model": {"class_name": "Saving"}}})
    probe.before_report(is_last=False)
    assert probe.part(session) == {}
    probe.before_report(is_last=True)
    assert probe.part(session)["settings"].model.hyperparameters.largest == "data"
    assert probe.part(build_session({"settings": {"model": None}})) == {}
    trainer.is_global_zero = False
    probe = HyperparametersProbe(run)
    probe.before_report(is_last=True)
    assert probe.part(session) == {}
