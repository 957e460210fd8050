"""Real trainings with treatments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lightning_perf.treatments.applier import Applier
from lightning_perf.treatments.specs import parse_all

N_FEATURES = 8


class Items(Dataset):
    """Samples that tell their index, and note in which process they were fetched."""

    def __init__(self, n: int = 24) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((N_FEATURES,), float(index))


class Block(nn.Module):
    """What a network repeats; draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(N_FEATURES, N_FEATURES)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x + scale * self.drop(torch.tanh(self.linear(x)))


class Net(LightningModule):
    """Three blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.head = nn.Linear(N_FEATURES, 1)
        self.batches: list[Any] = []
        self.seen: dict[str, Any] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x / 24
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.head(x)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.batches.append(batch)
        x = batch if isinstance(batch, torch.Tensor) else torch.cat(list(batch))
        loss = self(x.reshape(-1, N_FEATURES)).square().mean()
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self(batch).square().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


QUIET: dict[str, Any] = {
    "accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
    "enable_model_summary": False,
}  # fmt: skip
"""Arguments of a Trainer that trains on a CPU and writes nothing."""


class Treat(Callback):
    """Calls an applier in the hooks that it names."""

    def __init__(self, applier: Applier) -> None:
        self.applier = applier

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.applier.set_up(trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.applier.configured(trainer, pl_module)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.applier.undo()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.applier.undo()


class Watch(Callback):
    """Notes losses, and what ``look`` sees after the first batch."""

    def __init__(self, look: Callable[[Trainer, Any], Any] | None = None) -> None:
        self.losses: list[float] = []
        self.look = look
        self.seen: Any = None

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.losses.append(outputs["loss"].item())
        if self.look is not None and self.seen is None:
            self.seen = self.look(trainer, pl_module)


class Training:
    """A finished training."""

    def __init__(self, trainer: Trainer, module: Any, watch: Watch) -> None:
        self.trainer, self.module, self.losses, self.seen = trainer, module, watch.losses, watch.seen


def loader(n: int = 24, **arguments: Any) -> DataLoader:
    return DataLoader(Items(n), **{"batch_size": 4, **arguments})


def train(
    treatments: str = "",
    data: Any = None,
    module: Any = Net,
    look: Callable[[Trainer, Any], Any] | None = None,
    val: Any = None,
    ckpt_path: str | None = None,
    refused: Callable[[Exception], None] | None = None,
    **arguments: Any,
) -> Training:
    """Trains with treatments on a CPU; the same seed each time."""
    seed_everything(7, verbose=False)
    module = module() if isinstance(module, type) else module
    data = loader() if data is None else data
    seed_everything(8, verbose=False)
    applier = Applier(parse_all(treatments), refused)
    watch = Watch(look)
    given = {**QUIET, "devices": 1, "max_epochs": 2, **arguments}
    callbacks = [Treat(applier), watch, *given.pop("callbacks", [])]
    trainer = Trainer(**applier.change_trainer_arguments({**given, "callbacks": callbacks}))
    trainer.fit(module, data, val, ckpt_path=ckpt_path)
    return Training(trainer, module, watch)


class Config:
    """What ``fused-attention`` uses of configurations of transformers."""

    def __init__(self, attention: str, inner: Any = None) -> None:
        self.inner, self.attention, self.output_attentions = inner, attention, False

    @property
    def _attn_implementation(self) -> str:
        return self.attention

    @_attn_implementation.setter
    def _attn_implementation(self, value: str) -> None:
        self.attention = value
        if self.inner is not None:
            self.inner._attn_implementation = value


class PreTrainedModel(nn.Module):
    """What ``fused-attention`` uses of models of transformers."""

    refusal = ""
    is_changeable = True

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config

    def set_attn_implementation(self, value: str) -> None:
        if self.refusal:
            raise ValueError(self.refusal)
        if self.is_changeable:
            self.config._attn_implementation = value
