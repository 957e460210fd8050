"""Settings read from real Trainers of both namespaces, and from objects that misbehave."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

from lightning_perf.probes.settings.probe import SettingsProbe, read_settings
from lightning_perf.records import Settings
from lightning_perf.seams import step_logging

NAMESPACES = ["lightning.pytorch", "pytorch_lightning"]
DATA = TensorDataset(torch.zeros(10, 3))


def make_module(pl: Any, **attributes: Any) -> Any:
    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.layer(torch.zeros(2, 3)).sum()
            self.log("loss", loss, prog_bar=True, on_step=True)
            self.log("quiet", loss, on_step=True)
            self.log("epochal", loss, prog_bar=True, on_step=False, on_epoch=True)
            return loss

        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            pass

        test_step = predict_step = validation_step

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Net()
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def read_in(
    pl: Any, hook: str, run: str = "fit", loaders: Any = (), tmp_path: Any = None, **flags: Any
) -> tuple[Settings, dict[str, str]]:
    """Settings as read by a callback at ``hook`` of a real run."""
    seen: list[tuple[Settings, dict[str, str]]] = []

    def read(self: Any, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        seen.append(read_settings(trainer, pl_module))

    reader = type("Reader", (pl.Callback,), {hook: read})()
    defaults = {
        "accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False, "max_steps": 2,
        "enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": str(tmp_path),
    }  # fmt: skip
    callbacks = [reader, *flags.pop("callbacks", ())]
    trainer = pl.Trainer(callbacks=callbacks, **{**defaults, **flags})
    getattr(trainer, run)(make_module(pl), *loaders)
    return seen[-1]


@pytest.fixture
def pl() -> Any:
    return importlib.import_module("lightning.pytorch")


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_settings_hold_the_trainers_flags_when_read_in_either_namespace(namespace: str, tmp_path: Any) -> None:
    pl = importlib.import_module(namespace)
    logger = importlib.import_module(f"{namespace}.loggers").CSVLogger(str(tmp_path))
    callbacks = [pl.callbacks.TQDMProgressBar(refresh_rate=7), pl.callbacks.Timer()]
    settings, missing = read_in(
        pl, "on_train_start", loaders=(DataLoader(DATA, batch_size=2),), tmp_path=tmp_path, callbacks=callbacks,
        logger=logger, enable_progress_bar=True, precision="bf16-mixed", accumulate_grad_batches=2,
        gradient_clip_val=0.5, gradient_clip_algorithm="norm", log_every_n_steps=3, val_check_interval=0.5,
        limit_val_batches=1, num_sanity_val_steps=-1, detect_anomaly=True, inference_mode=False, max_epochs=4,
        profiler="simple", reload_dataloaders_every_n_epochs=2,
    )  # fmt: skip
    flags = settings.trainer
    assert flags.package == namespace
    assert (flags.precision, flags.accelerator, flags.strategy) == ("bf16-mixed", "cpu", "SingleDeviceStrategy")
    assert (flags.n_devices, flags.n_nodes, flags.world_size) == (1, 1, 1)
    assert (flags.max_epochs, flags.max_steps, flags.accumulate_grad_batches) == (4, 2, 2)
    assert (flags.gradient_clip_val, flags.gradient_clip_algorithm) == (0.5, "norm")
    assert (flags.log_every_n_steps, flags.val_check_interval, flags.check_val_every_n_epoch) == (3, 0.5, 1)
    assert (flags.limit_train_batches, flags.limit_val_batches, flags.num_sanity_val_steps) == (1.0, 1, -1)
    assert (flags.is_anomaly_detection_on, flags.is_inference_mode) == (True, False)
    assert (flags.is_barebones, flags.is_fast_dev_run, flags.is_automatic_optimization) == (False, False, True)
    assert (flags.progress_bar, flags.progress_bar_refresh_rate) == ("TQDMProgressBar", 7)
    assert (flags.profiler, flags.loggers) == ("SimpleProfiler", ("CSVLogger",))
    assert {"Reader", "Timer", "TQDMProgressBar"} <= set(flags.callbacks)
    assert flags.reload_dataloaders_every_n_epochs == 2
    assert missing == {
        "settings.trainer.prog_bar_metrics": "nothing has been logged yet",
        "settings.trainer.sync_dist_on_step": "nothing has been logged yet",
        "settings.trainer.find_unused_parameters": "SingleDeviceStrategy has no such flag",
        "settings.trainer.static_graph": "SingleDeviceStrategy has no such flag",
        "settings.trainer.gradient_as_bucket_view": "SingleDeviceStrategy has no such flag",
    }
    assert settings.model is not None
    assert settings.model.optimizers[0].class_name == "SGD"
    assert settings.torch.n_threads == torch.get_num_threads()
    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings


def test_settings_have_the_metrics_that_were_logged_per_step(pl: Any, tmp_path: Any) -> None:
    seen: list[Settings] = []

    class AtEnd(pl.Callback):
        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            run: Any = SimpleNamespace(
                trainer=trainer, settings=Settings(), loop=SimpleNamespace(outputs_have_graph=None)
            )
            seen.append(SettingsProbe(run).part(SimpleNamespace())["settings"])  # type: ignore[arg-type]

    read_in(pl, "on_train_end", loaders=(DataLoader(DATA, batch_size=2),), tmp_path=tmp_path, callbacks=[AtEnd()])
    assert [(one.trainer.prog_bar_metrics, one.trainer.sync_dist_on_step) for one in seen] == [(1, False)]
    assert step_logging(SimpleNamespace()) is None


def test_settings_name_neither_bar_nor_profiler_when_there_is_none(pl: Any, tmp_path: Any) -> None:
    settings, missing = read_in(pl, "on_train_start", loaders=(DataLoader(DATA),), tmp_path=tmp_path)
    assert (settings.trainer.progress_bar, settings.trainer.progress_bar_refresh_rate) == (None, None)
    assert settings.trainer.profiler is None
    assert "settings.trainer.progress_bar" not in missing


def test_settings_have_no_refresh_rate_when_the_bar_refreshes_by_time(pl: Any, tmp_path: Any) -> None:
    bar = pl.callbacks.RichProgressBar()
    if hasattr(bar, "_should_update"):
        pytest.skip("this version's RichProgressBar refreshes by steps")
    settings, missing = read_in(
        pl, "setup", loaders=(DataLoader(DATA),), tmp_path=tmp_path, callbacks=[bar], enable_progress_bar=True
    )
    assert (settings.trainer.progress_bar, settings.trainer.progress_bar_refresh_rate) == ("RichProgressBar", None)
    assert "by time" in missing["settings.trainer.progress_bar_refresh_rate"]


def test_settings_have_anomaly_detection_when_no_loop_runs_yet(pl: Any, tmp_path: Any) -> None:
    settings, _ = read_in(pl, "setup", loaders=(DataLoader(DATA),), tmp_path=tmp_path, detect_anomaly=True)
    assert settings.trainer.is_anomaly_detection_on is True
    assert settings.loaders == ()


def test_settings_leave_perf_doctor_out_when_naming_callbacks(pl: Any, tmp_path: Any) -> None:
    doctor = type("PerfDoctor", (pl.Callback,), {"__module__": "lightning_perf.doctor"})
    other = type("PerfDoctor", (pl.Callback,), {"__module__": "someone.elses"})
    settings, _ = read_in(
        pl, "setup", loaders=(DataLoader(DATA),), tmp_path=tmp_path, callbacks=[type("Mine", (doctor,), {})(), other()]
    )
    assert settings.trainer.callbacks == ("Reader", "PerfDoctor")


def test_settings_read_ddp_flags_when_the_strategy_is_ddp(pl: Any) -> None:
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        strategy=pl.strategies.DDPStrategy(find_unused_parameters=True, static_graph=False),
    )  # fmt: skip
    flags = read_settings(trainer, make_module(pl))[0].trainer
    assert (flags.strategy, flags.find_unused_parameters) == ("DDPStrategy", True)
    assert (flags.static_graph, flags.gradient_as_bucket_view) == (False, False)


# -- loaders ----------------------------------------------------------------------------------------------------------


class Stream(IterableDataset):
    n_asked = 0

    def __len__(self) -> int:
        type(self).n_asked += 1
        return 5

    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class RandomLength(RandomSampler):
    """A sampler whose length costs a random number, as some bucketing samplers' does."""

    def __len__(self) -> int:
        random.random()
        return 10


class MyLoader(DataLoader):
    pass


def collate(samples: Any) -> Any:
    return samples


def test_loaders_are_read_field_by_field_when_they_are_plain(pl: Any, tmp_path: Any) -> None:
    train = DataLoader(
        DATA, batch_size=4, shuffle=True, num_workers=1, persistent_workers=True, prefetch_factor=3, collate_fn=collate,
        multiprocessing_context="fork",
    )  # fmt: skip
    val = [DataLoader(DATA, batch_size=5, drop_last=True), DataLoader(Stream(), batch_size=2)]
    settings, missing = read_in(pl, "on_train_start", loaders=(train, val), tmp_path=tmp_path)
    first, second, third = settings.loaders
    assert [(each.stage, each.index) for each in settings.loaders] == [("train", 0), ("val", 0), ("val", 1)]
    assert (first.class_name, first.is_plain) == ("torch.utils.data.dataloader.DataLoader", True)
    assert (first.dataset_class, first.is_iterable, first.is_in_memory_tensors) == ("TensorDataset", False, True)
    assert (first.n_batches, first.n_samples, first.batch_size, first.drop_last) == (3, 10, 4, False)
    assert (first.num_workers, first.persistent_workers, first.prefetch_factor) == (1, True, 3)
    assert (first.sampler_class, first.is_shuffled) == ("RandomSampler", True)
    assert (first.collate, first.multiprocessing_context, first.pin_memory) == ("collate", "fork", False)
    assert (second.n_batches, second.drop_last, second.is_shuffled) == (2, True, False)
    assert (second.prefetch_factor, second.multiprocessing_context) == (None, None)
    assert (third.dataset_class, third.is_iterable) == ("Stream", True)
    assert (third.n_batches, third.n_samples) == (3, None)  # as Lightning counted it
    assert "settings.loaders.val.1.n_samples" in missing
    assert not any(path.startswith("settings.loaders.train") for path in missing)


def test_loaders_are_listed_in_order_when_several_are_combined(pl: Any, tmp_path: Any) -> None:
    combined = pl.utilities.CombinedLoader(
        {"a": DataLoader(DATA, batch_size=2), "b": [DataLoader(DATA, batch_size=5), range(3)]}, "max_size_cycle"
    )
    settings, missing = read_in(pl, "on_train_start", loaders=(combined,), tmp_path=tmp_path)
    assert [(each.index, each.batch_size, each.class_name) for each in settings.loaders] == [
        (0, 2, "torch.utils.data.dataloader.DataLoader"),
        (1, 5, "torch.utils.data.dataloader.DataLoader"),
        (2, None, "builtins.range"),
    ]
    assert "not a torch DataLoader" in missing["settings.loaders.train.2"]


def test_loaders_are_the_stages_own_when_evaluating(pl: Any, tmp_path: Any) -> None:
    for run, hook, stage in (
        ("validate", "on_validation_start", "val"),
        ("test", "on_test_start", "test"),
        ("predict", "on_predict_start", "predict"),
    ):
        settings, _ = read_in(pl, hook, run=run, loaders=(DataLoader(DATA, batch_size=3),), tmp_path=tmp_path)
        assert [(each.stage, each.batch_size) for each in settings.loaders] == [(stage, 3)]


def test_loaders_are_those_of_validate_when_a_fit_came_before(pl: Any, tmp_path: Any) -> None:
    seen: list[Settings] = []

    class Reader(pl.Callback):
        def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
            seen.append(read_settings(trainer, pl_module)[0])

    trainer = pl.Trainer(
        accelerator="cpu", max_steps=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[Reader()], default_root_dir=str(tmp_path),
    )  # fmt: skip
    module = make_module(pl)
    trainer.fit(module, DataLoader(DATA, batch_size=2), DataLoader(DATA, batch_size=5))
    trainer.validate(module, DataLoader(DATA, batch_size=3), verbose=False)
    assert [each.batch_size for each in seen[-1].loaders] == [3]


def fake_trainer(*loaders: Any, **attributes: Any) -> Any:
    return SimpleNamespace(
        train_dataloader=list(loaders), state=SimpleNamespace(fn="fit"), val_dataloaders=None, optimizers=[],
        **attributes,
    )  # fmt: skip


def read_one(loader: Any, **attributes: Any) -> tuple[Any, dict[str, str]]:
    settings, missing = read_settings(fake_trainer(loader, **attributes), torch.nn.Identity())
    (found,) = settings.loaders
    return found, {path.removeprefix("settings.loaders.train.0"): why for path, why in missing.items()}


def test_loader_is_read_but_not_plain_when_it_is_a_subclass() -> None:
    found, _ = read_one(MyLoader(DATA, batch_size=5))
    assert (found.is_plain, found.batch_size, found.n_batches) == (False, 5, 2)
    assert found.class_name.endswith("test_settings.MyLoader")


def test_length_is_not_read_when_samples_are_generated_or_reading_it_draws_numbers() -> None:
    stream = DataLoader(Stream())
    before, n_asked = dict(vars(stream)), Stream.n_asked
    read_one(stream)
    assert Stream.n_asked == n_asked
    assert vars(stream) == before
    state = random.getstate()
    found, missing = read_one(DataLoader(DATA, sampler=RandomLength(DATA)))
    assert random.getstate() == state
    assert found.n_batches is None
    assert ".n_batches" in missing


def test_length_is_lightnings_when_only_the_users_sampler_could_give_it() -> None:
    loader = DataLoader(DATA, batch_sampler=MyBatches(RandomSampler(DATA), 4, False))
    trainer = fake_trainer(loader, limit_train_batches=1.0, num_training_batches=3)
    trainer.train_dataloader = loader
    found = read_settings(trainer, torch.nn.Linear(1, 1))[0].loaders[0]
    assert (found.n_batches, found.batch_size, found.sampler_class) == (3, None, "MyBatches")
    trainer.limit_train_batches, trainer.num_training_batches = 1, 1
    assert read_settings(trainer, torch.nn.Linear(1, 1))[0].loaders[0].n_batches is None


def test_loader_has_the_usual_batch_size_when_given_as_a_batch_sampler() -> None:
    found, _ = read_one(DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 4, False)))
    assert (found.batch_size, found.n_batches, found.sampler_class, found.is_shuffled) == (4, 3, "RandomSampler", True)
    found, _ = read_one(DataLoader(DATA, batch_size=None))
    assert (found.batch_size, found.n_batches, found.sampler_class) == (None, 10, "SequentialSampler")


def test_loader_names_the_replaced_sampler_when_lightning_distributes() -> None:
    sampler = torch.utils.data.DistributedSampler(DATA, num_replicas=2, rank=0, shuffle=False)
    found, _ = read_one(DataLoader(DATA, batch_size=2, sampler=sampler))
    assert (found.sampler_class, found.is_shuffled, found.n_batches) == ("DistributedSampler", False, 3)


def test_loader_loses_one_field_with_its_reason_when_an_object_misbehaves() -> None:
    class Odd(Dataset):
        def __len__(self) -> int:
            raise OSError("the disk is gone")

        def __getitem__(self, index: int) -> int:
            raise AssertionError

    class Broken(DataLoader):
        @property
        def pin_memory(self) -> bool:
            raise AssertionError("code of the loader was run")

        @pin_memory.setter
        def pin_memory(self, value: bool) -> None: ...

    found, missing = read_one(DataLoader(Odd(), sampler=[1], batch_size=3))
    assert (found.batch_size, found.n_samples) == (3, None)
    assert missing[".n_samples"] == "the length of Odd is not read: only user code can compute it"
    found, missing = read_one(Broken(DATA))
    assert (found.pin_memory, found.num_workers) == (None, 0)
    assert missing[".pin_memory"] == "Broken.pin_memory is computed by code of the script"


def test_settings_are_all_defaults_with_reasons_when_the_trainer_has_none() -> None:
    class Nothing:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(f"{name} is not for you")

    settings, missing = read_settings(Nothing(), torch.nn.Linear(1, 1))
    assert settings.trainer.precision is None
    assert settings.loaders == ()
    assert missing["settings.trainer.precision"] == "reading it raised RuntimeError: precision is not for you"
    assert settings.torch.n_threads == torch.get_num_threads()


def test_settings_change_nothing_when_read() -> None:
    loader = DataLoader(DATA, batch_size=2, shuffle=True)
    state, before = torch.get_rng_state(), dict(vars(loader))
    read_one(loader)
    assert torch.equal(torch.get_rng_state(), state)
    assert vars(loader) == before


class MyBatches(BatchSampler):
    def __len__(self) -> int:
        raise AssertionError("the user's own batch sampler must not be asked")
