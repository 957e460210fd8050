"""Models and optimizers read from shapes and dtypes; gradients watched without reading them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import lightning
import pytest
import torch
from torch import nn

from lightning_perf.probes.model.summary import read_model, read_optimizer, sparse_tables
from lightning_perf.probes.sampled_steps.gradients import N_WATCHED_STEPS, ZeroGradWatch


def groups(records: object) -> dict[str, tuple[int, int]]:
    return {group.dtype: (group.n_elements, group.n_bytes) for group in records}


def test_model_counts_each_memory_once_when_weights_are_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embedding.weight
            self.alias = nn.Parameter(self.embedding.weight.data)  # another object, the same storage
            self.small = nn.Parameter(torch.zeros(6, dtype=torch.float16), requires_grad=False)
            self.register_buffer("steps", torch.zeros(3, dtype=torch.int64))

    found = read_model(Tied())
    assert groups(found.parameters) == {"float32": (40, 160), "float16": (6, 12)}
    assert groups(found.buffers) == {"int64": (3, 24)}
    assert found.n_trainable == 40
    assert found.matmul_parameter_fraction == 40 / 46
    assert found.layers == {"Embedding": 1, "Linear": 1}


def test_model_counts_both_when_parameters_are_views_of_one_storage() -> None:
    flat = torch.zeros(10)
    module = nn.ParameterList([nn.Parameter(flat[:4]), nn.Parameter(flat[4:])])
    assert groups(read_model(module).parameters) == {"float32": (10, 40)}


def test_model_matmul_fraction_leaves_embeddings_and_norms_out_when_mixed() -> None:
    module = nn.Sequential(nn.Embedding(5, 4), nn.LSTM(4, 4), nn.LayerNorm(4), nn.MultiheadAttention(4, 2))
    matmul = sum(p.numel() for i in (1, 3) for p in module[i].parameters())
    total = sum(p.numel() for p in module.parameters())
    found = read_model(module)
    assert found.matmul_parameter_fraction == pytest.approx(matmul / total)
    assert found.layers["MultiheadAttention"] == found.layers["LSTM"] == 1


def test_model_has_no_total_when_parameters_are_uninitialized() -> None:
    found = read_model(nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2)))
    assert (found.n_trainable, found.matmul_parameter_fraction) == (None, None)
    assert groups(found.parameters) == {"float32": (8, 32)}


def test_model_counts_by_shape_when_on_meta() -> None:
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 1000))
    assert read_model(module).n_trainable == 2 * 1_001_000


def test_model_counts_the_local_shard_when_parameters_are_distributed() -> None:
    class Sharded(torch.Tensor):
        def to_local(self) -> torch.Tensor:
            return torch.zeros(3)

    Sharded.__module__ = "torch.distributed.tensor"  # only torch's own are asked
    module = nn.Module()
    module.weight = nn.Parameter(torch.zeros(12).as_subclass(Sharded))
    assert groups(read_model(module).parameters) == {"float32": (3, 12)}


def test_model_fraction_is_none_when_it_has_no_parameters() -> None:
    found = read_model(nn.ReLU())
    assert (found.parameters, found.n_trainable, found.matmul_parameter_fraction) == ((), 0, None)


def test_model_names_biased_convolutions_when_a_batch_norm_follows() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, bias=False))
            self.conv1 = nn.Conv1d(2, 4, 1)
            self.bn1 = nn.BatchNorm1d(4)
            self.conv2 = nn.Conv2d(4, 4, 1)
            self.act = nn.ReLU()
            self.bn2 = nn.BatchNorm2d(4)
            self.conv3 = nn.Conv2d(4, 5, 1)
            self.bn3 = nn.BatchNorm2d(6)

    assert read_model(Net()).conv_bias_before_norm == ("conv1", "stem.0")


def test_model_is_compiled_when_any_part_or_method_went_through_compile() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    assert read_model(make()).is_compiled is False
    assert read_model(torch.compile(make())).is_compiled is True
    part = make()
    part[0] = torch.compile(part[0])
    assert read_model(part).is_compiled is True
    in_place = make()
    in_place[0].compile()
    assert read_model(in_place).is_compiled is True
    method = make()
    method.training_step = torch.compile(method.forward)
    assert read_model(method).is_compiled is True
    assert read_model(make()).is_compiled is False


def test_optimizer_supports_no_fused_step_when_a_table_has_sparse_gradients():
    model = nn.ModuleDict({"ids": nn.Embedding(9, 2, sparse=True), "head": nn.Linear(2, 1)})
    assert read_optimizer(torch.optim.Adagrad(model.parameters()), sparse_tables(model)).supports_fused is False
    assert read_optimizer(torch.optim.Adagrad(model["head"].parameters()), sparse_tables(model)).supports_fused is True
    fused = torch.optim.Adagrad(model.parameters(), fused=True)
    model["head"](model["ids"](torch.tensor([1]))).sum().backward()
    with pytest.raises(RuntimeError, match="sparse"):
        fused.step()


@pytest.mark.parametrize(
    ("make", "implementation", "supports_fused"),
    [
        (lambda p: torch.optim.AdamW(p), "single-tensor", True),
        (lambda p: torch.optim.AdamW(p, fused=True), "fused", True),
        (lambda p: torch.optim.SGD(p, lr=0.1, foreach=True), "foreach", True),
        (lambda p: torch.optim.SGD(p, lr=0.1, foreach=False), "single-tensor", True),
        (lambda p: torch.optim.RMSprop(p), "single-tensor", False),
        (lambda p: torch.optim.Adam(p, differentiable=True), "single-tensor", False),
        (lambda p: torch.optim.LBFGS(p), "unknown", False),
        (lambda p: torch.optim.Adagrad(p), "single-tensor", True),
    ],
)
def test_optimizer_reports_its_implementation_when_on_the_cpu(make, implementation: str, supports_fused: bool) -> None:
    found = read_optimizer(make(list(nn.Linear(3, 2).parameters())))
    assert (found.implementation, found.supports_fused) == (implementation, supports_fused)
    assert (found.n_tensors, found.n_elements) == (2, 8)


def test_optimizer_counts_parameter_groups_that_differ() -> None:
    parameters = [nn.Parameter(torch.rand(2)) for _ in range(8)]
    rates = [0.1, 0.1, 0.2, 1, True, 1.0, torch.tensor(0.1), torch.tensor(0.1)]  # tensors count as themselves
    groups = [{"params": [each], "lr": rate} for each, rate in zip(parameters, rates, strict=True)]
    found = read_optimizer(torch.optim.SGD(groups, lr=0.5))
    assert (found.n_groups, found.n_distinct_groups) == (8, 7)
    betas = [{"params": [each], "betas": [0.9, 0.99]} for each in parameters]
    found = read_optimizer(torch.optim.Adam(betas))
    assert (found.n_groups, found.n_distinct_groups) == (8, 1)


def test_optimizer_compares_arguments_without_code_of_the_users() -> None:
    class Hostile(type):
        def __eq__(cls, other):
            raise RuntimeError("hostile")

        __hash__ = __eq__

    groups = [{"params": [nn.Parameter(torch.rand(2))], "own": Hostile("Own", (), {})()} for _ in range(2)]
    found = read_optimizer(torch.optim.SGD(groups, lr=0.1))
    assert (found.n_groups, found.n_distinct_groups) == (2, 2)


def test_optimizer_follows_torchs_default_when_no_flag_is_set(monkeypatch) -> None:
    optimizer = torch.optim.Adam(nn.Linear(3, 2).parameters())
    monkeypatch.setattr(
        sys.modules["torch.optim.optimizer"], "_default_to_fused_or_foreach", lambda *a, **k: (False, True)
    )
    assert read_optimizer(optimizer).implementation == "foreach"
    optimizer.param_groups[0]["fused"] = False  # asked for explicitly: torch then chooses nothing
    assert read_optimizer(optimizer).implementation == "single-tensor"
    optimizer.param_groups[0].update(fused=None, lr=torch.tensor(0.1))
    assert read_optimizer(optimizer).implementation == "single-tensor"


def test_optimizer_is_unknown_when_its_step_is_the_users_own() -> None:
    class Mine(torch.optim.Adam):
        def step(self, closure=None):
            return None

    assert read_optimizer(Mine(nn.Linear(2, 2).parameters())).implementation == "unknown"


def test_optimizer_supports_no_fusing_when_parameters_are_complex() -> None:
    optimizer = torch.optim.Adam([nn.Parameter(torch.zeros(2, dtype=torch.complex64))])
    assert read_optimizer(optimizer).supports_fused is False


def test_optimizer_inside_lightnings_wrapper_is_read() -> None:
    inner = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    assert read_optimizer(SimpleNamespace(optimizer=inner)).class_name == "SGD"


# -- gradients between steps ------------------------------------------------------------------------------------------


class Loop:
    """A hand-written training loop that announces what it does."""

    def __init__(self) -> None:
        self.trainer, probes = SimpleNamespace(optimizers=()), SimpleNamespace(leave_backward=lambda watch: None)
        self.main = SimpleNamespace(n_steps=0)
        loop = SimpleNamespace(main=self.main)
        self.context = SimpleNamespace(trainer=self.trainer, probes=probes, pl_module=None, loop=loop)
        self.watch = ZeroGradWatch(self.context)  # type: ignore[arg-type]
        self.x = torch.ones(4, 3)

    def backward(self, loss: torch.Tensor) -> None:
        self.watch.before_backward()
        loss.backward()
        self.watch.after_backward()
        self.main.n_steps += 1

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()
        self.watch.after_step(optimizer)


def make(optimizer_class: type = torch.optim.SGD, **arguments: object) -> tuple[nn.Module, torch.optim.Optimizer]:
    module = nn.Linear(3, 3)
    return module, optimizer_class(module.parameters(), lr=0.01, **arguments)


def dropping(loop: Loop, optimizer: torch.optim.Optimizer) -> tuple[object, object]:
    found = loop.watch.summary(optimizer)
    return found["n_clearings_dropping"], found["n_clearings"]


def seen(loop: Loop, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    found = loop.watch.summary(optimizer)
    return {name: found[name] for name in summary(None, None, 0)}


def summary(keeps: bool | None, uncleared: int | None, n: int) -> dict[str, object]:
    return {"zero_grad_keeps_tensors": keeps, "steps_without_zero_grad": uncleared, "n_steps_watched": n}


def backbone_and_head() -> nn.Module:
    return nn.ModuleDict({"net": nn.ModuleDict({"backbone": nn.Linear(3, 3), "head": nn.Linear(3, 1)})})


def apply_by_hand(backbone: nn.Module) -> None:
    with torch.no_grad():
        for parameter in backbone.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad
                parameter.grad.data.zero_()  # leaves the gradient's version


@pytest.mark.parametrize(
    ("each_step", "unused"),
    [
        (lambda backbone, step: None, (2, 12, "net.backbone", 12)),
        (lambda backbone, step: backbone.zero_grad() if step % 4 == 3 else None, (0, 0, "", 0)),
        (lambda backbone, step: apply_by_hand(backbone), (0, 0, "", 0)),
        (lambda backbone, step: backbone.requires_grad_(step < 3), (0, 0, "", 0)),
    ],
    ids=["forgotten", "cleared", "applied", "frozen later"],
)
def test_watch_finds_gradients_that_no_optimizer_has_unless_they_are_used(
    each_step: Callable[[nn.Module, int], object], unused: tuple[int, int, str, int]
) -> None:
    loop, module = Loop(), backbone_and_head()
    backbone, head = module["net"]["backbone"], module["net"]["head"]
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    loop.context.pl_module, loop.trainer.optimizers = module, [optimizer]
    for step in range(N_WATCHED_STEPS + 2):
        optimizer.zero_grad()
        loop.backward(head(backbone(loop.x)).sum())
        loop.step(optimizer)
        each_step(backbone, step)
    assert tuple(loop.watch._unused.summary(module, [optimizer]).values()) == unused
    optimizer.add_param_group({"params": list(backbone.parameters())})
    assert loop.watch._unused.summary(module, [optimizer]).get("n_unused_gradients", 0) == 0


@pytest.mark.parametrize(("n_out", "unused"), [(3, 2), (4, 0)], ids=["copy", "other shape"])
def test_gradients_of_averaged_weights_are_unused(n_out: int, unused: int) -> None:
    loop = Loop()
    module = nn.ModuleDict({"online": nn.Sequential(nn.Linear(3, 3)), "target": nn.Sequential(nn.Linear(3, n_out))})
    optimizer = torch.optim.SGD(module["online"].parameters(), lr=0.1)
    loop.context.pl_module, loop.trainer.optimizers = module, [optimizer]
    for _ in range(N_WATCHED_STEPS + 2):
        optimizer.zero_grad()
        loop.backward(module["online"](loop.x).sum() + module["target"](loop.x).sum())
        loop.step(optimizer)
        with torch.no_grad():
            for parameter in module["target"].parameters():
                parameter.lerp_(torch.ones_like(parameter), 0.1)
    assert loop.watch._unused.summary(module, [optimizer])["n_unused_gradients"] == unused


def test_no_gradient_is_unused_when_its_parameter_is_given_to_an_optimizer_later() -> None:
    loop, module = Loop(), backbone_and_head()
    backbone, head = module["net"]["backbone"], module["net"]["head"]
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    loop.context.pl_module, loop.trainer.optimizers = module, [optimizer]
    for step in range(N_WATCHED_STEPS + 2):
        if step == N_WATCHED_STEPS - 2:
            optimizer.add_param_group({"params": list(backbone.parameters())})
        loop.backward(head(backbone(loop.x)).sum())
        loop.step(optimizer)
    assert loop.watch._unused.summary(module, [optimizer]).get("n_unused_gradients", 0) == 0


def test_watch_gives_up_unused_gradients_when_another_optimizer_never_steps() -> None:
    loop, module = Loop(), backbone_and_head()
    backbone, head = module["net"]["backbone"], module["net"]["head"]
    optimizers = [torch.optim.SGD([one], lr=0.1) for one in head.parameters()]
    loop.context.pl_module, loop.trainer.optimizers = module, optimizers
    for _ in range(205):
        loop.backward(head(backbone(loop.x)).sum())
        loop.step(optimizers[0])
    assert loop.watch._unused._watched == {}
    assert loop.watch._unused.summary(module, optimizers) == {}


def test_nothing_is_reported_about_gradients_when_one_batch_takes_many_steps() -> None:
    loop, module = Loop(), backbone_and_head()
    backbone, head = module["net"]["backbone"], module["net"]["head"]
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    loop.context.pl_module, loop.trainer.optimizers = module, [optimizer]
    for _ in range(N_WATCHED_STEPS + 2):
        loop.watch.before_backward()
        head(backbone(loop.x)).sum().backward()
        loop.watch.after_backward()
        loop.step(optimizer)
    assert loop.watch._unused.summary(module, [optimizer]) == {}


@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("set_to_none", [False, True])
def test_watch_finds_every_step_cleared_when_zero_grad_is_called(
    optimizer_class: type, foreach: bool, set_to_none: bool
) -> None:
    loop = Loop()
    module, optimizer = make(optimizer_class, foreach=foreach)
    for _ in range(5):
        optimizer.zero_grad(set_to_none=set_to_none)
        loop.backward(module(loop.x).sum())
        loop.step(optimizer)
    assert seen(loop, optimizer) == summary(not set_to_none, 0, 4)


@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.Adam])
def test_watch_counts_steps_when_zero_grad_is_forgotten(optimizer_class: type) -> None:
    loop = Loop()
    module, optimizer = make(optimizer_class)
    for _ in range(5):
        loop.backward(module(loop.x).sum())
        nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        loop.step(optimizer)
    assert seen(loop, optimizer) == summary(None, 4, 4)


def test_watch_counts_only_the_faulty_steps_when_some_are_cleared() -> None:
    loop = Loop()
    module, optimizer = make()
    for index in range(9):
        if index % 3 == 0:
            optimizer.zero_grad()
        loop.backward(module(loop.x).sum())
        loop.step(optimizer)
    assert seen(loop, optimizer) == summary(False, 6, 8)


@pytest.mark.parametrize("set_to_none", [False, True])
def test_watch_finds_no_fault_when_gradients_are_accumulated(set_to_none: bool) -> None:
    loop = Loop()
    module, optimizer = make()
    for _ in range(4):
        optimizer.zero_grad(set_to_none=set_to_none)
        for _ in range(3):
            loop.backward(module(loop.x).sum())
        loop.step(optimizer)
    assert seen(loop, optimizer) == summary(not set_to_none, 0, 3)


def test_watch_counts_steps_when_accumulation_never_clears() -> None:
    loop = Loop()
    module, optimizer = make()
    for _ in range(4):
        for _ in range(3):
            loop.backward(module(loop.x).sum())
        loop.step(optimizer)
    assert seen(loop, optimizer) == summary(None, 3, 3)


@pytest.mark.parametrize("set_to_none", [False, True])
def test_watch_finds_no_fault_when_one_networks_pass_adds_to_the_other_before_it_is_cleared(set_to_none: bool) -> None:
    loop = Loop()
    generator, optimizer_g = make()
    critic, optimizer_c = make(torch.optim.Adam)
    for _ in range(4):
        optimizer_c.zero_grad(set_to_none=set_to_none)
        loop.backward(critic(loop.x).sum())
        loop.backward(critic(generator(loop.x).detach()).sum())
        loop.step(optimizer_c)
        optimizer_g.zero_grad(set_to_none=set_to_none)
        loop.backward(critic(generator(loop.x)).sum())  # reaches the critic's parameters too
        loop.step(optimizer_g)
    assert seen(loop, optimizer_c) == summary(not set_to_none, 0, 3)
    assert seen(loop, optimizer_g) == summary(not set_to_none, 0, 3)
    assert dropping(loop, optimizer_c) == (3, 3)
    assert dropping(loop, optimizer_g) == (0, 3)


def test_watch_counts_dropped_gradients_when_zero_grad_is_announced() -> None:
    loop = Loop()
    (one, optimizer_one), (two, optimizer_two) = make(), make()
    for _ in range(5):
        for optimizer, loss in (
            (optimizer_one, one(loop.x).sum() + two(loop.x).sum()),
            (optimizer_two, two(loop.x).sum()),
        ):
            loop.watch.before_zero_grad(optimizer)
            optimizer.zero_grad()
            loop.backward(loss)
            loop.step(optimizer)
    assert dropping(loop, optimizer_two)[0] == 4
    assert dropping(loop, optimizer_one)[0] == 0


@pytest.mark.parametrize("set_to_none", [False, True])
def test_watch_counts_dropped_gradients_when_a_pass_reaches_another_optimizers_parameters(set_to_none: bool) -> None:
    loop = Loop()
    generator, optimizer_g = make()
    critic, optimizer_c = make(torch.optim.Adam)
    for _ in range(5):
        fake = generator(loop.x)
        optimizer_c.zero_grad(set_to_none=set_to_none)
        loop.backward(critic(fake).sum() + critic(loop.x).sum())
        loop.step(optimizer_c)
        optimizer_g.zero_grad(set_to_none=set_to_none)
        loop.backward(generator(loop.x).sum())
        loop.step(optimizer_g)
    assert dropping(loop, optimizer_g) == (4, 4)
    assert dropping(loop, optimizer_c) == (0, 4)
    line = Loop.backward.__code__.co_firstlineno + 3
    assert loop.watch.summary(optimizer_g)["dropping_backward"] == f"test_model.py:{line}"
    assert loop.watch.summary(optimizer_c)["dropping_backward"] == ""
    assert loop.watch.summary(optimizer_g)["dropped_per_batch"] is None  # the same line is used


@pytest.mark.parametrize("every", [1, 3])
def test_watch_counts_the_passes_of_a_line_that_are_never_used(every: int) -> None:
    loop = Loop()
    generator, optimizer_g = make()
    critic, optimizer_c = make()
    for batch in range(1, 13):
        loop.main.n_steps = batch
        optimizer_c.zero_grad()
        loop.watch.before_backward()
        critic(generator(loop.x)).sum().backward()
        loop.watch.after_backward()
        loop.step(optimizer_c)
        if batch % every == 0:
            optimizer_g.zero_grad()
            loop.watch.before_backward()
            critic(generator(loop.x)).mean().backward()
            loop.watch.after_backward()
            loop.step(optimizer_g)
    assert loop.watch.summary(optimizer_g)["dropped_per_batch"] == 1.0
    assert loop.watch.summary(optimizer_c)["dropped_per_batch"] == pytest.approx(1 / every, rel=0.2)


def test_watch_blames_the_right_optimizer_when_only_one_is_never_cleared() -> None:
    loop = Loop()
    one, optimizer_one = make()
    two, optimizer_two = make()
    for _ in range(4):
        optimizer_one.zero_grad()
        loop.backward(one(loop.x).sum())
        loop.step(optimizer_one)
        loop.backward(two(loop.x).sum())
        loop.step(optimizer_two)
    assert seen(loop, optimizer_one) == summary(False, 0, 3)
    assert seen(loop, optimizer_two) == summary(None, 3, 3)


def test_watch_judges_nothing_when_backward_passes_are_not_announced() -> None:
    loop = Loop()
    module, optimizer = make()
    for _ in range(4):
        module(loop.x).sum().backward()
        loop.step(optimizer)
    assert seen(loop, optimizer) == summary(None, None, 0)


@pytest.mark.parametrize("set_to_none", [False, True])
@pytest.mark.parametrize("is_step_announced", [False, True])
def test_watch_reports_how_gradients_are_cleared_when_lightning_announces_zero_grad(
    set_to_none: bool, is_step_announced: bool
) -> None:
    loop = Loop()
    module, optimizer = make()
    for _ in range(4):
        loss = module(loop.x).sum()
        loop.watch.before_zero_grad(optimizer)
        optimizer.zero_grad(set_to_none=set_to_none)
        loop.backward(loss)
        loop.step(optimizer) if is_step_announced else optimizer.step()
    assert seen(loop, optimizer)["zero_grad_keeps_tensors"] is (not set_to_none)
    assert seen(loop, optimizer)["steps_without_zero_grad"] == (0 if is_step_announced else None)


def test_watch_ends_by_itself_when_it_has_seen_enough() -> None:
    loop = Loop()
    module, optimizer = make()
    assert not loop.watch.is_done
    for index in range(N_WATCHED_STEPS + 5):
        assert loop.watch.is_done is (index >= N_WATCHED_STEPS)
        optimizer.zero_grad()
        loop.backward(module(loop.x).sum())
        loop.step(optimizer)
    assert seen(loop, optimizer) == summary(False, 0, N_WATCHED_STEPS - 1)


def test_watch_ignores_parameters_when_they_have_no_gradient() -> None:
    loop = Loop()
    module, _ = make()
    frozen = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([frozen, *module.parameters()], lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        loop.backward(module(loop.x).sum())
        loop.step(optimizer)
    assert seen(loop, optimizer) == summary(False, 0, 2)


def test_watch_keeps_no_gradient_alive_when_it_was_dropped() -> None:
    import weakref

    loop = Loop()
    module, optimizer = make()
    loop.backward(module(loop.x).sum())
    loop.step(optimizer)
    gradient = weakref.ref(module.weight.grad)
    optimizer.zero_grad()
    assert gradient() is None


def test_module_that_clips_gradients_itself_is_recognized() -> None:
    class Plain(lightning.LightningModule):
        def training_step(self, batch: Any) -> None: ...

    class Clipping(Plain):
        def training_step(self, batch: Any) -> None:
            self.clip_gradients(self.optimizers(), gradient_clip_val=1.0)

    class Derived(Clipping):
        def validation_step(self, batch: Any) -> None: ...

    class Decorated(Plain):
        ops = torch.ops  # which has every attribute

        @torch.autocast("cpu")
        def training_step(self, batch: Any) -> None:
            def closure() -> None:
                self.clip_gradients(self.optimizers(), gradient_clip_val=1.0)

            self.optimizers().step(closure)

    modules = (Plain, Clipping, Derived, Decorated)
    assert [read_model(each()).clips_gradients for each in modules] == [False, True, True, True]
    assert not read_model(nn.Linear(2, 2)).clips_gradients


def test_line_that_makes_optimizers_is_that_of_the_users_class() -> None:
    class Own(lightning.LightningModule):
        def configure_optimizers(self) -> None:
            raise AssertionError("user code is not run")

    class Derived(Own): ...

    line = Own.configure_optimizers.__code__.co_firstlineno
    assert read_model(Derived()).optimizers_site == f"test_model.py:{line}"
    assert read_model(lightning.LightningModule()).optimizers_site == ""
    assert read_model(nn.Linear(2, 2)).optimizers_site == ""
