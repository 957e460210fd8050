"""PerfDoctor(autopilot=...): treatments tried in the user's own run; its decisions are planted, so no clock matters."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from torch.utils.data import DataLoader

from lightning_perf import PerfDoctor, autopilot, load
from lightning_perf.errors import ConfigError
from lightning_perf.safe_loaders import RandomWatch

from . import autopilot_trainings
from .autopilot_trainings import Model, Numbers, Plant, decisions, doctor, train
from .conftest import Make, assert_nothing_left

pytestmark = pytest.mark.usefixtures("frozen_objects")

plant = autopilot_trainings.plant  # a fixture
_without_doctor: dict[int, dict[str, Any]] = {}


def expected(make_trainer: Make, n_epochs: int) -> dict[str, Any]:
    """Return the results of a training without PerfDoctor, which no planted treatment or error changes."""
    if n_epochs not in _without_doctor:
        _, _without_doctor[n_epochs] = train(make_trainer, [], n_epochs=n_epochs, detect_anomaly=True)
    return _without_doctor[n_epochs]


class Augmented(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + torch.rand(4)


class OwnGenerator(Numbers):
    def __init__(self) -> None:
        self.generator = np.random.default_rng(1)

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + float(self.generator.random())


@pytest.mark.parametrize(("safety", "names", "place"), [
    ("exact", ("log-every-n=7", "loader-workers=1"), 4), ("numerics", ("anomaly-off",), 0),
])  # fmt: skip
@pytest.mark.parametrize("verdict", ["kept", "undone"])
def test_results_are_bit_identical_when_treatments_that_keep_them_are_tried(
    make_trainer: Make, plant: Plant, safety: str, names: tuple[str, ...], place: int, verdict: str
) -> None:
    plant(*names, verdicts=dict.fromkeys(names, verdict))
    one = doctor(safety)
    seen, results = train(make_trainer, [one], n_epochs=20, detect_anomaly=True)
    assert results == expected(make_trainer, 20)
    assert decisions(one) == dict.fromkeys(names, verdict)
    values = [setting[place] for setting in seen.settings]
    changes = sum(before != after for before, after in pairwise(values))
    assert changes >= 3
    assert (values[-1] == values[0]) is (verdict == "undone")
    assert not torch.is_anomaly_enabled()


def test_settings_change_between_blocks_and_are_put_back_when_numerics_may_change(
    make_trainer: Make, plant: Plant
) -> None:
    names = ("threads=2", "matmul-precision-high", "fused-optimizer")
    plant(*names, verdicts={"fused-optimizer": "kept"})
    one = doctor("numerics")
    seen, results = train(make_trainer, [one], n_epochs=16)
    assert decisions(one) == {"threads=2": "undone", "matmul-precision-high": "undone", "fused-optimizer": "kept"}
    for place, values in ((1, {1, 2}), (2, {"highest", "high"}), (3, {False, True})):
        assert {setting[place] for setting in seen.settings} == values
    assert seen.settings[-1][1:4] == (1, "highest", True)
    assert torch.get_num_threads() == 1
    assert all(np.isfinite(results["losses"]))
    assert (
        one.session.autopilot.code
        == "torch.optim.AdamW(self.parameters(), ..., fused=True)  # whichever optimizer you have"
    )
    assert [each.treatment for each in one.session.applied] == ["fused-optimizer"]


def test_numerics_are_not_tried_when_results_must_be_exact(make_trainer: Make) -> None:
    class Finds(Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            pilot = next(each for each in trainer.callbacks if isinstance(each, PerfDoctor))._run.autopilot
            self.units = [
                pilot._unit_of(autopilot.parse(text))
                for text in (
                    "threads=2",
                    "anomaly-off",
                    "loader-workers=2",
                    "loader-persistent",
                    "compile",
                    "cudnn-benchmark",
                )
            ]

    exact, numerics = Finds(), Finds()
    train(make_trainer, [doctor(), exact], n_epochs=1)
    train(make_trainer, [doctor("numerics"), numerics], n_epochs=1)
    assert exact.units == [None, None, "epoch", None, None, None]
    assert numerics.units == ["step", "step", "epoch", "epoch", None, None]


@pytest.mark.parametrize(("data", "reason"), [(Augmented(), "draws random"), (OwnGenerator(), "generator of its own")])
def test_workers_are_refused_when_samples_are_random_and_results_must_be_exact(
    make_trainer: Make, plant: Plant, data: Any, reason: str
) -> None:
    plant("loader-workers=1")
    _, expected = train(make_trainer, [], DataLoader(data, batch_size=4), n_epochs=8)
    if isinstance(data, OwnGenerator):
        data.generator = np.random.default_rng(1)
    one = doctor()
    _, results = train(make_trainer, [one], DataLoader(data, batch_size=4), n_epochs=8)
    assert results == expected
    assert decisions(one) == {"loader-workers=1": "refused"}
    assert reason in one.session.autopilot.tries[0].reason


class Transformed(Numbers):
    """Holds a generator of random numbers deep inside, and maybe an open file."""

    def __init__(self, file: Any = None) -> None:
        steps = SimpleNamespace(transforms=[SimpleNamespace(draw=np.random.default_rng(1))]) if file is None else file
        self.samples = SimpleNamespace(transform=steps)


@pytest.mark.parametrize("safety", ["exact", "numerics"])
def test_workers_are_refused_when_they_would_share_a_file(
    make_trainer: Make, plant: Plant, safety: str, tmp_path: Path
) -> None:
    plant("loader-workers=1")
    one = doctor(safety)
    with open(tmp_path / "samples", "w+b") as file:
        train(make_trainer, [one], DataLoader(Transformed(file), batch_size=4), n_epochs=14)
    assert decisions(one) == {"loader-workers=1": "refused"}
    assert "may share with the training" in one.session.autopilot.tries[0].reason


@pytest.mark.parametrize(
    ("data", "generator", "reason"),
    [(Numbers(), torch.Generator(), "loader's generator"), (Transformed(), None, "generator of its own")],
)
def test_workers_are_refused_when_the_loader_or_a_transform_has_a_generator(
    make_trainer: Make, plant: Plant, data: Any, generator: Any, reason: str
) -> None:
    plant("loader-workers=1")
    one = doctor()
    train(make_trainer, [one], DataLoader(data, batch_size=4, shuffle=True, generator=generator), n_epochs=8)
    assert decisions(one) == {"loader-workers=1": "refused"}
    assert reason in one.session.autopilot.tries[0].reason


def test_loader_that_the_trainer_makes_later_is_left_as_it_is_when_it_cannot_be_rebuilt(
    make_trainer: Make, plant: Plant
) -> None:
    class Own(DataLoader[Any]):
        """A loader that fetches in its own way is not rebuilt."""

        def __iter__(self) -> Any:
            return super().__iter__()

    class Reloads(Model):
        def train_dataloader(self) -> Any:
            kind = Own if self.trainer.current_epoch > 4 else DataLoader
            return kind(Numbers(), batch_size=4)

    plant("loader-workers=1")
    one = doctor()
    trainer = make_trainer(one, max_epochs=10, reload_dataloaders_every_n_epochs=1)
    trainer.fit(Reloads())
    assert trainer.current_epoch == 10
    assert decisions(one) == {"loader-workers=1": "refused"}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, torch.cuda.OutOfMemoryError])
def test_everything_is_undone_when_the_run_ends_in_a_block(
    make_trainer: Make, plant: Plant, error: type[BaseException], tmp_path: Path
) -> None:
    class Fails(Model):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.global_step > 6 and torch.get_num_threads() == 2:
                raise error("planted")
            return super().training_step(batch, batch_idx)

    plant("threads=2")
    one = doctor("numerics", reports=("json",))
    trainer = make_trainer(one, max_epochs=4)
    profiler = trainer.profiler
    with pytest.raises((error, SystemExit)):
        trainer.fit(Fails(), DataLoader(Numbers(), batch_size=4))
    assert_nothing_left(trainer, profiler)
    assert torch.get_num_threads() == 1
    tried = load(next(tmp_path.rglob("perf_session.json"))).autopilot.tries
    assert [(each.treatment, each.status, each.is_treated) for each in tried] == [("threads=2", "trying", True)]
    assert "the run ended in a block with it" in str(one.report(full=True))


def test_session_on_disk_says_where_the_run_was_when_it_is_killed(
    make_trainer: Make, plant: Plant, tmp_path: Path
) -> None:
    files: list[Any] = []

    class Reads(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            if torch.get_num_threads() == 2 and not files:
                files.append(json.loads(next(tmp_path.rglob("perf_session.json")).read_text()))

    plant("threads=2")
    one = doctor("numerics", reports=("json",))
    monkey = autopilot.Autopilot._next_try

    def after_first_epoch(self: Any, is_epoch_start: bool) -> Any:
        if self._trainer.current_epoch == 0:
            return autopilot.Order("wait", self._n_steps + 1)
        return monkey(self, is_epoch_start)

    autopilot.Autopilot._next_try = after_first_epoch  # type: ignore[method-assign]
    try:
        make_trainer(one, Reads(), max_epochs=4).fit(Model(), DataLoader(Numbers(), batch_size=4))
    finally:
        autopilot.Autopilot._next_try = monkey  # type: ignore[method-assign]
    assert [(each["treatment"], each["status"], each["is_treated"]) for each in files[0]["autopilot"]["tries"]] == [
        ("threads=2", "trying", True)
    ]


def test_treatment_is_refused_and_training_goes_on_when_it_cannot_be_applied(make_trainer: Make, plant: Plant) -> None:
    plant("progress-refresh=20", "threads=2")
    one = doctor("numerics")
    train(make_trainer, [one], n_epochs=10)
    assert decisions(one) == {"progress-refresh=20": "refused", "threads=2": "undone"}


def test_nothing_is_collected_any_more_when_everything_is_decided(
    make_trainer: Make, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    pilots = plant("threads=2", "loader-workers=1")
    train(make_trainer, [doctor("numerics")], n_epochs=20)
    assert [one.status for one in pilots[0]._tries] == ["undone", "undone"]
    assert not pilots[0]._times.is_on
    assert pilots[0]._times._rows == []


def test_budget_ends_all_tries_when_it_is_used_up(
    make_trainer: Make, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant("threads=2", "fused-optimizer")
    monkeypatch.setattr(autopilot.Autopilot, "_lost_s", lambda self: 0.0 if self._n_steps < 20 else 1e30)
    one = doctor("numerics")
    train(make_trainer, [one])
    assert decisions(one) == {"threads=2": "undone"}
    assert one.session.autopilot.waiting == ("fused-optimizer",)
    assert "used up" in one.session.autopilot.tries[0].reason


def test_treatment_is_undone_when_memory_passes_the_headroom(
    make_trainer: Make, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant("threads=2", verdicts={"threads=2": "kept"})
    monkeypatch.setattr(autopilot.Autopilot, "_peak", lambda _: 0.95 if torch.get_num_threads() == 2 else 0.3)
    one = doctor("numerics")
    seen, _ = train(make_trainer, [one])
    assert decisions(one) == {"threads=2": "refused"}
    assert "raised peak device memory above 90 %" in one.session.autopilot.tries[0].reason
    assert seen.settings[-1][1] == 1


@pytest.mark.parametrize("method", ["_decide", "_can_continue", "_order_executed", "collect"])
def test_training_goes_on_unchanged_when_the_autopilot_itself_fails_in_a_block(
    make_trainer: Make, plant: Plant, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    plant("anomaly-off")
    owner = autopilot.BlockTimes if method == "collect" else autopilot.Autopilot
    inner = getattr(owner, method)

    def fails(self: Any, *arguments: Any) -> Any:
        if not torch.is_anomaly_enabled():
            raise ValueError("planted")
        return inner(self, *arguments)

    monkeypatch.setattr(owner, method, fails)
    one = doctor("numerics")
    seen, results = train(make_trainer, [one], n_epochs=6, detect_anomaly=True)
    assert results == expected(make_trainer, 6)
    assert len(one.session.probes_off) == 1
    assert seen.settings[-1][0] is True


def test_checkpoints_resume_without_the_treatment_when_it_was_kept(make_trainer: Make, plant: Plant) -> None:
    plant("fused-optimizer", verdicts={"fused-optimizer": "kept"})
    model, one = Model(), doctor("numerics")
    trainer = make_trainer(one, max_epochs=10)

    class Saves(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.save_checkpoint("last.ckpt")

    trainer.callbacks.append(Saves())
    trainer.fit(model, DataLoader(Numbers(), batch_size=4))
    assert decisions(one) == {"fused-optimizer": "kept"}
    groups = torch.load("last.ckpt", weights_only=False)["optimizer_states"][0]["param_groups"]
    assert [group["fused"] for group in groups] == [None]


def test_decisions_are_printed_one_line_each(
    make_trainer: Make, plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    plant("threads=2", "fused-optimizer", verdicts={"fused-optimizer": "kept"})
    one = doctor("numerics", reports=("console",))
    train(make_trainer, [one], n_epochs=16)
    lines = [line for line in capsys.readouterr().out.splitlines() if "undid" in line or "kept" in line]
    assert [line.split(":")[0] for line in lines[:2]] == [
        "PerfDoctor  undid threads=2",
        "PerfDoctor  kept fused-optimizer",
    ]


@pytest.mark.parametrize("value", ["all", True, 1])
def test_constructor_refuses_what_is_no_safety(value: Any) -> None:
    with pytest.raises(ConfigError, match="expected 'exact', 'numerics' or None"):
        PerfDoctor(autopilot=value)


@pytest.mark.parametrize("draw", [torch.rand, np.random.random, lambda _: random.random()])
def test_random_watch_notices_any_global_generator(draw: Any) -> None:
    watch = RandomWatch()
    watch.step_ends()
    watch.step_begins(None)
    assert watch.draws is False
    watch.step_ends()
    draw(1)
    watch.step_begins(None)
    assert watch.draws is True
