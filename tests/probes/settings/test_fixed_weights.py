"""Weights that a fit does not change are found, among those that a checkpoint holds."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader

from lightning_perf import PerfDoctor
from lightning_perf.records import FixedWeights
from lightning_perf.rules.loop.pd602_checkpoint_heavy import _without_fixed

N = 2**18  # elements of a mebibyte


class Tuned(LightningModule):
    """A trained head, a table and a buffer that do not change, and a teacher that follows the head."""

    def __init__(self, unfreezes_at: int | None = None, follows: bool = False, is_persistent: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(N // 4, 4)
        self.table.requires_grad_(False)
        self.head = nn.Linear(4, 1)
        self.register_buffer("counts", torch.ones(N + 4), persistent=is_persistent)
        self.unfreezes_at, self.follows = unfreezes_at, follows

    def training_step(self, batch, batch_idx):
        if batch_idx == self.unfreezes_at:
            self.table.requires_grad_(True)
        if self.follows:
            self.table.weight.data.mul_(0.99)
        return self.head(self.table(batch[0])).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.head.parameters(), 1e-3)


class Counting(Tuned):
    def training_step(self, batch, batch_idx):
        self.counts[batch_idx + 1] += 1.0
        return super().training_step(batch, batch_idx)


class Replacing(Tuned):
    def training_step(self, batch, batch_idx):
        self.counts = self.counts.clone()
        return super().training_step(batch, batch_idx)


class Freed(Tuned):
    def training_step(self, batch, batch_idx):
        self.counts.untyped_storage().resize_(0)
        return super().training_step(batch, batch_idx)


class Unusual(Tuned):
    def __init__(self):
        super().__init__()
        self.register_buffer("counts", torch.ones(N + 4, dtype=torch.complex32))


class Lean(Tuned):
    def on_save_checkpoint(self, checkpoint):
        del checkpoint["state_dict"]["table.weight"]


class LeanState(Tuned):
    def state_dict(self, *args, **kwargs):
        return {name: value for name, value in super().state_dict(*args, **kwargs).items() if "head" in name}


class Averaging(Callback):
    """Saves more than the model's state, as ``WeightAveraging`` does."""

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        checkpoint["averages"] = dict(checkpoint["state_dict"])


def fitted(module, *callbacks, has_checkpoints=True, ckpt_path=None, **flags):
    callbacks += (ModelCheckpoint(every_n_epochs=10),) if has_checkpoints else ()
    flags = {"max_epochs": 1, **flags}
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=has_checkpoints,
                      enable_progress_bar=False, enable_model_summary=False, callbacks=list(callbacks),
                      **flags)  # fmt: skip
    data = torch.utils.data.TensorDataset(torch.randint(N // 4, (20, 3)))
    trainer.fit(module, DataLoader(data, batch_size=2), ckpt_path=ckpt_path)
    return trainer


def found_in(module, folder, *callbacks, **arguments):
    doctor = PerfDoctor(out_dir=folder, console="off")
    fitted(module, doctor, *callbacks, **arguments)
    found = doctor.session.settings.model.fixed_weights
    assert found is None or (found.costs_s is not None and found.site.startswith("test_fixed_weights.py:"))
    return found and (found.n_bytes, found.largest, found.is_buffer)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, (4 * N + 16, "counts", True)),
        ({"is_persistent": False}, (4 * N, "table.weight", False)),
        ({"unfreezes_at": 2}, (4 * N + 16, "counts", True)),
        ({"follows": True}, (4 * N + 16, "counts", True)),
        ({"follows": True, "is_persistent": False}, None),
    ],
)
def test_large_weights_that_stay_are_found(arguments, expected, tmp_path):
    assert found_in(Tuned(**arguments), tmp_path) == expected


@pytest.mark.parametrize("flags", [{"precision": "64-true"}, {"strategy": "ddp", "devices": 1}])
def test_weights_that_a_strategy_converts_or_writes_before_the_first_step_are_found(flags, tmp_path):
    module = Tuned(is_persistent=False)
    n_bytes = 8 * N if "precision" in flags else 4 * N
    assert found_in(module, tmp_path, **flags) == (n_bytes, "table.weight", False)


def test_weights_that_a_checkpoint_fills_before_the_first_step_are_found(tmp_path):
    fitted(Tuned()).save_checkpoint(tmp_path / "first.ckpt")
    assert found_in(Tuned(), tmp_path, max_epochs=2, ckpt_path=tmp_path / "first.ckpt") is not None


def test_nothing_is_looked_for_where_nothing_is_saved(tmp_path):
    assert found_in(Tuned(), tmp_path, has_checkpoints=False) is None


@pytest.mark.parametrize("kind", [Counting, Replacing, Freed, Unusual])
@pytest.mark.filterwarnings("error:.*PerfDoctor", "ignore:ComplexHalf")
def test_a_buffer_that_is_written_or_cannot_be_read_is_left_out(kind, tmp_path):
    assert found_in(kind(), tmp_path) == (4 * N, "table.weight", False)


@pytest.mark.parametrize(("kind", "callbacks"), [(Lean, ()), (LeanState, ()), (Tuned, (Averaging(),))])
def test_nothing_is_found_where_user_code_changes_what_a_checkpoint_holds(kind, callbacks, tmp_path):
    assert found_in(kind(), tmp_path, *callbacks) is None


class FollowingAdvice(Tuned):
    """A tied table, and a second head that is frozen once it is trained."""

    def __init__(self):
        super().__init__()
        self.strict_loading = False
        self.output, self.second = nn.Embedding(N // 4, 4), nn.Linear(1, 1)
        self.output.weight = self.table.weight

    def training_step(self, batch, batch_idx):
        self.second.requires_grad_(batch_idx < 5)
        return self.second(super().training_step(batch, batch_idx).view(1)).sum()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)


def test_the_recommended_code_leaves_out_no_weights_that_were_trained(tmp_path):
    recommended = _without_fixed(FixedWeights(n_bytes=N, largest="table.weight", is_buffer=False)).code
    defined: dict = {}
    exec(recommended.partition("\n")[2], defined)
    kind = type("Lean", (FollowingAdvice,), {"on_save_checkpoint": defined["on_save_checkpoint"]})
    module = kind()
    fitted(module).save_checkpoint(tmp_path / "lean.ckpt")
    saved = torch.load(tmp_path / "lean.ckpt", weights_only=True)["state_dict"]
    assert {*saved} == {"head.weight", "head.bias", "second.weight", "second.bias", "counts"}
    assert torch.equal(kind.load_from_checkpoint(tmp_path / "lean.ckpt").second.weight, module.second.weight)
