"""Steps that are counted on fake tensors: as many operations as in a real step, and nothing changes."""

from __future__ import annotations

import builtins
import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torchmetrics
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.checkpoint import checkpoint

from lightning_perf.probes import fake_copy
from lightning_perf.probes.fake_pass import FakePass
from lightning_perf.probes.flops import ArithmeticCounter
from lightning_perf.probes.tracing import PassiveMode, current_mode, leave_mode
from lightning_perf.records import ModelProfile
from tests.fakes import FakeClock
from tests.forkserver import Forkserver
from tests.trainer.observations import random_streams, tensor_digest

from .test_flops import Attention, ResNet18

CPU = torch.device("cpu")
N, SIZE = 4, 8


class SelfAttention(Attention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x, x, x)


def total(model: Any, batch: Any) -> torch.Tensor:
    output = model(batch)
    return (output[0] if isinstance(output, tuple) else output).float().sum()


def faked(model: nn.Module, batch: Any, step: Callable[[Any, Any], Any] = total, until_ns: int = 2**62) -> ModelProfile:
    return FakePass(batch, CPU).profile(model, step, time.perf_counter_ns, until_ns)


def real(model: nn.Module, batch: Any) -> ModelProfile:
    counter = ArithmeticCounter(model)
    with counter:
        loss = total(model, batch)
    counter.direction = "backward"
    with counter:
        loss.backward()
    return counter.profile("cpu")


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU(), nn.Linear(SIZE, SIZE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.layers, x, use_reentrant=False)


def deep() -> nn.Sequential:
    return nn.Sequential(nn.Linear(SIZE, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 2))


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (deep, (N, SIZE)),
        (ResNet18, (2, 3, 32, 32)),
        (SelfAttention, (2, 2, 6, 32)),
        (lambda: nn.LSTM(SIZE, 6, num_layers=2), (3, N, SIZE)),
        (lambda: nn.TransformerEncoderLayer(SIZE, 2, batch_first=True), (N, 3, SIZE)),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(SIZE, 3)), (N, SIZE)),
        (Checkpointed, (N, SIZE)),
    ],
    ids=["mlp", "resnet", "attention", "lstm", "transformer", "weight-norm", "checkpointed"],
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
    assert (found.n_parameters, found.n_samples, found.basis) == (counted.n_parameters, shape[0], "fake")


class OneCompiledMethod(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = deep()

    @torch.compile(backend="eager")
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def compiled_in_place() -> nn.Module:
    model = deep()
    model.compile(backend="eager")
    return model


@pytest.mark.parametrize("runs_before", [True, False], ids=["run", "not-run"])
@pytest.mark.parametrize(
    "make",
    [lambda: torch.compile(deep(), backend="eager"), compiled_in_place, OneCompiledMethod],
    ids=["module", "in-place", "method"],
)
def test_compiled_model_has_the_operations_of_the_uncompiled_one(
    make: Callable[[], nn.Module], runs_before: bool
) -> None:
    batch, model = torch.randn(N, SIZE), make()
    if runs_before:
        total(model, batch).backward()
    n_graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    found, counted = faked(model, batch), real(deep(), batch)
    assert (found.forward_flops, found.backward_flops) == (counted.forward_flops, counted.backward_flops)
    assert found.basis == "uncompiled"
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == n_graphs
    if runs_before:
        total(model, batch)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == n_graphs


@pytest.fixture(scope="module")
def sharded(forkserver: Forkserver, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("no gloo")
    file = tmp_path_factory.mktemp("ranks") / "flops.json"
    done = forkserver.run(Path(__file__).with_name("sharded_flops_script.py"), str(file), n_ranks=2)
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text())


@pytest.mark.parametrize("kind", ["DDP", "FSDP2", "FSDP", "FSDP, flat"])
def test_sharded_model_has_the_operations_of_the_whole_one(sharded: dict[str, Any], kind: str) -> None:
    as_it_runs, on_fake_tensors = sharded[kind]
    assert as_it_runs == on_fake_tensors == sharded["eager"][0]


def test_sharded_model_computes_in_the_precision_of_its_policy(sharded: dict[str, Any]) -> None:
    as_it_runs, on_fake_tensors = sharded["FSDP2 in bf16"]
    assert as_it_runs == on_fake_tensors
    assert "bf16" in as_it_runs


def test_rank_of_a_split_model_counts_what_it_computes_itself(sharded: dict[str, Any]) -> None:
    as_it_runs, _ = sharded["tensor parallel"]
    layers_split = 2 * 8 * (64 * 128 + 128 * 10)
    assert as_it_runs[0] == sharded["eager"][0][0] - layers_split // 2


def test_parameters_that_deepspeed_holds_elsewhere_have_their_full_shape() -> None:
    model, batch = deep(), torch.randn(N, SIZE)
    counted = real(deep(), batch)
    for parameter in model.parameters():
        parameter.ds_shape = parameter.shape  # type: ignore[attr-defined]
        parameter.data = torch.empty(0)
    found = faked(model, batch)
    assert (found.forward_flops, found.backward_flops) == (counted.forward_flops, counted.backward_flops)
    assert found.n_parameters == counted.n_parameters


def test_saved_bytes_are_the_activations_without_parameters_and_batch() -> None:
    model = nn.Sequential(nn.Linear(SIZE, 16), nn.ReLU(), nn.Linear(16, 2))
    assert faked(model, torch.randn(N, SIZE)).saved_bytes == 4 * N * 16


# -- nothing changes --------------------------------------------------------------------------------------------------

N_CALLS: list[str] = []
LOSSES: list[Any] = []


class Tracker:
    def __init__(self) -> None:
        self.last, self.by_name = None, {"loss": [0.0]}

    def see(self, loss: Any) -> None:
        self.last = loss
        self.by_name["loss"].append(loss)
        self.by_name["other"] = []


TRACKER = Tracker()


class Stateful(nn.Module):
    """Everything that a step may change: buffers, attributes, metrics, random streams, variables of its script."""

    seen: list[Any] = []
    n_seen = 0

    def __init__(self) -> None:
        super().__init__()
        self.layer = deep()
        self.metric, self.rng = torchmetrics.MeanMetric(), np.random.default_rng(0)
        self.losses: list[Any] = []
        self.table = np.zeros(3)
        self.state = {"n": 0, "last": torch.zeros(2), "lock": threading.Lock()}
        self.register_forward_hook(lambda *_: N_CALLS.append("forward"))
        self.layer[0].weight.register_hook(lambda gradient: N_CALLS.append("gradient"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.rng.random() * random.random() * np.random.rand() + torch.rand(1) + self.table.sum()
        loss = self.layer(x).square().mean()
        self.metric.update(loss.detach())
        self.losses.append(loss.item())
        self.state["n"] += 1
        LOSSES.append(loss)
        TRACKER.see(loss)
        Stateful.seen.append(loss)
        Stateful.n_seen += 1
        self.state["last"] = loss.detach()
        torch.manual_seed(3)
        print("a fake step")
        self.train(not self.training)
        return loss


def everything(model: Stateful) -> Any:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return (
        {name: (id(t), t._version, tensor_digest(t)) for name, t in tensors.items()},
        {name: (id(p.grad), tensor_digest(p.grad)) for name, p in model.named_parameters() if p.grad is not None},
        [(m.training, list(m._forward_hooks), list(m._forward_pre_hooks), sorted(vars(m))) for m in model.modules()],
        (list(model.losses), id(model.losses), model.state["n"], id(model.state["last"]), model.table.tolist()),
        (str(model.rng.bit_generator.state), model.metric._update_count, tensor_digest(model.metric.mean_value)),
        (random_streams(), list(N_CALLS), torch.is_grad_enabled(), current_mode()),
        dict(torch.nn.modules.module._global_forward_hooks),
        (builtins.print, torch.get_num_threads(), sys.getprofile(), sys.stdout),
        ([id(each) for each in (*LOSSES, *Stateful.seen)], Stateful.n_seen),
        (id(TRACKER.last), {name: list(map(id, each)) for name, each in TRACKER.by_name.items()}),
    )


def test_variables_are_restored_when_a_pass_raises() -> None:
    seen: list[Any] = []

    def step(model: Any, batch: Any) -> Any:
        seen.append(model(batch))
        raise KeyError("planted")

    with pytest.raises(KeyError, match="planted"):
        faked(deep(), torch.randn(N, SIZE), step)
    assert seen == []


def test_model_and_process_are_the_same_after_a_pass(capsys: pytest.CaptureFixture[str]) -> None:
    model = Stateful()
    total(model, torch.randn(N, SIZE)).backward()
    capsys.readouterr()
    with_hook = register_module_forward_hook(lambda *_: N_CALLS.append("any"))
    try:
        before = everything(model)
        batch = torch.randn(N, SIZE)
        before_batch = tensor_digest(batch), random_streams()
        assert faked(model, batch).forward_flops
        assert (tensor_digest(batch), random_streams()) == before_batch
    finally:
        with_hook.remove()
    after = everything(model)
    assert before[:5] == after[:5]
    assert before[5][1:] == after[5][1:]
    assert before[7:] == after[7:]
    assert len(LOSSES) == 1
    assert capsys.readouterr().out == ""


def test_weights_take_no_memory_in_a_pass() -> None:
    def high_water() -> int:
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024

    faked(deep(), torch.randn(N, SIZE))  # torch's own tables come into memory
    model = nn.Sequential(*(nn.utils.skip_init(nn.Linear, 4096, 4096) for _ in range(8)))
    held = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pytest.skip("the peak of this process cannot be reset")
    assert faked(model, torch.empty(4096, 4096)).forward_flops
    assert high_water() - held < 50 * 2**20


# -- what cannot be counted -------------------------------------------------------------------------------------------


class Opaque(nn.Module):
    """A layer, and something that the copy does not have."""

    def __init__(self, has: Any = None) -> None:
        super().__init__()
        self.layer, self.has = nn.Linear(SIZE, 2), has


OTHER = nn.Linear(2, 2)
GENERATOR = np.random.default_rng(0)
N_STEPS = 0


def assigns(model: Any, batch: Any) -> Any:
    global N_STEPS
    N_STEPS += 1
    return model.layer(batch).sum()


def writes(model: Any, batch: Any) -> Any:
    with open("losses.txt", "a") as file:
        file.write("")
    return model.layer(batch).sum()


def branches(model: Any, batch: Any) -> Any:
    loss = model.layer(batch).sum()
    return loss if loss > 0 else -loss


@pytest.mark.parametrize(
    ("has", "step", "reason"),
    [
        (None, branches, "data-dependent"),
        (None, lambda m, b: m.layer(b).sum() * m.layer(b).detach().numpy().sum(), "numpy"),
        (None, lambda m, b: OTHER(m.layer(b)).sum(), "FakeTensor"),
        (None, lambda m, b: m.layer(b).sum() * GENERATOR.random(), "GENERATOR, a Generator, from outside"),
        (None, assigns, "assigns N_STEPS"),
        (None, writes, "opens a file"),
        (threading.Lock(), lambda m, b: m.has.acquire(), "uses a lock"),
        ([0] * (fake_copy.MAX_ITEMS + 1), lambda m, b: m.has[0], "a list of more than"),
        (np.zeros(3), lambda m, b: m.has.fill(1), "read-only"),
        (torch.optim.SGD([torch.zeros(1)], 0.1), lambda m, b: m.has.step(), "uses a SGD"),
        (torch.Generator(), lambda m, b: torch.rand(2, generator=m.has), "Generator"),
        (torch.zeros(2).to_sparse(), total, "not strided"),
        (nn.LazyLinear(2), total, "Uninitialized"),
        (bytes(100) * 10_000, lambda m, b: m.layer(b[:, :2]).sum(), "reduction dim"),
        (["x" * 1000] + ["y" * 60_000 + str(i) for i in range(200)], total, "MiB"),
    ],
    ids=["branch", "numpy", "other-model", "own-generator", "global", "file", "lock", "long-list", "array", "optimizer",
         "generator", "sparse", "lazy", "users-error", "large"],
)  # fmt: skip
def test_reason_is_raised_and_nothing_stays_in_place(has: Any, step: Any, reason: str) -> None:
    model, batch = Opaque(has), torch.randn(N, SIZE)
    streams = random_streams()
    with pytest.raises(Exception, match=reason):
        faked(model, batch, step)
    assert current_mode() is None
    assert OTHER.weight.grad is None
    assert sys.getprofile() is None
    assert N_STEPS == 0
    assert not Path("losses.txt").exists()
    assert random_streams() == streams


def test_pass_ends_when_its_time_is_over() -> None:
    clock = FakeClock()

    def step(model: Any, batch: Any) -> Any:
        clock.now += 10
        return total(model, batch)

    with pytest.raises(TimeoutError):
        FakePass(torch.randn(N, SIZE), CPU).profile(deep(), step, clock, clock.now + 5)
    assert current_mode() is None


def test_pass_is_refused_when_a_dispatch_mode_of_the_user_would_see_it() -> None:
    class Sees(PassiveMode):
        n = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.n += 1
            return func(*args, **(kwargs or {}))

    batch, model, users = torch.randn(N, SIZE), deep(), Sees()
    fake = FakePass(batch, CPU)
    users.__enter__()
    try:
        with pytest.raises(fake_copy.RefusedError, match="dispatch mode"):
            fake.profile(model, total, time.perf_counter_ns, 2**62)
        with pytest.raises(fake_copy.RefusedError, match="dispatch mode"):
            FakePass(batch, CPU)
    finally:
        leave_mode(users)
    assert users.n == 0


def test_signal_that_arrives_within_a_pass_is_handled_after_it() -> None:
    seen: list[Any] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(current_mode()))

    def step(model: Any, batch: Any) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return total(model, batch)

    try:
        handler = signal.getsignal(signal.SIGUSR1)
        faked(deep(), torch.randn(N, SIZE), step)
        assert seen == [None]
        assert signal.getsignal(signal.SIGUSR1) is handler
    finally:
        signal.signal(signal.SIGUSR1, before)
