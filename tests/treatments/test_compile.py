"""Compiled trainings: few and small, since each takes seconds."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer

from lightning_perf import seams
from lightning_perf.errors import TreatmentError
from tests.fuzzing import IS_TORTURE

from .trainings import Net, loader, train

HAS_COMPILER = shutil.which("g++") is not None
needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="torch.compile needs g++ on a CPU, and there is none")

METHODS = ("forward", "training_step", "validation_step", "test_step", "predict_step")


class NoDropout(Net):
    """Compiled code draws other random numbers."""

    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            block.drop.p = 0.0

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self(batch).square().mean()


@pytest.fixture(autouse=True)
def _fresh_compiler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """In ``make test`` graphs are captured, but run as they are: the code generator takes ten seconds."""
    if not IS_TORTURE:
        monkeypatch.setattr(torch._TorchCompileInductorWrapper, "__call__", lambda self, graph, _: graph.forward)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def n_graphs(*_: Any) -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_compiling_is_refused_when_there_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    for text in ("compile", "compile-regions"):
        with pytest.raises(TreatmentError, match="no-such-compiler"):
            train(text)


@pytest.mark.parametrize(
    ("text", "options"), [("compile", {}), ("compile=max-autotune", {"mode": "max-autotune"}), ("compile=autograd", {})]
)
def test_mode_is_handed_to_torch(monkeypatch: pytest.MonkeyPatch, text: str, options: dict[str, Any]) -> None:
    given: list[dict[str, Any]] = []

    def note(trainer: Any, module: Any, options: dict[str, Any], undos: Any) -> bool:
        given.append(options)
        return True

    monkeypatch.setenv("CXX", "true")
    monkeypatch.setattr(seams, "compile_module", note)
    monkeypatch.setattr(seams, "tap_backward", lambda *_: None)
    train(text, max_steps=1)
    assert given == [options]


@needs_compiler
def test_steps_are_compiled_and_the_module_put_back() -> None:
    plain = train(module=NoDropout, data=loader(16), max_epochs=1)
    before = dict(vars(plain.module))
    done = train("compile", module=NoDropout, data=loader(16), max_epochs=1, look=n_graphs)

    assert done.seen >= 1
    assert done.losses == pytest.approx(plain.losses, rel=1e-4)
    assert done.module._compiler_ctx is None
    assert not set(METHODS) & set(vars(done.module))
    assert set(vars(done.module)) == set(before)


@needs_compiler
def test_blocks_are_compiled_once_for_all_and_put_back() -> None:
    plain = train(module=NoDropout, data=loader(16), max_epochs=1)
    done = train("compile-regions", module=NoDropout, data=loader(16), max_epochs=1, look=n_graphs)

    assert done.seen == 2  # for three blocks: the input of the first one needs no gradient
    assert done.losses == pytest.approx(plain.losses, rel=1e-4)
    assert all(block._compiled_call_impl is None for block in done.module.blocks)


@needs_compiler
def test_backward_is_compiled_when_asked_for() -> None:
    def captured(trainer: Trainer, _: Any) -> int:
        return torch._dynamo.utils.counters["compiled_autograd"]["captures"]

    plain = train(module=NoDropout, data=loader(16), max_epochs=1)
    done = train("compile=autograd", module=NoDropout, data=loader(16), max_epochs=1, look=captured)
    assert done.seen >= 1
    assert done.losses == pytest.approx(plain.losses, rel=1e-4)
    assert "backward" not in vars(done.trainer.strategy)


@needs_compiler
def test_compiling_is_refused_when_the_module_is_compiled_already() -> None:
    module = Net()
    module._compiler_ctx = {"compiler": "dynamo"}
    with pytest.raises(TreatmentError, match="compiled already"):
        train("compile", module=module)
