"""PerfDoctor(apply=...): treatments applied between epochs after a finding recommended them."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from lightning.pytorch import Callback
from torch.utils.data import DataLoader, Dataset

from lightning_perf import PerfDoctor, live, load
from lightning_perf.errors import ConfigError
from tests.forkserver import Forkserver

from .conftest import Make, assert_nothing_left
from .models import Tiny, loader


class SlowSamples(Dataset):
    """Waits for each sample, longer than workers cost on a busy machine."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.004)
        return torch.full((4,), float(index % 5))


class Workers(Callback):
    """Notes the training loader's workers, and each batch, by epoch."""

    def __init__(self) -> None:
        self.n_workers: list[int] = []
        self.batches: list[list[float]] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.batches.append(batch[:, 0].tolist())
        if batch_idx == 0:
            data = trainer.train_dataloader
            self.n_workers.append(data.num_workers if isinstance(data, DataLoader) else -1)


def slow_loader(**arguments: Any) -> DataLoader:
    return DataLoader(SlowSamples(), batch_size=2, shuffle=True, **arguments)


def fit(
    make_trainer: Make, data: Any, *texts: str, epochs: int = 3, **arguments: Any
) -> tuple[PerfDoctor, Workers, Any]:
    torch.manual_seed(5)
    watch, doctor = Workers(), PerfDoctor(apply=texts, reports=("json",), schedule=None)
    trainer = make_trainer(watch, doctor, max_epochs=epochs, **arguments)
    profiler = trainer.profiler
    trainer.fit(Tiny(), data)
    assert_nothing_left(trainer, profiler)
    return doctor, watch, trainer


def test_workers_are_added_from_the_next_epoch_on_when_the_diagnosis_asks_for_them(
    make_trainer: Make, caplog: pytest.LogCaptureFixture
) -> None:
    _, plain, _ = fit(make_trainer, slow_loader())
    data = slow_loader()
    with caplog.at_level(logging.WARNING, logger="lightning_perf"):
        doctor, watch, trainer = fit(make_trainer, data, "loader-workers=2")

    assert watch.n_workers == [0, 2, 2]
    n_epoch = len(plain.batches) // 3  # workers that live on draw from torch's generator once, not in each epoch
    assert watch.batches[: 2 * n_epoch] == plain.batches[: 2 * n_epoch]
    assert len(watch.batches) == len(plain.batches)
    assert [(a.treatment, a.finding, a.epoch, a.status) for a in doctor.session.applied] == [
        ("loader-workers=2", "PD101", 1, "applied")
    ]
    assert [record.getMessage() for record in caplog.records if "applied" in record.getMessage()] == [
        "PerfDoctor applied loader-workers=2 from epoch 1 on, as PD101 recommends."
    ]
    assert trainer.train_dataloader is data
    assert data.num_workers == 0
    assert doctor.session.probes_off == ()


def test_value_is_the_recommended_one_when_none_is_given(make_trainer: Make) -> None:
    class Diagnoses(Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            doctor = next(one for one in trainer.callbacks if isinstance(one, PerfDoctor))
            findings = doctor.session.findings if doctor.session is not None else ()
            self.wanted = [f.prescriptions[0].loader_args for f in findings if f.code == "PD101"]

    watch, diagnoses = Workers(), Diagnoses()
    doctor = PerfDoctor(apply=("loader-workers",), reports=("json",), schedule=None)
    make_trainer(watch, diagnoses, doctor, max_epochs=2).fit(Tiny(), slow_loader())
    assert watch.n_workers == [0, diagnoses.wanted[0]["num_workers"]]
    assert doctor.session.applied[0].treatment == f"loader-workers={watch.n_workers[1]}"


def test_nothing_is_applied_when_no_finding_asks_for_it(make_trainer: Make) -> None:
    doctor, watch, _ = fit(make_trainer, loader(30), "loader-workers=2", "loader-persistent", "anomaly-off")
    assert watch.n_workers == [0, 0, 0]
    assert doctor.session.applied == ()


def test_refusal_is_recorded_and_training_goes_on_when_it_cannot_be_applied(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lightning_perf.errors import TreatmentError
    from lightning_perf.treatments import applier

    def refuse(*_: Any) -> None:
        raise TreatmentError("planted refusal")

    monkeypatch.setattr(applier, "rebuilt", refuse)
    doctor, watch, _ = fit(make_trainer, slow_loader(), "loader-workers=2")
    assert watch.n_workers == [0, 0, 0]
    assert [(a.status, a.reason) for a in doctor.session.applied] == [("refused", "planted refusal")]
    assert doctor.session.probes_off == ()


def test_reloaded_loaders_are_treated_too_when_the_user_reloads_them(make_trainer: Make) -> None:
    class Reloads(Tiny):
        def train_dataloader(self) -> DataLoader:
            return slow_loader()

    watch, doctor = Workers(), PerfDoctor(apply=("loader-workers=2",), reports=(), schedule=None)
    trainer = make_trainer(watch, doctor, max_epochs=3, reload_dataloaders_every_n_epochs=1)
    trainer.fit(Reloads())
    assert watch.n_workers == [0, 2, 2]
    assert trainer.train_dataloader.num_workers == 0


def test_everything_is_put_back_when_the_training_fails_later(make_trainer: Make) -> None:
    class Fails(Tiny):
        def on_train_epoch_end(self) -> None:
            if self.current_epoch == 1:
                raise ValueError("planted")

    data, doctor = slow_loader(), PerfDoctor(apply=("loader-workers=2",), reports=(), schedule=None)
    trainer = make_trainer(doctor, max_epochs=3)
    profiler = trainer.profiler
    with pytest.raises(ValueError, match="planted"):
        trainer.fit(Fails(), data)
    assert_nothing_left(trainer, profiler)
    assert trainer.train_dataloader is data
    assert doctor.session.applied[0].status == "applied"


class Planted:
    """A fake ``Applier`` that records its calls."""

    done: ClassVar[list[str]] = []

    def __init__(self, specs: Any, refused: Any) -> None:
        self.name = specs[0].treatment.id

    def apply_live(self, trainer: Any, module: Any) -> None:
        self.done.append(f"apply {self.name}")
        if self.name == "log-every-n":
            raise SystemExit

    def undo(self) -> None:
        self.done.append(f"undo {self.name}")
        if self.name == "prog-bar-off":
            raise OSError("planted")


def test_every_treatment_is_undone_when_one_is_interrupted_and_one_cannot_be_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "Applier", Planted)
    monkeypatch.setattr(Planted, "done", [])
    names = ["loader-workers", "prog-bar-off", "log-every-n"]
    texts = ["loader-workers=1", "prog-bar-off", "log-every-n=50"]
    trainer = SimpleNamespace(current_epoch=1, is_global_zero=False)
    treatments = live.LiveTreatments(texts)
    with pytest.raises(SystemExit):
        treatments.apply([(text, "PD000") for text in texts], trainer, None)
    with pytest.raises(OSError, match="planted"):
        treatments.undo()
    assert Planted.done == [f"apply {name}" for name in names] + [f"undo {name}" for name in reversed(names)]


def test_what_was_applied_is_in_the_file(make_trainer: Make, tmp_path: Any) -> None:
    doctor, *_ = fit(make_trainer, slow_loader(), "loader-workers=1", epochs=2)
    files = list(tmp_path.rglob("perf_session.json"))
    assert load(files[0]).applied == doctor.session.applied != ()


@pytest.mark.parametrize(
    ("apply", "says"),
    [
        ("loader-workers", "expected a list"),
        ([4], "expected a list"),
        (["loader-worker"], "did you mean loader-workers"),
        (["loader-workers=x"], "0 for none"),
        (["compile"], "lightning-perf run --with compile"),
        (["log-every-n", "precision-bf16=1"], "takes no value"),
        (["threads=2", "threads=3"], "expected each treatment once"),
    ],
)
def test_constructor_refuses_what_cannot_be_applied_between_epochs(apply: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        PerfDoctor(apply=apply)


# The machine's cores decide which rank's diagnosis recommends workers; here it is the first rank's.
SCRIPT = """
import multiprocessing, torch, warnings
import lightning.pytorch as pl
from torch.utils.data import DataLoader, TensorDataset
from lightning_perf import PerfDoctor
from lightning_perf.live import LiveTreatments
warnings.simplefilter("ignore")
multiprocessing.set_start_method("fork")  # not the default in Python 3.14; other workers are refused
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6)
    def on_train_batch_start(self, batch, batch_idx):
        if batch_idx == 0:
            n = self.trainer.train_dataloader.num_workers
            open(f"rank-{self.global_rank}-epoch-{self.current_epoch}-workers-{n}", "w").close()
def requests(self, session, *_):
    return [("loader-workers=1", "PD101")] if session is not None and self._waiting else []
LiveTreatments.requests = requests
trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, logger=False,
                     enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                     callbacks=[PerfDoctor(apply=["loader-workers"], reports=())])
trainer.fit(Model(), DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=2))
"""


def test_all_ranks_apply_the_same_when_there_are_two(forkserver: Forkserver, tmp_path: Any) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = forkserver.run(script, n_ranks=2)
    assert done.returncode == 0, done.stderr[-2000:]
    seen = sorted(path.name for path in tmp_path.glob("rank-*"))
    assert seen == [f"rank-{rank}-epoch-{epoch}-workers-{epoch}" for rank in (0, 1) for epoch in (0, 1)]


def test_loader_that_cannot_be_treated_later_is_kept_when_the_user_reloads_them(
    make_trainer: Make, caplog: pytest.LogCaptureFixture
) -> None:
    class Own(DataLoader[Any]):
        """A loader that fetches in its own way is never recreated."""

        def __iter__(self) -> Any:
            return super().__iter__()

    class Reloads(Tiny):
        def train_dataloader(self) -> Any:
            kind = Own if self.current_epoch > 1 else DataLoader
            return kind(SlowSamples(), batch_size=2, shuffle=True)

    watch, doctor = Workers(), PerfDoctor(apply=("loader-workers=2",), reports=(), schedule=None)
    with caplog.at_level(logging.WARNING, logger="lightning_perf"):
        make_trainer(watch, doctor, max_epochs=3, reload_dataloaders_every_n_epochs=1).fit(Reloads())
    assert watch.n_workers == [0, 2, 0]
    assert any("left a training loader unchanged" in record.getMessage() for record in caplog.records)


def test_second_fit_begins_without_the_first_ones_diagnosis(make_trainer: Make) -> None:
    class Sees(Callback):
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            self.seen.append(doctor.session)

    sees, doctor = Sees(), PerfDoctor(apply=("loader-workers=2",), reports=(), schedule=None)
    for _ in range(2):
        watch = Workers()
        make_trainer(sees, watch, doctor, max_epochs=1).fit(Tiny(), slow_loader())
        assert watch.n_workers == [0]
        assert doctor.session is not None
        assert doctor.session.applied == ()
    assert sees.seen == [None, None]
