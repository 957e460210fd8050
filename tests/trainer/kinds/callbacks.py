"""Lightning's callbacks, and callbacks of the user's that do unusual things."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelPruning,
    ModelSummary,
    RichProgressBar,
    StochasticWeightAveraging,
    Timer,
    TQDMProgressBar,
)
from lightning.pytorch.loggers import CSVLogger

from trainer.models import Tiny, loader

from .loops import N_BATCHES, Deep, Varied, varied
from .registry import Run, kind


class Tunable(Deep):
    """A model whose learning rate and batch size can be searched for."""

    def __init__(self) -> None:
        super().__init__()
        self.lr, self.batch_size = 0.01, 2

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(Varied(), batch_size=self.batch_size, shuffle=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


@kind("checkpoint-and-early-stopping", core=True)
def checkpoint(run: Run) -> None:
    saving = ModelCheckpoint(dirpath=run.folder / "saved", monitor="val_loss", save_last=True, save_top_k=2)
    stop = EarlyStopping("val_loss", patience=1, min_delta=0.5)
    run.trainer(saving, stop, enable_checkpointing=True, max_epochs=4).fit(Deep(), varied(8), varied(2))


@kind("weight-averaging")
def swa(run: Run) -> None:
    run.trainer(StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1), max_epochs=4).fit(Deep(), varied(8))


@kind("accumulation-scheduler")
def accumulation_scheduler(run: Run) -> None:
    run.trainer(GradientAccumulationScheduler({0: 1, 1: 4})).fit(Deep(), varied())


@kind("learning-rate-finder", core=True, ignore=(r"\._ckpt_path|lr_find_",))
def learning_rate_finder(run: Run) -> None:
    finder = LearningRateFinder(num_training_steps=12)
    run.trainer(finder, enable_checkpointing=True).fit(Tunable())


@kind("batch-size-finder", ignore=(r"scale_batch_size_",))
def batch_size_finder(run: Run) -> None:
    finder = BatchSizeFinder(max_trials=2, steps_per_trial=2)
    model = Tunable()
    model.val_dataloader = lambda: varied(2)
    run.trainer(finder, enable_checkpointing=True).fit(model)


@kind("pruning")
def pruning(run: Run) -> None:
    run.trainer(ModelPruning("l1_unstructured", amount=0.3, use_lottery_ticket_hypothesis=False)).fit(Deep(), varied())


class Average(Callback):
    """Keeps a moving average in a copy of the module."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.average = copy.deepcopy(pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        with torch.no_grad():
            for mine, theirs in zip(self.average.parameters(), pl_module.parameters(), strict=True):
                mine.lerp_(theirs, 0.1)


@kind("ema-deepcopy")
def ema(run: Run) -> None:
    run.trainer(Average()).fit(Deep(), varied())


@kind("copies-and-pickles-each-step", core=True)
def copies(run: Run) -> None:
    class Copies(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            for one in (copy.deepcopy(pl_module), pickle.loads(pickle.dumps(pl_module.layer))):
                run.note(sorted(vars(one)))
            copied = copy.deepcopy([c for c in trainer.callbacks if isinstance(c, TQDMProgressBar)])
            run.note(sorted(map(repr, map(type, copied))))
            for one in (trainer.profiler, *trainer.loggers, *trainer.optimizers):
                run.note(type(pickle.loads(pickle.dumps(one))).__name__)
                copied = copy.deepcopy(one)
                if isinstance(copied, CSVLogger):
                    copied.log_metrics({"of_a_copy": 1.0}, step=1)

    run.trainer(Copies(), logger=CSVLogger(run.folder / "csv")).fit(Deep(), varied())


@kind("bars-tqdm")
def tqdm_bar(run: Run) -> None:
    bar = TQDMProgressBar(refresh_rate=1)
    run.trainer(bar, Timer(), ModelSummary(), enable_progress_bar=True, enable_model_summary=True).fit(
        Deep(), varied(), varied(2)
    )
    run.note(sorted(key for key in bar.get_metrics(run.trainers[0], run.trainers[0].lightning_module)))


@kind("bars-rich")
def rich_bar(run: Run) -> None:
    run.trainer(RichProgressBar(), enable_progress_bar=True).fit(Deep(), varied(), varied(2))


@kind("own-progress-bar")
def own_bar(run: Run) -> None:
    class Bar(TQDMProgressBar):
        def get_metrics(self, trainer: Any, pl_module: Any) -> Any:
            found = super().get_metrics(trainer, pl_module)
            found.pop("v_num", None)
            run.note(sorted(found))
            return found

    run.trainer(Bar(), enable_progress_bar=True).fit(Deep(), varied(), varied(2))


@kind("learning-rate-monitor")
def monitor(run: Run) -> None:
    run.trainer(LearningRateMonitor("step"), logger=CSVLogger(run.folder / "csv"), log_every_n_steps=2).fit(
        Deep(), varied()
    )


class Clears(Callback):
    """Removes or replaces the callbacks of the Trainer in the middle of the run."""

    def __init__(self, is_new_list: bool) -> None:
        self.is_new_list = is_new_list

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 5:
            if self.is_new_list:
                trainer.callbacks = []
            else:
                trainer.callbacks.clear()


@kind("callbacks-cleared", core=True)
def callbacks_cleared(run: Run) -> None:
    run.trainer(Clears(is_new_list=False)).fit(Deep(), varied())


@kind("callbacks-replaced")
def callbacks_replaced(run: Run) -> None:
    run.trainer(before=[Clears(is_new_list=True)]).fit(Deep(), varied())


@kind("hooks-called-directly", core=True)
def hooks_called_directly(run: Run) -> None:
    class Forwards(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            for one in trainer.callbacks:
                if one is not self and not type(one).__name__.startswith("StepRecorder"):
                    one.on_before_backward(trainer, pl_module, outputs["loss"])
                    one.on_after_backward(trainer, pl_module)
                    one.on_before_zero_grad(trainer, pl_module, trainer.optimizers[0])
                    one.on_before_optimizer_step(trainer, pl_module, trainer.optimizers[0])
                    one.on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    run.trainer(Forwards(), max_epochs=3).fit(Deep(), varied())


@kind("held-by-another-callback", core=True)
def held(run: Run) -> None:
    class Holds(Callback):
        """Hands every hook on to callbacks of its own."""

        def __init__(self, others: list[Any]) -> None:
            self.others = others

        def __getattribute__(self, name: str) -> Any:
            if not name.startswith("on_") and name not in ("setup", "teardown"):
                return super().__getattribute__(name)
            if name in ("on_save_checkpoint", "on_load_checkpoint"):
                return super().__getattribute__(name)

            def forward(*args: Any, **kwargs: Any) -> None:
                for one in self.others:
                    getattr(one, name)(*args, **kwargs)

            return forward

    others, run.doctors[:] = list(run.doctors), []
    trainer = run.trainer(Holds(others), max_epochs=3)
    trainer.fit(Deep(), varied(), varied(2))
    run.trainers[0].callbacks[0].others = []


@kind("callback-twice")
def twice(run: Run) -> None:
    run.doctors.extend(run.make_doctors("lightning.pytorch"))
    run.trainer().fit(Deep(), varied())


@kind("doctor-reused")
def reused(run: Run) -> None:
    for _ in range(2):
        run.trainer(same_doctors=True).fit(Deep(), varied(6))


@kind("two-trainers-interleaved", core=True)
def interleaved(run: Run) -> None:
    class TrainsAnother(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx in (3, 11) and trainer.current_epoch == 0:
                run.trainer().fit(Tiny(), loader(N_BATCHES))

    run.trainer(TrainsAnother()).fit(Deep(), varied())


@kind("nested-validation-in-hook")
def nested(run: Run) -> None:
    class Tests(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            inner = type(trainer)(**run.arguments())
            run.note(inner.validate(copy.deepcopy(pl_module), varied(3, shuffle=False), verbose=False))

    run.trainer(Tests()).fit(Deep(), varied())
