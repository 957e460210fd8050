"""What else is in the process: threads, signals, forks, other Trainers, other namespaces."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import sys
import threading
from typing import Any

import torch
from lightning.pytorch import Callback

from trainer.models import Tiny, loader

from .loops import N_BATCHES, Deep, varied
from .registry import Run, kind


@kind("fork-in-a-hook", core=True)
def fork(run: Run) -> None:
    class Forks(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx in (3, 10, 12):
                pid = os.fork()
                if pid == 0:
                    os._exit(7)
                run.note(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    run.trainer(Forks()).fit(Deep(), varied())


@kind("child-process-in-a-hook")
def child_process(run: Run) -> None:
    import multiprocessing

    class Starts(Deep):
        def on_train_epoch_end(self) -> None:
            child = multiprocessing.get_context("fork").Process(target=abs, args=(-1,))
            child.start()
            child.join()
            run.note(child.exitcode)

    run.trainer().fit(Starts(), varied())


@kind("own-threads", core=True)
def threads(run: Run) -> None:
    class Beside(Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.is_over = threading.Event()
            self.thread = threading.Thread(target=self.work, args=(pl_module,), name="mine")
            self.thread.start()

        def work(self, module: Any) -> None:
            while not self.is_over.wait(0.001):
                with torch.no_grad():
                    torch.ones(4, 4).sum().item()

        def on_train_end(self, *_: Any) -> None:
            self.is_over.set()
            self.thread.join()
            run.note(self.thread.is_alive())
            del self.is_over, self.thread

    run.trainer(Beside()).fit(Deep(), varied())


@kind("signal-handlers", core=True)
def signals(run: Run) -> None:
    received: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: received.append(number))
    signal.signal(signal.SIGALRM, lambda number, _: received.append(number))
    signal.signal(signal.SIGTERM, lambda number, _: received.append(number))

    class Raises(Deep):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            for number in (signal.SIGUSR1, signal.SIGALRM, signal.SIGTERM):
                if batch_idx % 5 == 3:
                    signal.raise_signal(number)
            return super().training_step(batch, batch_idx)

    run.trainer().fit(Raises(), varied())
    run.note(sorted(received))


@kind("trainer-in-a-thread", core=True)
def in_a_thread(run: Run) -> None:
    thread = threading.Thread(target=lambda: run.trainer().fit(Deep(), varied()))
    thread.start()
    thread.join()


@kind("trainers-in-two-threads", core=True, ignore=(r"^notes", r"^objects", r"^process.random"))
def in_two_threads(run: Run) -> None:
    # While it makes loaders, a Trainer replaces DataLoader.__init__ and then restores what it found. Two at once would
    # leave one replacement behind, also without PerfDoctor (fabric/utilities/data.py, _replace_dunder_methods).
    making_loaders = threading.Lock()

    class InTurn(Tiny):
        def setup(self, stage: str) -> None:
            making_loaders.acquire(timeout=60)

        def on_train_start(self) -> None:
            making_loaders.release()

    torch.manual_seed(0)
    models, results = [InTurn(), InTurn()], []

    def train(index: int) -> None:
        trainer = run.trainer()
        run.attempt(trainer.fit, models[index], loader(N_BATCHES))
        results.append(trainer.global_step)

    threads = [threading.Thread(target=train, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if results != [2 * N_BATCHES] * 2:
        raise AssertionError(f"steps: {results}, {run.notes}")


@kind("collector-off")
def collector_off(run: Run) -> None:
    class Collects(Deep):
        def on_train_start(self) -> None:
            gc.disable()
            gc.set_threshold(5000, 7, 7)
            gc.callbacks.append(print_nothing)

        def on_train_batch_end(self, *_: Any) -> None:
            run.note(gc.isenabled(), gc.get_threshold())

    run.trainer().fit(Collects(), varied())


def print_nothing(*_: Any) -> None:
    """A collector's callback of the user's."""


@kind("objects-are-freed", core=True)
def freed(run: Run) -> None:
    import weakref

    references = []
    trainer, model, train = run.trainer(), Deep(), varied()
    trainer.fit(model, train)
    references += [weakref.ref(one) for one in (trainer, model, train, trainer.strategy, trainer.optimizers[0])]
    run.trainers.clear()  # but not ``run.used``: users keep PerfDoctor to read its session
    del trainer, model, train
    gc.collect()
    run.note([reference() is None for reference in references])


@kind("own-trace-function")
def trace_function(run: Run) -> None:
    calls: dict[str, int] = {}

    def trace(frame: Any, event: str, _: Any) -> Any:
        name = frame.f_code.co_qualname
        if "kinds" in frame.f_code.co_filename:
            calls[name] = calls.get(name, 0) + 1

    class Sees(Deep):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            run.note(sys.gettrace() is None, sys.getprofile() is None)
            return super().training_step(batch, batch_idx)

    sys.setprofile(trace)
    try:
        run.trainer().fit(Sees(), varied())
    finally:
        sys.setprofile(None)
    run.note(calls.get("trace_function.<locals>.Sees.training_step"))


@kind("default-dtype-and-settings")
def settings(run: Run) -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("high")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.autograd.set_detect_anomaly(False)
    model = Deep()
    run.trainer().fit(model.double(), varied(collate_fn=lambda samples: torch.stack(samples).double()))


@kind("trainer-copied")
def trainer_copied(run: Run) -> None:
    class Copies(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            copied = copy.deepcopy(trainer.strategy)
            run.note(sorted(vars(copied)))
            run.note(sorted(type(one).__name__ for one in pickle.loads(pickle.dumps(list(trainer.optimizers)))))
            for one in trainer.callbacks:
                run.attempt(pickle.dumps, one)

    run.trainer(Copies()).fit(Deep(), varied())


@kind("other-namespace", core=True)
def other_namespace(run: Run) -> None:
    import pytorch_lightning

    class Model(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Deep().layer

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.layer(batch).square().mean()
            self.log("loss", loss, prog_bar=True)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", self.layer(batch).mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    run.doctors = run.make_doctors("pytorch_lightning")
    trainer = run.trainer(trainer_class=pytorch_lightning.Trainer)
    trainer.fit(Model(), varied(), varied(2))


@kind("lightning-cli")
def cli(run: Run) -> None:
    from lightning.pytorch.cli import LightningCLI

    class Model(Deep):
        def train_dataloader(self) -> Any:
            return varied()

    from trainer.observations import step_recorder

    defaults = {name: str(value) if name == "default_root_dir" else value for name, value in run.arguments().items()}
    callbacks = [*run.doctors, step_recorder(run.notes, object)]
    defaults["callbacks"] = callbacks
    made = LightningCLI(Model, save_config_callback=None, run=False, args=[], trainer_defaults=defaults)
    made.trainer.fit(made.model)
    run.note(made.trainer.global_step)


@kind("fresh-interpreter", fresh=True, rounds=1, configurations=("everything",))
def fresh(run: Run) -> None:
    """Nothing that is imported with the first run may stay in place either."""
    run.trainer().fit(Deep(), varied(), varied(2))


@kind("two-processes-forked", rounds=2, ignore=("MASTER_PORT", "_main_port"))
def ddp_fork(run: Run) -> None:
    _on_two_ranks(run, "ddp_fork")


@kind(
    "two-processes-spawned",
    fresh=True,
    rounds=1,
    configurations=("everything",),
    limit_s=150.0,
    ignore=("MASTER_PORT", "_main_port"),
)
def ddp_spawn(run: Run) -> None:
    _on_two_ranks(run, "ddp_spawn")


def _on_two_ranks(run: Run, strategy: str) -> None:
    trainer = run.trainer(strategy=strategy, devices=2)
    model = Deep()
    trainer.fit(model, varied())
    run.note(trainer.global_step, {name: value.tolist() for name, value in model.state_dict().items()})
