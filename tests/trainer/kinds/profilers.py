"""The user's profilers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch.profilers import AdvancedProfiler, PassThroughProfiler, Profiler, PyTorchProfiler, SimpleProfiler

from trainer.models import Tiny, loader

from .loops import N_BATCHES, Deep, varied
from .registry import Run, kind


@kind("simple-profiler", core=True, ignore=(r"recorded_durations", r"start_time", r"current_actions"))
def simple(run: Run) -> None:
    class Asks(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            run.note(isinstance(trainer.profiler, SimpleProfiler))
            with trainer.profiler.profile("mine") as name:
                run.note(name)

    profiler = SimpleProfiler()
    run.trainer(Asks(), profiler=profiler).fit(Deep(), varied())
    run.note({name: len(all_) for name, all_ in profiler.recorded_durations.items() if "PerfDoctor" not in name})


@kind("no-profiler", core=True)
def no_profiler(run: Run) -> None:
    class Asks(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            run.note(isinstance(trainer.profiler, PassThroughProfiler))
            with trainer.profiler.profile("mine") as name:
                run.note(name)
            trainer.profiler.start("by hand")
            trainer.profiler.stop("by hand")
            run.note(trainer.profiler.summary(), trainer.profiler.describe())

    run.trainer(Asks()).fit(Deep(), varied())


@kind("advanced-profiler", ignore=(r"profiled_actions", r"_temp_dir"))
def advanced(run: Run) -> None:
    profiler = AdvancedProfiler()
    run.trainer(profiler=profiler).fit(Deep(), varied())
    run.note(sorted(name for name in profiler.profiled_actions if "PerfDoctor" not in name))


@kind("pytorch-profiler", ignore=(r"\.profiler\.", r"function_events"))
def pytorch(run: Run) -> None:
    profiler = PyTorchProfiler(dirpath=run.folder / "profiles", export_to_chrome=False, row_limit=1)
    run.trainer(profiler=profiler).fit(Deep(), varied())
    run.note(type(profiler.function_events).__name__, profiler.profiler is None)
    for path in run.folder.rglob("*-None.txt"):
        path.unlink()


class Notes(Profiler):
    """A profiler of the user's with a ``profile`` of its own, which yields something else than the name."""

    def __init__(self) -> None:
        super().__init__(dirpath=None, filename=None)
        self.seen: list[str] = []

    def start(self, action_name: str) -> None:
        self.seen.append(action_name)

    def stop(self, action_name: str) -> None:
        self.seen.append("/" + action_name)

    @contextmanager
    def profile(self, action_name: str) -> Iterator[Any]:
        self.seen.append("with " + action_name)
        yield 42
        self.seen.append("/with " + action_name)


@kind("own-profiler", core=True, ignore=(r"\.profiler\.seen",))
def own(run: Run) -> None:
    profiler = Notes()

    class Asks(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            with trainer.profiler.profile("mine") as yielded:
                run.note(yielded, isinstance(trainer.profiler, Notes), len(trainer.profiler.seen) > 0)

    run.trainer(Asks(), profiler=profiler).fit(Deep(), varied(), varied(2))
    run.note([name for name in profiler.seen if "PerfDoctor" not in name])


@kind("own-torch-profiler-in-a-step", core=True)
def torch_profiler(run: Run) -> None:
    class Profiles(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx % 4 != 1:
                return super().training_step(batch, batch_idx)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                loss = super().training_step(batch, batch_idx)
            run.note(any(event.key == "aten::mean" for event in profile.key_averages()))
            return loss

    run.trainer().fit(Profiles(), loader(N_BATCHES))


@kind("own-scheduled-torch-profiler")
def scheduled_profiler(run: Run) -> None:
    class Profiles(Callback):
        def on_train_start(self, *_: Any) -> None:
            schedule = torch.profiler.schedule(wait=2, warmup=2, active=2, repeat=3)
            self.profile = torch.profiler.profile(schedule=schedule, on_trace_ready=self.ready)
            self.profile.start()

        def ready(self, profile: Any) -> None:
            run.note(any(event.key == "aten::mean" for event in profile.key_averages()))

        def on_train_batch_end(self, *_: Any) -> None:
            self.profile.step()

        def on_train_end(self, *_: Any) -> None:
            self.profile.stop()
            del self.profile

    run.trainer(Profiles()).fit(Tiny(), loader(N_BATCHES))


@kind("own-autograd-profiler")
def autograd_profiler(run: Run) -> None:
    class Profiles(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx % 4 != 1:
                return super().training_step(batch, batch_idx)
            with torch.autograd.profiler.profile() as profile:
                loss = super().training_step(batch, batch_idx)
            run.note(any(event.name == "aten::mean" for event in profile.function_events))
            return loss

    run.trainer().fit(Profiles(), loader(N_BATCHES))
