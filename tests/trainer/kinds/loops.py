"""The training loop's own variants."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from trainer.models import N_FEATURES, FetchesItself, Manual, Stream, Tiny, loader, unsized_loader

from .registry import Run, kind

N_BATCHES = 14  # in two epochs steps 10 and 20 are reached, which several probes sample


class Deep(Tiny):
    """State of every kind: dropout, running statistics, momentum."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(N_FEATURES, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Varied(torch.utils.data.Dataset):
    """Samples that differ, from a generator of their own."""

    def __init__(self, n: int = 2 * N_BATCHES) -> None:
        self.samples = torch.randn(n, N_FEATURES, generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.samples[index]


def varied(n_batches: int = N_BATCHES, **arguments: Any) -> Any:
    """Return a shuffling loader of samples that differ."""
    return torch.utils.data.DataLoader(Varied(2 * n_batches), batch_size=2, **{"shuffle": True, **arguments})


@kind("plain", core=True)
def plain(run: Run) -> None:
    run.trainer().fit(Tiny(), loader(N_BATCHES))


@kind("dropout-adam-validation", core=True)
def dropout(run: Run) -> None:
    run.trainer().fit(Deep(), varied(), varied(3, shuffle=False))


@kind("accumulation")
def accumulation(run: Run) -> None:
    run.trainer(accumulate_grad_batches=3, gradient_clip_val=0.1).fit(Deep(), varied())


@kind("manual-two-optimizers", core=True)
def manual(run: Run) -> None:
    run.trainer().fit(Manual(n_optimizers=2), varied())


@kind("manual-raw-optimizers")
def manual_raw(run: Run) -> None:
    run.trainer().fit(Manual(n_optimizers=2, is_raw=True), varied())


class Gan(Tiny):
    """Two networks that train against each other, with toggled optimizers."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.critic = nn.Linear(2, N_FEATURES), nn.Linear(N_FEATURES, 1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        first, second = self.optimizers()
        fake = self.generator(torch.randn(len(batch), 2))
        for optimizer, loss in (
            (first, lambda: -self.critic(self.generator(torch.randn(len(batch), 2))).mean()),
            (second, lambda: self.critic(fake.detach()).mean() - self.critic(batch).mean()),
        ):
            self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            value = loss()
            self.manual_backward(value)
            optimizer.step()
            self.untoggle_optimizer(optimizer)
            self.log("loss", value, prog_bar=True)

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(one.parameters(), lr=0.01) for one in (self.generator, self.critic)]


@kind("gan", core=True)
def gan(run: Run) -> None:
    run.trainer().fit(Gan(), varied())


@kind("no-loss-and-early-epoch-end")
def no_loss(run: Run) -> None:
    class NoLoss(Deep):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == 12 else None

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return None if batch_idx % 2 else loss

    run.trainer().fit(NoLoss(), varied())


@kind("lbfgs", core=True)
def lbfgs(run: Run) -> None:
    class Closures(Tiny):
        def configure_optimizers(self) -> Any:
            return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)

    run.trainer().fit(Closures(), varied())


@kind("iterator-step", core=True)
def iterator_step(run: Run) -> None:
    run.trainer().fit(FetchesItself(), loader(N_BATCHES))


@kind("iterable-dataset")
def iterable(run: Run) -> None:
    run.trainer().fit(Tiny(), unsized_loader(N_BATCHES), Stream(4))


@kind("validation-mid-epoch", core=True)
def validation_mid_epoch(run: Run) -> None:
    run.trainer(val_check_interval=3, num_sanity_val_steps=2).fit(Deep(), varied(), varied(2))


@kind("all-stages", core=True)
def all_stages(run: Run) -> None:
    trainer, model = run.trainer(), Deep()
    trainer.fit(model, varied(), varied(2))
    run.note(trainer.validate(model, varied(2), verbose=False))
    run.note(trainer.test(model, varied(2), verbose=False))
    run.note([one.tolist() for one in trainer.predict(model, varied(12))])


@kind("fit-twice")
def fit_twice(run: Run) -> None:
    trainer, model = run.trainer(), Deep()
    trainer.fit(model, varied())
    trainer.fit_loop.max_epochs = 3
    trainer.fit(model, varied())
    trainer.fit(model, varied())


@kind("resume-mid-epoch", core=True)
def resume(run: Run) -> None:
    saved = ModelCheckpoint(dirpath=run.folder / "saved", every_n_train_steps=5, save_top_k=-1, filename="{step}")
    run.trainer(saved, enable_checkpointing=True, max_steps=6).fit(Deep(), varied())
    path = str(run.folder / "saved" / "step=5.ckpt")
    run.trainer().fit(Deep(), varied(), ckpt_path=path, weights_only=False)


@kind("limits")
def limits(run: Run) -> None:
    run.trainer(max_steps=11, max_epochs=-1, limit_train_batches=4, limit_val_batches=1).fit(Deep(), varied(), varied())
    run.trainer(limit_train_batches=0).fit(Deep(), varied())
    run.trainer(max_time=timedelta(0)).fit(Deep(), varied())


@kind("fast-dev-run")
def fast_dev_run(run: Run) -> None:
    run.trainer(fast_dev_run=3, logger=True).fit(Deep(), varied(), varied())


@kind("overfit-batches")
def overfit(run: Run) -> None:
    run.trainer(overfit_batches=3, max_epochs=5).fit(Deep(), varied(shuffle=False))


@kind("barebones")
def barebones(run: Run) -> None:
    class Bare(Deep):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss(batch)

    run.trainer(barebones=True).fit(Bare(), varied())


@kind("schedulers")
def schedulers(run: Run) -> None:
    class Scheduled(Manual):
        def __init__(self) -> None:
            super().__init__(n_optimizers=1)
            self.automatic_optimization = True

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return Tiny.training_step(self, batch, batch_idx)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, nesterov=True)
            return [optimizer], [
                {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3), "interval": "step"},
                {"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer), "monitor": "val_loss"},
                torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
            ]

    run.trainer(max_epochs=3).fit(Scheduled(), varied(8), varied(2))


@kind("bf16-mixed")
def bf16(run: Run) -> None:
    run.trainer(precision="bf16-mixed", gradient_clip_val=0.5).fit(Deep(), varied(), varied(2))


@kind("double-precision")
def double(run: Run) -> None:
    run.trainer(precision="64-true", gradient_clip_val=0.01, gradient_clip_algorithm="value").fit(Deep(), varied())


@kind("anomaly-detection", core=True)
def anomaly(run: Run) -> None:
    run.trainer(detect_anomaly=True).fit(Deep(), varied())


@kind("anomaly-found", core=True)
def anomaly_found(run: Run) -> None:
    class Roots(Deep):
        def loss(self, batch: Any) -> Any:
            return super().loss(batch) * (torch.zeros((), requires_grad=True).sqrt() if self.global_step == 21 else 1)

    class BadGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return gradient * float("nan")

    class Broken(Roots):
        def loss(self, batch: Any) -> Any:
            loss = super(Roots, self).loss(batch)
            return BadGradient.apply(loss) if self.global_step == 20 else loss

    run.attempt(run.trainer(detect_anomaly=True).fit, Broken(), varied())


@kind("deterministic-no-inference-mode")
def deterministic(run: Run) -> None:
    run.trainer(deterministic=True, inference_mode=False, benchmark=True).fit(Deep(), varied(), varied(2))


@kind("sync-dist-logging")
def logging_everywhere(run: Run) -> None:
    class Logs(Deep):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.log("a", loss, on_step=True, on_epoch=True, sync_dist=True, prog_bar=True)
            self.log_dict({"b": loss * 2, "c": 1.0}, on_epoch=True, reduce_fx="max")
            return {"loss": loss, "more": batch}

        def on_train_epoch_end(self) -> None:
            self.log("end", torch.rand(()))

    trainer = run.trainer(log_every_n_steps=1)
    trainer.fit(Logs(), varied(), varied(2))
    run.note({name: value.item() for name, value in trainer.callback_metrics.items()})
    run.note({name: value.item() for name, value in trainer.logged_metrics.items()})


def _user_loop(run: Run, fabric: Any) -> None:
    """Train without a Trainer; the second loop is left early, and a validation is within each."""
    model = nn.Sequential(nn.Linear(N_FEATURES, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.01)
    data, val_data = varied(), varied(3, shuffle=False)
    run.used += run.doctors
    if fabric is not None:
        model, optimizer = fabric.setup(model, optimizer)
        data, val_data = fabric.setup_dataloaders(data, val_data)
    for doctor in run.doctors:
        doctor.watch(model, optimizer)

    def steps(batches: Any) -> Any:
        return run.doctors[0].steps(batches) if run.doctors else batches

    for epoch in range(2):
        for index, batch in enumerate(steps(data)):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            run.note(loss.item())
            if index == 5:
                model.eval()
                with torch.no_grad():
                    run.note([model(each).sum().item() for each in steps(val_data)])
                model.train()
            if epoch and index == 9:
                break
    for doctor in run.doctors:
        doctor.close()
    run.note([parameter.tolist() for parameter in model.parameters()], torch.get_rng_state().tolist())


@kind("plain-loop")
def plain_loop(run: Run) -> None:
    _user_loop(run, None)


@kind("fabric-loop", core=True)
def fabric_loop(run: Run) -> None:
    _user_loop(run, Fabric(accelerator="cpu", devices=1, callbacks=list(run.doctors)))
