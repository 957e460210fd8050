"""An interrupt at any line of a treatment: everything that it changed is restored."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

from lightning_perf.treatments.applier import Applier
from lightning_perf.treatments.specs import all_treatments, parse, parse_all
from tests.fuzzing import IS_TORTURE
from tests.trainer.interrupts import Interrupted, Line, LineTrace

from .test_applier import process_state
from .trainings import Config, Net, PreTrainedModel, loader

N_SAMPLED = None if IS_TORTURE else 6
"""Lines tried per test: a fixed sample in ``make test``, all in ``make torture``."""

VALUES = {"loader-workers": "=2", "threads": "=2", "log-every-n": "=7", "batch-size": "=8"}
TEXTS = [one.id + VALUES.get(one.id, "") for one in all_treatments() if one.id != "fsdp-checkpointing"]  # no GPU
OTHER_VALUES = ["compile=autograd", "prog-bar-off=bar"]


class Images(Net):
    """A network with what ``channels-last`` and ``fused-attention`` change: a convolution, and a library's model."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.library = PreTrainedModel(Config("eager"))


class Training:
    """A Trainer as it is when treatments are applied, and what they may change of it."""

    def __init__(self, with_ddp: bool) -> None:
        self.module = Images()
        self.bar = TQDMProgressBar()
        self.trainer = Trainer(
            accelerator="cpu", logger=False, enable_checkpointing=False, enable_model_summary=False,
            callbacks=[self.bar], strategy=DDPStrategy(find_unused_parameters=True) if with_ddp else "auto",
        )  # fmt: skip
        self.trainer.state.fn = "fit"
        self.trainer.state.stage = "train"
        self.trainer.strategy._lightning_module = self.module
        self.trainer.strategy.optimizers = [self.module.configure_optimizers()]
        self.loader = loader(num_workers=1)
        self.combined = SimpleNamespace(flattened=[self.loader], reset=lambda: None)
        self.trainer.fit_loop._combined_loader = self.combined
        self.meta = SimpleNamespace(prog_bar=True, fx="training_step", name="loss")
        self.trainer.fit_loop.epoch_loop._results["training_step.loss"] = SimpleNamespace(meta=self.meta)

    def state(self) -> dict[str, Any]:
        """Return what must be as before once treatments are undone."""
        optimizer = self.trainer.optimizers[0]
        return {
            "process": process_state(),
            "attributes": [dict(vars(one)) for one in (self.trainer, self.trainer.strategy, self.module, self.bar)],
            "blocks": [(dict(vars(block)), block._compiled_call_impl) for block in self.module.blocks],
            "strides": [parameter.stride() for parameter in self.module.parameters()],
            "ddp": dict(getattr(self.trainer.strategy, "_ddp_kwargs", {})),
            "groups": [{**group, "params": None} for group in optimizer.param_groups],
            "loss scaling": vars(optimizer).get("_step_supports_amp_scaling"),
            "bar": self.meta.prog_bar,
            "attention": self.module.library.config.attention,
            "loaders": list(self.combined.flattened),
            "compiled backward": torch._dynamo.compiled_autograd.compiled_autograd_enabled,
        }


@pytest.fixture(autouse=True)
def _without_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CXX", "true")
    torch._dynamo.compiled_autograd  # noqa: B018 - loads it
    yield
    torch._dynamo.reset()


def _apply_everything(training: Training, applier: Applier) -> None:
    applier.change_trainer_arguments({})
    applier.set_up(training.trainer, training.module)
    training.trainer.strategy.process_dataloader(training.loader)
    applier.configured(training.trainer, training.module)
    if "backward" in vars(training.trainer.strategy):
        with training.trainer.strategy.backward.span_of():
            pass


def _apply_live(training: Training, applier: Applier) -> None:
    applier.apply_live(training.trainer, training.module)


def _lines(apply: Callable[[Training, Applier], None], text: str) -> list[Line]:
    for _ in range(2):  # lines of modules that it imports run only the first time
        trace = LineTrace()
        training, applier = _training(text), Applier([parse(text)])
        error = trace.run(lambda: apply(training, applier))  # noqa: B023 - called here
        applier.undo()
        assert error is None, error
    lines = sorted(line for line in trace.seen if line[0].startswith(("treatments/", "seams/")))
    return lines if N_SAMPLED is None else random.Random(0).sample(lines, min(N_SAMPLED, len(lines)))


def _training(text: str) -> Training:
    return Training(with_ddp=text.startswith("ddp-"))


@pytest.mark.parametrize("text", [*TEXTS, *OTHER_VALUES])
def test_everything_is_restored_when_a_treatment_is_interrupted_at_any_line(text: str) -> None:
    spec = parse(text)
    ways = [_apply_everything, *([_apply_live] if spec.treatment.is_live else [])]
    left: dict[Any, Any] = {}
    for apply in ways:
        for line in _lines(apply, text):
            training, applier = _training(text), Applier(parse_all(text))
            before = training.state()
            error = LineTrace(line).run(lambda: apply(training, applier))  # noqa: B023 - called here
            assert isinstance(error, Interrupted), (line, error)
            applier.undo()
            after = training.state()
            if differences := {name: (before[name], after[name]) for name in before if before[name] != after[name]}:
                left[line] = differences if len(str(differences)) < 300 else sorted(differences)
    assert not left, "\n".join(f"{line}: {differences}" for line, differences in left.items())
