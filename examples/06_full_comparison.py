"""The whole ladder: a training with several faults, fixed one after another, with the speedup of each fix.

After each training, the first recommendation of its diagnosis is applied. ``lightning-perf trial -- python train.py``
does the same for your script, in separate processes and with confidence intervals. Run it: ``python
examples/06_full_comparison.py`` (about half a minute on a CPU).
"""

import tempfile
import time

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lightning_perf import PerfDoctor

MAX_RUNGS = 4


class Archive(Dataset):
    """640 samples on a slow disk."""

    def __len__(self):
        return 640

    def __getitem__(self, index):
        time.sleep(0.004)  # the disk
        return torch.full((64,), index / 640)


class Regressor(LightningModule):
    """A model that logs many values at each step."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 1024), nn.Linear(1024, 1)

    def loss(self, batch):
        hidden = self.first(batch)
        for _ in range(8):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden).square().mean()

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        for index in range(60):
            self.log(f"metric_{index}", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


def train(folder, flags, loader_args):
    """Train with the recommendations applied so far; return the session."""
    doctor = PerfDoctor(reports=())
    arguments = {"detect_anomaly": True, "max_epochs": 2, **flags}  # as if left on after debugging a NaN
    trainer = Trainer(
        accelerator="cpu",
        callbacks=[doctor],
        logger=CSVLogger(folder),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **arguments,
    )
    train_loader = DataLoader(Archive(), batch_size=16, **loader_args)
    trainer.fit(Regressor(), train_loader, DataLoader(torch.rand(50, 64, 64), batch_size=None))
    return doctor.session


def first_new(session, flags, loader_args):
    """Return the best recommendation that changes another argument, and its finding."""
    for finding in session.findings:
        for one in finding.prescriptions:
            if one.safety == "exact" and (one.trainer_flags or one.loader_args):
                is_known = set(one.trainer_flags) <= set(flags) and set(one.loader_args) <= set(loader_args)
                if not is_known and finding.severity != "info":
                    return finding, one
    return None


def main():
    """Apply recommendations one by one and print the ladder."""
    flags, loader_args, rungs = {}, {}, []
    with tempfile.TemporaryDirectory() as folder:
        session = train(folder, flags, loader_args)
        rungs.append(("unchanged", seconds_per_batch(session)))
        while len(rungs) <= MAX_RUNGS and (found := first_new(session, flags, loader_args)) is not None:
            finding, recommendation = found
            flags.update(recommendation.trainer_flags)
            loader_args.update(recommendation.loader_args)
            session = train(folder, flags, loader_args)
            rungs.append((f"{finding.code}: {recommendation.summary}", seconds_per_batch(session)))
    base = rungs[0][1]
    for what, seconds in rungs:
        print(f"{seconds * 1e3:7.1f} ms per batch  {base / seconds:4.1f}x  {what}")
    return rungs


def seconds_per_batch(session):
    """Return the time per batch, including validation, logging and epoch boundaries."""
    return session.steady.span_s / session.steady.n_steps


if __name__ == "__main__":
    main()
