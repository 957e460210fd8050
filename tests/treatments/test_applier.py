"""Treatments applied to real trainings, and undone."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from torch.utils.data import BatchSampler, DataLoader

from lightning_perf.errors import ConfigError, TreatmentError
from lightning_perf.treatments.applier import Applier
from lightning_perf.treatments.specs import all_treatments, find, parse, parse_all
from tests.forkserver import Forkserver

from .trainings import QUIET, Items, Net, Treat, loader, train

NOT_ALONE_ON_CPU = {
    "channels-last", "compile", "compile-regions", "ddp-bucket-view", "ddp-find-unused-off", "ddp-static-graph",
    "expandable-segments", "fsdp", "fsdp-checkpointing", "fused-attention", "loader-persistent", "loader-pin-memory",
    "loader-prefetch", "precision-fp16", "progress-refresh",
}  # fmt: skip
"""Treatments that need a GPU, several ranks, workers, an image model or a compiler: tested elsewhere."""

VALUES = {"loader-workers": "1", "batch-size": "8", "log-every-n": "3", "threads": "1"}

ON_CPU = tuple(
    f"{treatment.id}={VALUES[treatment.id]}" if treatment.id in VALUES else treatment.id
    for treatment in all_treatments()
    if treatment.id not in NOT_ALONE_ON_CPU
)


def left_behind(trainer: Trainer, module: Any) -> dict[str, list[str]]:
    """Return objects of the package that a Trainer references after a run."""
    owners = [trainer, trainer.strategy, trainer.fit_loop, module, *module.modules(), *trainer.optimizers]
    return {
        type(owner).__name__: names
        for owner in owners
        if (names := [n for n, v in vars(owner).items() if type(v).__module__.startswith("lightning_perf")])
    }


def process_state() -> tuple[Any, ...]:
    return (
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.benchmark,
        torch.get_num_threads(),
        bool((torch.tensor(1e-38) * 1e-3 == 0).item()),
        torch.is_anomaly_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        gc.get_threshold(),
        gc.get_freeze_count(),
    )


@pytest.fixture(scope="module")
def attributes() -> set[str]:
    """The attributes of a module after a training without treatments."""
    return set(vars(train(max_steps=1).module))


@pytest.mark.parametrize("text", ON_CPU)
def test_nothing_is_left_behind_when_a_treated_training_ended(text: str, attributes: set[str]) -> None:
    before = process_state()
    done = train(text)

    assert left_behind(done.trainer, done.module) == {}
    assert process_state() == before
    assert set(vars(done.module)) == attributes
    for block in done.module.blocks:
        assert "forward" not in vars(block)
    assert done.trainer.optimizers[0].param_groups[0].get("fused") is None
    pickle.dumps(done.module.state_dict())


@pytest.mark.parametrize("text", ON_CPU)
def test_nothing_is_left_behind_when_a_treated_training_failed(text: str) -> None:
    class Fails(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 2:
                raise ValueError("planted")
            return super().training_step(batch, batch_idx)

    before, module = process_state(), Fails()
    with pytest.raises(ValueError, match="planted"):
        train(text, module=module)
    assert process_state() == before
    assert left_behind(module.trainer, module) == {}


@pytest.fixture(scope="module")
def untreated() -> dict[tuple[bool, bool], list[float]]:
    """Losses without a treatment, by whether data is shuffled and a progress bar shown: each is made once."""
    return {}


# A loader with a generator of its own draws nothing from the one that dropout draws from. Without, torch takes a seed
# for the workers from that at each start of an epoch; persistent workers take one only once.
@pytest.mark.parametrize(
    "text",
    [
        "loader-workers=1", "loader-workers=2,loader-prefetch=3,loader-persistent", "loader-pin-memory",
        "log-every-n=1", "progress-refresh=5", "prog-bar-off", "anomaly-off", "async-checkpoint", "gc-freeze",
        "activation-checkpointing",
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_shuffled", [False, True])
def test_losses_are_bit_identical_when_the_treatment_is_exact(
    text: str, is_shuffled: bool, untreated: dict[tuple[bool, bool], list[float]]
) -> None:
    assert all(spec.treatment.safety == "exact" for spec in parse_all(text))
    has_bar = "progress" in text

    def losses(treatments: str) -> list[float]:
        data = loader(shuffle=is_shuffled, generator=torch.Generator().manual_seed(3))
        bar = {"enable_progress_bar": True, "callbacks": [TQDMProgressBar()]} if has_bar else {}
        return train(treatments, data=data, max_epochs=1 if is_shuffled else 2, **bar).losses

    if (is_shuffled, has_bar) not in untreated:
        untreated[is_shuffled, has_bar] = losses("")
    expected = untreated[is_shuffled, has_bar]
    assert losses(text) == expected
    assert len(set(expected)) == len(expected) > 5


def test_all_can_be_applied_together_when_none_excludes_another() -> None:
    done = train(
        "loader-workers=1,precision-bf16,log-every-n=2,fused-optimizer,activation-checkpointing,threads=1",
        look=lambda t, m: (
            t.precision,
            t.log_every_n_steps,
            t.train_dataloader.num_workers,
            t.optimizers[0].param_groups,
        ),
    )
    assert done.seen[:3] == ("bf16-mixed", 2, 1)
    assert len(done.losses) == 12
    assert left_behind(done.trainer, done.module) == {}


def test_second_fit_is_treated_too_when_the_trainer_is_used_again() -> None:
    applier = Applier(parse_all("loader-workers=1,activation-checkpointing"))
    seen = []

    class Look(Treat):
        def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
            seen.append((trainer.train_dataloader.num_workers, "forward" in vars(pl_module.blocks[0])))

    trainer = Trainer(**QUIET, max_epochs=1, callbacks=[Look(applier)])
    module, data = Net(), loader(4)
    trainer.fit(module, data)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, data)
    assert seen == [(1, True), (1, True)]
    assert data.num_workers == 0


def test_given_arguments_are_left_as_they_are_when_treatments_change_them() -> None:
    given = {"precision": "32-true", "max_epochs": 1}
    changed = Applier(parse_all("precision-bf16,accumulate=2")).change_trainer_arguments(given)
    assert given == {"precision": "32-true", "max_epochs": 1}
    assert changed == {"precision": "bf16-mixed", "max_epochs": 1, "accumulate_grad_batches": 2}


def test_validation_runs_untreated_when_it_is_called_alone() -> None:
    applier = Applier(parse_all("loader-workers=1,activation-checkpointing"))
    trainer = Trainer(**QUIET, callbacks=[Treat(applier)])
    trainer.validate(Net(), loader(), verbose=False)
    assert trainer.validate_loop._combined_loader.flattened[0].num_workers == 0


def test_only_the_training_loader_is_rebuilt_when_there_is_a_validation_loader() -> None:
    done = train(
        "loader-workers=1",
        val=loader(),
        look=lambda t, _: (t.train_dataloader.num_workers, t.val_dataloaders.num_workers),
    )
    assert done.seen == (1, 0)


def test_refusal_ends_the_fit_with_its_reason_when_the_loader_is_derived() -> None:
    class Derived(DataLoader):
        def __iter__(self) -> Any:
            return super().__iter__()

    module = Net()
    with pytest.raises(TreatmentError, match="Derived overrides __iter__"):
        train("loader-workers=2", data=Derived(Items(), batch_size=4), module=module)
    assert left_behind(module.trainer, module) == {}


def test_training_continues_with_its_own_loader_when_a_treatment_is_rejected() -> None:
    class Derived(DataLoader):
        def __iter__(self) -> Any:
            return super().__iter__()

    told: list[Exception] = []
    own = Derived(Items(), batch_size=4)
    done = train("loader-workers=2,log-every-n=3", data=own, refused=told.append, look=lambda t, _: t.train_dataloader)
    assert done.seen is own
    assert done.trainer.log_every_n_steps == 3
    assert len(done.losses) == 12
    assert ["overrides __iter__" in str(error) for error in told] == [True]


FITTING = SimpleNamespace(state=SimpleNamespace(fn="fit"))


def test_treatments_are_applied_without_one_that_the_arguments_exclude(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    told: list[Exception] = []
    applier = Applier(parse_all("cudnn-benchmark,log-every-n=3"), told.append)
    given = {"deterministic": True}
    assert applier.change_trainer_arguments(given) == {**given, "log_every_n_steps": 3}
    assert ["deterministic" in str(error) for error in told] == [True]
    applier.set_up(FITTING, Net())
    assert not torch.backends.cudnn.benchmark


def test_nothing_is_applied_when_the_trainer_rejects_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    applier = Applier(parse_all("batch-size=x2,cudnn-benchmark,loader-workers=1"))
    applier.change_trainer_arguments({})
    applier.apply_nothing()
    assert not applier.changes_loaders
    applier.set_up(FITTING, Net())
    assert not torch.backends.cudnn.benchmark


def test_training_goes_on_with_its_own_batches_when_their_size_cannot_be_changed() -> None:
    class Derived(DataLoader):
        def __iter__(self) -> Any:
            return super().__iter__()

    def look(trainer: Any, _: Any) -> tuple[int, int, int]:
        loader = trainer.train_dataloader
        return loader.num_workers, loader.batch_sampler.batch_size, trainer.accumulate_grad_batches

    for own, n_workers, says in (
        (Derived(Items(), batch_size=4), 0, "overrides __iter__"),
        (DataLoader(Items(), batch_sampler=BatchSampler(range(24), 4, drop_last=False)), 1, "with batch_size"),
    ):
        told: list[Exception] = []
        treatments = "batch-size=x2,loader-workers=1" if n_workers else "batch-size=x2"
        done = train(treatments, data=own, refused=told.append, look=look, max_epochs=1, accumulate_grad_batches=2)
        assert done.seen == (n_workers, 4, 2)
        assert [says in str(error) for error in told] == [True]


def test_undo_does_no_harm_when_called_twice_or_before_anything_was_applied() -> None:
    applier = Applier([parse("cudnn-benchmark")])
    applier.undo()
    applier.change_trainer_arguments({})
    torch.backends.cudnn.benchmark = True
    applier.undo()
    applier.undo()
    assert torch.backends.cudnn.benchmark is False


def test_a_treatment_that_cannot_be_applied_keeps_no_other_from_it() -> None:
    applier = Applier(parse_all("compile-regions,ddp-static-graph,prog-bar-off"))
    trainer, module = Trainer(**QUIET), torch.nn.Linear(1, 1)
    trainer.state.fn = "fit"
    results = trainer.fit_loop.epoch_loop._results
    with pytest.raises(TreatmentError, match=r"Linear repeats no block.*; ddp-static-graph expected a DDP strategy"):
        applier.set_up(trainer, module)
    assert "log" in vars(results)
    applier.undo()
    assert "log" not in vars(results)


def test_applier_refuses_when_treatments_exclude_one_another() -> None:
    with pytest.raises(ConfigError, match="exclude"):
        Applier([parse("compile"), parse("compile-regions")])


def test_naming_treatments_loads_neither_torch_nor_lightning() -> None:
    code = (
        "import sys; from lightning_perf.treatments.prescription import prescription; "
        "from lightning_perf.treatments.specs import all_treatments, parse_all; "
        "prescription(parse_all('loader-workers,compile')); all_treatments(); "
        "assert not {'torch', 'lightning', 'pytorch_lightning'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ})


def test_every_live_treatment_of_the_loader_is_live() -> None:
    assert {treatment.id for treatment in all_treatments() if treatment.is_live} >= {
        "loader-workers", "loader-pin-memory", "loader-persistent", "loader-prefetch", "log-every-n",
    }  # fmt: skip
    assert not find("compile").is_live
    assert not find("precision-fp16").is_live


LEGACY = """
import multiprocessing, torch, warnings, logging
import pytorch_lightning as pl
from torch.utils.data import DataLoader, TensorDataset
from lightning_perf.treatments.applier import Applier
from lightning_perf.treatments.specs import parse_all
warnings.simplefilter("ignore")
multiprocessing.set_start_method("fork")  # other workers, the default in Python 3.14, import the script again
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)
applier = Applier(parse_all("loader-workers=1,precision-bf16,fused-optimizer,async-checkpoint,log-every-n=3"))
class Treat(pl.Callback):
    def setup(self, trainer, module, stage): applier.set_up(trainer, module)
    def on_train_start(self, trainer, module): applier.configured(trainer, module)
    def on_train_batch_end(self, trainer, module, *_):
        fused = trainer.optimizers[0].param_groups[0]["fused"]
        self.seen = (trainer.train_dataloader.num_workers, trainer.precision, fused,
                     type(trainer.strategy.checkpoint_io).__module__.split(".")[0], trainer.log_every_n_steps)
    def teardown(self, trainer, module, stage): applier.undo()
treat = Treat()
trainer = pl.Trainer(**applier.change_trainer_arguments(dict(callbacks=[treat], accelerator="cpu", max_epochs=2,
    logger=False, enable_progress_bar=False, enable_model_summary=False)))
trainer.fit(Model(), DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=4))
assert treat.seen == (1, "bf16-mixed", True, "pytorch_lightning", 3), treat.seen
"""


def test_pytorch_lightning_is_treated_alike_when_a_script_uses_it(forkserver: Forkserver, tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning")
    script = tmp_path / "script.py"
    script.write_text(LEGACY)
    done = forkserver.run(script)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("text", ON_CPU)
def test_applier_travels_to_spawned_processes_once_the_trainer_is_made(text: str) -> None:
    applier = Applier([parse(text)])
    applier.change_trainer_arguments({})
    pickle.loads(pickle.dumps(applier._undos))
    applier.undo()
