"""Compilation in real trainings, with a backend that takes no time; a loss scaler."""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from lightning_perf import PerfDoctor
from lightning_perf.probes.model.summary import is_compiled
from lightning_perf.probes.sampled_steps import probe as sampled_steps
from lightning_perf.probes.settings import compiler, loss_scaler
from lightning_perf.records import CompilerWatch, Session

from .conftest import Make

N_STEPS, WIDTH = 24, 8
HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def _early_and_fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sampled_steps, "ROUNDS", (14,))
    monkeypatch.setattr(compiler, "WARMUP_STEPS", 4)
    monkeypatch.setattr(loss_scaler, "WARMUP_STEPS", 4)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


class Batches(IterableDataset):
    """Batches of one size, or of another one in each step of the second half: no part of a warm-up."""

    def __init__(self, is_ragged: bool) -> None:
        self.is_ragged = is_ragged

    def __iter__(self) -> Iterator[torch.Tensor]:
        for i in range(N_STEPS):
            yield torch.ones(4 + (max(0, i - N_STEPS // 2) if self.is_ragged else 0), WIDTH)


class Compiled(LightningModule):
    """A network whose ``net`` is compiled."""

    def __init__(self, has_break: bool = False, dynamic: bool | None = None) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.has_break = has_break
        self.compiled = torch.compile(self.net, backend="eager", dynamic=dynamic)

    def net(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if self.has_break:
            torch._dynamo.graph_break()  # breaks
        return y.relu()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.compiled(batch).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def fitted(make_trainer: Make, model: LightningModule, is_ragged: bool = False, **arguments: Any) -> Session:
    doctor = PerfDoctor(schedule=None, reports=(), memory=False, device_stats=False)
    make_trainer(doctor, **arguments).fit(model, DataLoader(Batches(is_ragged), batch_size=None))
    assert doctor.session is not None
    assert doctor.session.probes_off == ()
    return doctor.session


def watch_of(session: Session) -> CompilerWatch:
    assert session.compiler is not None, session.missing
    return session.compiler


def codes(session: Session) -> set[str]:
    return {finding.code for finding in session.findings}


def line_of(function: Any, mark: str = "") -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next((i for i, line in enumerate(lines) if mark and mark in line), 0)


@pytest.mark.needs_torch("2.6")
def test_function_and_guard_are_named_when_shapes_recompile(make_trainer):
    session = fitted(make_trainer, Compiled(dynamic=False), is_ragged=True)
    watch = watch_of(session)
    (recompile,) = watch.recompiles
    assert (Path(recompile.file).name, recompile.function) == (HERE, "net")
    assert recompile.line == line_of(Compiled.net)
    assert recompile.n >= 3
    assert recompile.n_after_warmup >= 3
    assert "size mismatch" in recompile.reason
    assert watch.compile_s > 0
    (finding,) = (finding for finding in session.findings if finding.code == "PD311")
    assert f"net ({HERE}:{recompile.line})" in finding.summary


class Lengths(IterableDataset):
    """Another length in every third step: some are new in the step whose operations are counted or operators traced."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for i in range(3 * N_STEPS):
            yield torch.ones(4 + i // 3, WIDTH)


class Decorated(Compiled):
    """A method compiled in its definition, so that the module does not show it."""

    def __init__(self) -> None:
        super().__init__()
        del self.compiled

    @torch.compile(backend="eager", dynamic=False)
    def decorated(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.decorated(batch).square().mean()


def test_module_counts_as_compiled_when_a_method_was_decorated():
    assert is_compiled(Decorated())
    assert is_compiled(nn.Sequential(Decorated()))
    assert not is_compiled(nn.Sequential(nn.Linear(1, 1)))


@pytest.mark.parametrize("first", [8, 9, 10])
@pytest.mark.needs_torch("2.6")
def test_functions_are_compiled_as_often_as_without_perf_doctor(make_trainer, monkeypatch, first: int):
    monkeypatch.setattr(sampled_steps, "COUNTED_STEP", first)
    with torch._dynamo.config.patch(recompile_limit=3 * N_STEPS):
        make_trainer(PerfDoctor(reports=())).fit(Decorated(), DataLoader(Lengths(), batch_size=None))
    assert torch._dynamo.utils.counters["frames"]["ok"] == N_STEPS


def test_function_stays_compiled_when_its_first_call_is_in_the_step_that_is_counted(make_trainer):
    compiled_calls = []

    def counting(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        return lambda *arguments: [compiled_calls.append(1), graph.forward(*arguments)][1]

    class Late(Compiled):
        """Compiled from a later step on, as a discriminator or an auxiliary loss may be."""

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            net = late if batch_idx >= sampled_steps.COUNTED_STEP else self.net
            return net(batch).square().mean()

    model = Late()
    late = torch.compile(model.net, backend=counting)
    del model.compiled
    make_trainer(PerfDoctor(reports=())).fit(model, DataLoader(Batches(is_ragged=False), batch_size=None))
    assert len(compiled_calls) >= N_STEPS - sampled_steps.COUNTED_STEP - 1  # the counted step may be another


@pytest.mark.needs_torch("2.6")
def test_line_and_reason_are_named_when_a_break_in_a_loop_leaves_the_whole_function_uncompiled(make_trainer):
    class Looping(Compiled):
        """Reads a number in each round of a loop."""

        def net(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                x = self.layer(x) + x.mean().item()  # breaks
            return x

    session = fitted(make_trainer, Looping())
    (found,) = watch_of(session).graph_breaks
    assert (Path(found.file).name, found.line, found.function) == (HERE, line_of(Looping.net, "# breaks"), "net")
    assert "Tensor.item()" in found.reason
    assert "PD312" in codes(session)


def test_function_is_reported_when_torch_stopped_compiling_it_early(make_trainer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiler, "WARMUP_STEPS", N_STEPS)
    session = fitted(make_trainer, Compiled(dynamic=False), is_ragged=True)
    (finding,) = (finding for finding in session.findings if finding.code == "PD311")
    assert "torch runs the function uncompiled" in finding.summary


@pytest.mark.needs_torch("2.6")
def test_steps_that_compile_count_in_no_statistic_when_compiling_is_slow(make_trainer):
    def slowly(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        time.sleep(0.2)
        return graph.forward

    model = Compiled()
    model.compiled = torch.compile(model.net, backend=slowly, dynamic=False)
    session = fitted(make_trainer, model, is_ragged=True)
    watch = watch_of(session)
    assert watch.n_compiled_steps == watch.n_compiles >= 4
    assert watch.recompile_limit == getattr(torch._dynamo.config, "recompile_limit", None)
    assert watch.compile_s >= 0.2 * watch.n_compiles
    assert 0 < watch.compile_after_warmup_s < watch.compile_s
    assert session.steady is not None
    assert session.steady.n_steps <= N_STEPS - watch.n_compiled_steps


def test_line_and_reason_are_named_when_the_graph_breaks(make_trainer):
    session = fitted(make_trainer, Compiled(has_break=True))
    (graph_break,) = watch_of(session).graph_breaks
    assert (Path(graph_break.file).name, graph_break.function) == (HERE, "net")
    assert graph_break.line == line_of(Compiled.net, "# breaks")
    assert "graph_break" in graph_break.reason
    (finding,) = (finding for finding in session.findings if finding.code == "PD312")
    assert f"net ({HERE}:{graph_break.line})" in finding.summary


def test_no_finding_is_reported_when_one_graph_serves_all_steps(make_trainer):
    session = fitted(make_trainer, Compiled())
    watch = watch_of(session)
    assert (watch.n_compiles, watch.recompiles, watch.graph_breaks) == (1, (), ())
    assert not {"PD311", "PD312"} & codes(session)
    assert "recompile them" in session.missing["model_profile.modules"]


def test_no_finding_is_reported_when_a_second_size_becomes_dynamic(make_trainer):
    session = fitted(make_trainer, Compiled(dynamic=True), is_ragged=True)
    assert not {"PD311", "PD312"} & codes(session)


def test_there_is_no_record_when_nothing_is_compiled(make_trainer):
    class Plain(Compiled):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return self.net(batch).square().mean()

    session = fitted(make_trainer, Plain())
    assert session.compiler is None
    assert session.missing["compiler"] == "nothing was compiled"


def test_compilations_of_an_earlier_run_are_not_reported(make_trainer):
    model = Compiled(has_break=True)
    fitted(make_trainer, model)
    session = fitted(make_trainer, model)
    assert session.compiler is None or not session.compiler.graph_breaks


@pytest.mark.parametrize("is_ragged", [False, True])
def test_training_and_compiling_are_the_same_when_watched(make_trainer, is_ragged):
    def trained(*callbacks: Any) -> tuple[list[torch.Tensor], dict[str, int]]:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.manual_seed(3)
        model = Compiled(dynamic=False)
        make_trainer(*callbacks).fit(model, DataLoader(Batches(is_ragged), batch_size=None))
        stats = dict(torch._dynamo.utils.counters["stats"])
        return [p.detach() for p in model.parameters()], stats

    handler = torch._dynamo.callback.callback_handler
    before = (list(handler.start_callbacks), list(handler.end_callbacks))
    (watched, stats), (plain, plain_stats) = trained(PerfDoctor(schedule=None, reports=())), trained()
    assert all(torch.equal(one, other) for one, other in zip(watched, plain, strict=True))
    assert stats == plain_stats
    assert (handler.start_callbacks, handler.end_callbacks) == before


class Overflows(Compiled):
    """Every fifth loss is infinite."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = self.net(batch).square().mean()
        return loss * float("inf") if batch_idx % 5 == 4 else loss


def half_on_cpu() -> MixedPrecision:
    return MixedPrecision("16-mixed", device="cpu", scaler=torch.amp.GradScaler("cpu", init_scale=64.0))


def test_skipped_steps_are_counted_when_gradients_overflow(make_trainer):
    model = Overflows()
    session = fitted(make_trainer, model, plugins=[half_on_cpu()])
    scaler = session.loss_scaler
    assert scaler is not None
    assert scaler.skips is not None
    assert scaler.n_warmup_steps + scaler.n_steps == N_STEPS
    assert scaler.skips + scaler.warmup_skips == N_STEPS // 5
    assert scaler.scale < scaler.first_scale
    assert not model.trainer.optimizers[0]._optimizer_step_post_hooks


def test_no_step_is_skipped_when_gradients_are_finite(make_trainer):
    class Finite(Compiled):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return self.net(batch).square().mean()

    session = fitted(make_trainer, Finite(), plugins=[half_on_cpu()])
    assert session.loss_scaler is not None
    assert (session.loss_scaler.skips, session.loss_scaler.warmup_skips) == (0, 0)


class CompiledElsewhere(LightningModule):
    """A network whose compiled part is no child of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.held = [torch.compile(nn.Linear(WIDTH, WIDTH), backend="eager")]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.held[0](self.layer(batch)).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def test_torch_warns_of_no_hooks_when_a_compiled_module_is_no_child_of_the_model(make_trainer: Make) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Using `torch.compile")
        doctor = PerfDoctor(reports=())
        make_trainer(doctor).fit(CompiledElsewhere(), DataLoader(Batches(is_ragged=False), batch_size=None))
    assert doctor.session is not None
    assert doctor.session.probes_off == ()


class CompiledLogs(Compiled):
    """Logs values in a step that is compiled as a whole."""

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("val_loss", self.net(batch).square().mean())


def _frames_and_breaks(make_trainer: Make, *callbacks: Any) -> tuple[dict[str, int], int]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    batches = DataLoader(Batches(is_ragged=False), batch_size=None)
    compiled = torch.compile(CompiledLogs(), backend="eager")
    make_trainer(*callbacks, limit_train_batches=2, limit_val_batches=2, max_epochs=2).fit(compiled, batches, batches)
    counters = torch._dynamo.utils.counters
    return dict(counters["frames"]), sum(counters["graph_break"].values())


def test_same_functions_are_compiled_when_a_compiled_module_logs(make_trainer):
    assert _frames_and_breaks(make_trainer, PerfDoctor()) == _frames_and_breaks(make_trainer)


class CompiledManual(Compiled):
    """Calls Lightning's hooks in a step that is compiled as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.net(batch).square().mean())
        optimizer.step()


def test_weights_and_warnings_are_the_same_when_a_compiled_step_optimizes_manually(make_trainer):
    weights, shown = [], []
    for callbacks in ((), (PerfDoctor(),)):
        torch._dynamo.reset()
        torch._dynamo.utils.warn_once_cache.clear()
        torch.manual_seed(1)
        model = CompiledManual()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            compiled = torch.compile(model, backend="eager")
            make_trainer(*callbacks, limit_train_batches=4).fit(compiled, DataLoader(Batches(False), batch_size=None))
        weights.append(model.layer.weight.detach().clone())
        shown.append({str(one.message) for one in caught if "Dynamo" in str(one.message)})
    assert torch.equal(*weights)
    assert shown[0] == shown[1]
