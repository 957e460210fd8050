"""Train cases by a Fabric loop in place of their Trainer."""

from __future__ import annotations

from typing import Any

import torch
from lightning import pytorch
from lightning.fabric import Fabric

from lightning_perf import PerfDoctor

CASES = (
    "adam_tensor_by_tensor",
    "annotations_parsed_in_step",
    "attention_written_out",
    "checkpoint_every_step",
    "double_precision_model",
    "gradients_never_zeroed",
    "loop_over_rows",
    "slow_collate",
    "slow_transform",
    "validation_on_everything",
)


class FabricTrainer:
    """The part of the Trainer that these cases use, as a loop with Fabric.

    Args:
        max_epochs: Number of epochs.
        callbacks: A ``ModelCheckpoint``, whose interval in steps is kept; others are not called.
        others: Not used.
    """

    doctor: dict[str, Any] = {}

    def __init__(self, max_epochs: int, callbacks: Any = (), **others: Any) -> None:
        self.max_epochs = max_epochs
        self.save_every = next((each._every_n_train_steps for each in callbacks), 0)

    def fit(self, module: Any, loader: Any, val_loader: Any = None) -> None:
        """Train."""
        doctor = PerfDoctor(**self.doctor)
        fabric = Fabric(accelerator="cpu", devices=1, callbacks=[doctor])
        model, optimizer = fabric.setup(module, module.configure_optimizers())
        loader = fabric.setup_dataloaders(loader)
        n_steps = 0
        for _ in range(self.max_epochs):
            for index, batch in enumerate(doctor.steps(loader)):
                loss = model.training_step(batch, index)
                if loss is not None:
                    optimizer.zero_grad()
                    fabric.backward(loss)
                    optimizer.step()
                n_steps += 1
                if self.save_every and n_steps % self.save_every == 0:
                    fabric.save("model.ckpt", {"model": model, "optimizer": optimizer})
            if val_loader is not None:
                model.eval()
                with torch.no_grad():
                    for index, batch in enumerate(doctor.steps(val_loader)):
                        model.validation_step(batch, index)
                model.train()
            fabric.call("on_train_epoch_end")
        doctor.close()


def replace_trainer(doctor: dict[str, Any]) -> None:
    """Let scripts that are run later train by a Fabric loop, with PerfDoctor of these arguments."""
    FabricTrainer.doctor = doctor
    pytorch.Trainer = FabricTrainer
