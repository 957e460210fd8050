"""Steps that are counted from their shapes: as many operations as in a real step, and nothing changes."""

from __future__ import annotations

import itertools
import math
import random
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.checkpoint import checkpoint

from lightning_perf.probes.model import fake_copy, fake_pass, flops
from lightning_perf.probes.model.call_watch import CallWatch
from lightning_perf.probes.model.fake_pass import fake_profile, try_profile
from lightning_perf.probes.model.flops import ArithmeticCounter
from lightning_perf.probes.sampled_steps.tracing import current_mode
from lightning_perf.records import ModelProfile
from tests.trainer.observations import random_streams, tensor_digest

from .test_flops import Attention, ResNet18


@pytest.fixture(autouse=True)
def _enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass may take as long as it needs on a busy machine."""
    monkeypatch.setattr(fake_pass, "LEAST_S", 60.0)
    monkeypatch.setattr(fake_pass, "MOST_S", 60.0)
    monkeypatch.setattr(flops, "MAX_COST_S", math.inf)


CPU = torch.device("cpu")
N, SIZE = 4, 8


def total(model: Any, batch: Any) -> torch.Tensor:
    return loss_of(model(batch))


def loss_of(output: Any) -> torch.Tensor:
    return (output[0] if isinstance(output, tuple) else output).float().sum()


def watched(model: nn.Module, batch: Any, step: Callable[[Any, Any], Any] = total) -> CallWatch:
    watch = CallWatch(CPU, time.perf_counter_ns, N, 3)
    watch.enters("training_step")
    try:
        step(model, batch)
    finally:
        watch.leaves("training_step")
    assert watch.failure == ""
    assert sys.getprofile() is None
    return watch


def faked(model: nn.Module, batch: Any, step: Callable[[Any, Any], Any] = total) -> ModelProfile:
    return fake_profile(watched(model, batch, step), model, 1, time.perf_counter_ns, 2**62)


def real(model: nn.Module, batch: Any, step: Callable[[Any, Any], Any] = nn.Module.__call__) -> ModelProfile:
    counter = ArithmeticCounter(model)
    with counter:
        output = step(model, batch)
    loss = loss_of(output)
    counter.direction = "backward"
    with counter:
        loss.backward()
    return counter.profile("cpu")


class SelfAttention(Attention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x, x, x)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU(), nn.Linear(SIZE, SIZE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.layers, x, use_reentrant=False)


class OwnHooks(nn.Linear):
    """A module with attributes of the user's that are named as torch's hooks are."""

    def __init__(self) -> None:
        super().__init__(SIZE, SIZE)
        self.grad_hooks: list[Any] = []
        self.post_hooks = {"relu": torch.relu}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.post_hooks["relu"](super().forward(x))


def deep() -> nn.Sequential:
    return nn.Sequential(nn.Linear(SIZE, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 2))


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (ResNet18, (2, 3, 32, 32)),
        (SelfAttention, (2, 2, 6, 32)),
        (lambda: nn.LSTM(SIZE, 6, num_layers=2), (3, N, SIZE)),
        (lambda: nn.TransformerEncoderLayer(SIZE, 2, batch_first=True), (N, 3, SIZE)),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(SIZE, 3)), (N, SIZE)),
        (Checkpointed, (N, SIZE)),
        (OwnHooks, (N, SIZE)),
    ],
    ids=["resnet", "attention", "lstm", "transformer", "weight-norm", "checkpointed", "own-hooks"],
)
def test_fake_step_has_the_operations_of_a_real_one(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    model, batch = make(), torch.randn(shape, requires_grad=True)
    found, counted = faked(model, batch), real(model, batch)
    assert found.forward_flops == counted.forward_flops
    assert found.backward_flops == pytest.approx(counted.backward_flops, rel=0.01)
    assert found.recomputed_flops == counted.recomputed_flops
    is_fused = isinstance(model, nn.LSTM)  # where it runs: with memory that is not known before
    assert is_fused or found.forward_bytes == pytest.approx(counted.forward_bytes, rel=0.05)
    modules = [{m.path: (m.n_parameters, m.calls, m.forward_flops) for m in p.modules} for p in (found, counted)]
    assert modules[0] == modules[1]
    assert (found.n_parameters, found.n_samples, found.step) == (counted.n_parameters, N, 3)


N_RUN: list[Any] = []


def noting(graph: Any, inputs: Any) -> Any:
    """Compile nothing, and note each run of the compiled function."""

    def run(*values: Any) -> Any:
        N_RUN.append(type(values[-1]))
        return graph.forward(*values)

    return run


def in_module() -> nn.Module:
    return nn.Sequential(torch.compile(deep(), backend=noting), nn.Linear(2, 1))


class Own(nn.Sequential):
    """With a function of its own, as torch compiles none of its own modules in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


def in_place() -> nn.Module:
    model = Own(deep(), nn.Linear(2, 1))
    model.compile(backend=noting)
    return model


class CompiledForward(nn.Sequential):
    @torch.compile(backend=noting)
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


class CompiledMethod(nn.Sequential):
    """Its compiled function is called outside of any module, as the training step of a compiled LightningModule."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.step = torch.compile(self.plain_step, backend=noting)

    def plain_step(self, x: torch.Tensor) -> torch.Tensor:
        return self[1](self[0](x)).sum()


@pytest.mark.needs_torch("2.5")
@pytest.mark.parametrize(
    ("make", "step"),
    [
        (in_module, total),
        (in_place, total),
        (lambda: CompiledForward(deep(), nn.Linear(2, 1)), total),
        (lambda: CompiledMethod(deep(), nn.Linear(2, 1)), lambda model, batch: model.step(batch)),
        (in_module, lambda model, batch: model[1](model[0](batch)).sum()),
        (in_module, torch.compiler.disable(total)),
    ],
    ids=["module", "in-place", "forward", "method", "parts", "disabled"],
)
def test_compiled_model_has_the_operations_of_the_uncompiled_one(make: Callable[[], nn.Module], step: Any) -> None:
    batch, model, stats = torch.randn(N, SIZE), make(), torch._dynamo.utils.counters["stats"]
    step(model, batch).backward()
    n_graphs, watch = stats["unique_graphs"], watched(model, batch, step)
    N_RUN.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # dynamo's, where it gives up to compile something below fake tensors
        found = fake_profile(watch, model, 1, time.perf_counter_ns, 2**62)
    counted = real(nn.Sequential(deep(), nn.Linear(2, 1)), batch)
    assert (found.forward_flops, found.backward_flops) == (counted.forward_flops, counted.backward_flops)
    assert (found.basis, N_RUN) == ("uncompiled", [])
    step(model, batch)
    assert stats["unique_graphs"] == n_graphs
    assert N_RUN


def test_forward_without_gradients_has_no_backward_pass() -> None:
    def step(model: Any, batch: Any) -> torch.Tensor:
        with torch.no_grad():
            between = model[0](batch)
        return model[1](between).sum()

    model, batch = nn.Sequential(nn.Linear(SIZE, 16), nn.Linear(16, 2)), torch.randn(N, SIZE)
    found, counted = faked(model, batch, step), real(model, batch, step)
    assert (found.forward_flops, found.backward_flops) == (counted.forward_flops, counted.backward_flops)


def test_only_the_loss_is_the_start_of_the_backward_pass_if_there_is_one() -> None:
    class WithLoss(nn.Sequential):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self[0](x).sum(), "other": self[1](x)}

    model, batch = WithLoss(nn.Linear(SIZE, 16), nn.Linear(SIZE, 2)), torch.randn(N, SIZE)
    assert faked(model, batch, lambda m, b: m(b)["loss"]).backward_flops == 2 * N * SIZE * 16


def test_precision_is_that_of_the_step() -> None:
    def step(model: Any, batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(batch).sum()

    assert faked(deep(), torch.randn(N, SIZE), step).precision == "bf16"
    assert faked(deep(), torch.randn(N, SIZE)).precision == "fp32"


class DeepSpeedEngine(nn.Module):
    """Has of DeepSpeed's class what counting uses: the module, and parameters that are elsewhere (stage 3)."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> Any:
        kept = {p: p.data for p in self.module.parameters()}
        for parameter in kept:
            parameter.data = torch.empty(parameter.ds_shape)  # type: ignore[attr-defined]
        output = self.module(*args)
        for parameter, data in kept.items():
            parameter.data = data
        return output


def test_parameters_that_deepspeed_holds_elsewhere_have_their_full_shape() -> None:
    model, batch = deep(), torch.randn(N, SIZE)
    counted = real(deep(), batch)
    for parameter in model.parameters():
        parameter.ds_shape = parameter.shape  # type: ignore[attr-defined]
        parameter.data = torch.empty(0)
    found = faked(DeepSpeedEngine(model), batch)
    assert (found.forward_flops, found.backward_flops) == (counted.forward_flops, counted.backward_flops)
    assert (found.n_parameters, found.basis) == (counted.n_parameters, "shapes")


def test_saved_bytes_are_the_activations_without_parameters_and_batch() -> None:
    model = nn.Sequential(nn.Linear(SIZE, 16), nn.ReLU(), nn.Linear(16, 2))
    assert faked(model, torch.randn(N, SIZE)).saved_bytes == 4 * N * 16


# -- nothing changes --------------------------------------------------------------------------------------------------

N_CALLS = itertools.count()  # which a pass could not restore
LOSSES: list[Any] = []


class Tracker:
    def __init__(self) -> None:
        self.last, self.by_name = None, {"loss": [0.0]}

    def see(self, loss: Any) -> None:
        self.last = loss
        self.by_name["loss"].append(loss)


TRACKER = Tracker()
NESTED = SimpleNamespace(inner=SimpleNamespace(n_steps=0))
CONFIG = ModuleType("config")
CONFIG.__file__ = __file__
CONFIG.n_steps = 0
call: Any = lambda: None  # noqa: E731 - a function with an attribute
call.n_steps = 0


class Stateful(nn.Module):
    """Everything that forward may change: buffers, attributes, metrics, random streams, variables of its script."""

    seen: list[Any] = []
    n_seen = 0

    def __init__(self) -> None:
        super().__init__()
        self.layer = deep()
        self.metric, self.rng = torchmetrics.CatMetric(), np.random.default_rng(0)
        self.losses: list[Any] = []
        self.state = {"n": 0, "last": torch.zeros(2), "lock": threading.Lock()}
        self.keep, self.run = (lambda loss: self.losses.append(loss)), (lambda x: self.layer(x))
        self.register_forward_hook(lambda *_: (next(N_CALLS), None)[1])
        self.layer[0].weight.register_hook(lambda gradient: (next(N_CALLS), None)[1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.rng.random() * random.random() * np.random.rand() + torch.rand(1)
        loss = self.run(x).square().mean()
        self.metric.value.append(loss.detach())
        self.keep(loss.detach())
        self.state["n"] += 1
        self.state["last"] = loss.detach()
        LOSSES.append(loss.detach())
        TRACKER.see(loss.detach())
        Stateful.seen.append(loss.detach())
        Stateful.n_seen += 1
        NESTED.inner.n_steps += 1
        CONFIG.n_steps += 1
        call.n_steps += 1
        torch.manual_seed(3)
        self.train(not self.training)
        return loss


def everything(model: Stateful) -> Any:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return (
        {name: (id(t), t._version, tensor_digest(t)) for name, t in tensors.items()},
        {name: (id(p.grad), tensor_digest(p.grad)) for name, p in model.named_parameters() if p.grad is not None},
        [(m.training, list(m._forward_hooks), list(m._forward_pre_hooks), sorted(vars(m))) for m in model.modules()],
        (list(map(id, model.losses)), id(model.losses), model.state["n"], id(model.state["last"])),
        (str(model.rng.bit_generator.state), list(map(id, model.metric.value))),
        (random_streams(), repr(N_CALLS), torch.is_grad_enabled(), current_mode()),
        (list(torch.nn.modules.module._global_forward_hooks.items()), torch.get_num_threads(), sys.getprofile()),
        ([id(each) for each in (*LOSSES, *Stateful.seen)], Stateful.n_seen),
        (NESTED.inner.n_steps, CONFIG.n_steps, call.n_steps),
        (id(TRACKER.last), {name: list(map(id, each)) for name, each in TRACKER.by_name.items()}),
    )


def test_model_and_process_are_the_same_after_a_pass() -> None:
    model, batch = Stateful(), torch.randn(N, SIZE)
    with_hook = register_module_forward_hook(lambda *_: (next(N_CALLS), None)[1])
    try:
        watch = watched(model, batch)
        total(model, batch).backward()
        before, digest = everything(model), tensor_digest(batch)
        assert fake_profile(watch, model, 1, time.perf_counter_ns, 2**62).forward_flops
        for now, earlier in zip((*everything(model), tensor_digest(batch)), (*before, digest), strict=True):
            assert now == earlier
    finally:
        with_hook.remove()


def test_weights_take_no_memory_in_a_pass() -> None:
    def high_water() -> int:
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024

    faked(deep(), torch.randn(N, SIZE))  # torch's own tables come into memory
    model = nn.Sequential(*(nn.utils.skip_init(nn.Linear, 4096, 4096) for _ in range(8)))
    watch = watched(model, torch.empty(0, 4096))
    with watch.mode:
        watch.calls[0] = watch.calls[0]._replace(args=(torch.empty(4096, 4096),))
    held = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pytest.skip("the peak of this process cannot be reset")
    assert fake_profile(watch, model, 1, time.perf_counter_ns, 2**62).forward_flops
    assert high_water() - held < 50 * 2**20


# -- what cannot be counted -------------------------------------------------------------------------------------------


class Does(nn.Module):
    """A layer, and a function of its output that a test gives."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(SIZE, 2), function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.layer(x))


OTHER = nn.Linear(2, 2)
N_STEPS = 0


def assigns(x: torch.Tensor) -> Any:
    global N_STEPS
    N_STEPS += 1
    return x


def branches(x: torch.Tensor) -> Any:
    return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (branches, "values of tensors"),
        (lambda x: x * x.sum().item(), "values of tensors"),
        (lambda x: x[x > 0], "values of tensors"),
        (lambda x: x * x.detach().numpy().sum(), "numpy"),
        (lambda x: OTHER(x), "FakeTensor"),
        (assigns, "assigns N_STEPS"),
        (lambda x: (print(x.shape), x)[1], r"calls print\(\)"),
        (lambda x: (open("/dev/null").close(), x)[1], r"calls open\(\)"),
    ],
    ids=["branch", "item", "mask", "numpy", "other-model", "global", "print", "file"],
)
def test_reason_is_given_and_nothing_stays_in_place(
    function: Any, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "N_STEPS", 0)
    model, batch = Does(function), torch.randn(N, SIZE)
    watch, streams = watched(model, batch), random_streams()
    n_steps = N_STEPS
    capsys.readouterr()
    found, text = try_profile(watch, model, 1, time.perf_counter_ns, 0)
    assert found is None
    assert re.search(reason, text), text
    assert "\n" not in text
    assert (current_mode(), sys.getprofile(), OTHER.weight.grad, N_STEPS) == (None, None, None, n_steps)
    assert random_streams() == streams
    assert capsys.readouterr().out == ""


def test_pass_ends_when_its_time_is_over() -> None:
    found, text = try_profile(
        watched(deep(), torch.randn(N, SIZE)), deep(), 1, iter(range(0, 10**18, 10**10)).__next__, 0
    )
    assert found is None
    assert "longer than a pause" in text


def test_large_model_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_copy, "MAX_OBJECTS", 20)
    found, text = try_profile(watched(deep(), torch.randn(N, SIZE)), deep(), 1, time.perf_counter_ns, 0)
    assert found is None
    assert "more than 20 objects" in text


def test_step_is_not_watched_below_a_profiler_of_the_script() -> None:
    def theirs(*_: Any) -> None:
        return None

    sys.setprofile(theirs)
    try:
        watch = CallWatch(CPU, time.perf_counter_ns)
        watch.enters("training_step")
        assert sys.getprofile() is theirs
        watch.leaves("training_step")
        assert sys.getprofile() is theirs
    finally:
        sys.setprofile(None)
    assert "profiler of the script" in watch.failure


def test_signal_that_arrives_within_a_pass_ends_it_and_is_handled_then() -> None:
    seen: list[Any] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(current_mode()))

    def raises(x: torch.Tensor) -> torch.Tensor:
        if current_mode() is not None:
            signal.raise_signal(signal.SIGUSR1)
        return x + 1

    try:
        handler = signal.getsignal(signal.SIGUSR1)
        model, batch = Does(raises), torch.randn(N, SIZE)
        found, text = try_profile(watched(model, batch), model, 1, time.perf_counter_ns, 0)
        assert found is None
        assert "a signal arrived" in text
        assert seen == [None]
        assert signal.getsignal(signal.SIGUSR1) is handler
    finally:
        signal.signal(signal.SIGUSR1, before)
