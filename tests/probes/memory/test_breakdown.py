"""What memory holds, against sizes worked out by hand."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lightning_perf import ConfigError, memory_breakdown
from lightning_perf.probes.memory.breakdown import ModelMemory, modules_held_by, with_peak
from lightning_perf.probes.model.module_walk import top_level_modules
from lightning_perf.probes.model.saved_tensors import SavedTensors

IN, HIDDEN, OUT, BATCH = 10, 20, 5, 8
N_WEIGHTS = IN * HIDDEN + HIDDEN + HIDDEN * OUT + OUT  # 325
N_TENSORS = 4
F32, BF16, STEP = 4, 2, 4  # bytes; an optimizer's step counter is one float32


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(IN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, OUT))


def stepped(module: nn.Module, optimizer: Any, dtype: torch.dtype = torch.float32) -> ModelMemory:
    """Counted after one step, gradients still held."""
    module(torch.randn(BATCH, IN, dtype=dtype)).square().mean().backward()
    optimizer.step()
    return ModelMemory(module, [optimizer], torch.device("cpu"))


@pytest.mark.parametrize(
    ("make", "states"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), F32 * N_WEIGHTS),
        (lambda p: torch.optim.Adam(p), 2 * F32 * N_WEIGHTS + STEP * N_TENSORS),
        (lambda p: torch.optim.Adam(p, amsgrad=True), 3 * F32 * N_WEIGHTS + STEP * N_TENSORS),
        (lambda p: torch.optim.AdamW(p, fused=True), 2 * F32 * N_WEIGHTS + STEP * N_TENSORS),
    ],
    ids=["SGD", "SGD-momentum", "Adam", "Adam-amsgrad", "AdamW-fused"],
)
def test_exact_parts_equal_the_computed_sizes_when_an_optimizer_has_stepped(make: Any, states: int) -> None:
    module = mlp()
    record = stepped(module, make(module.parameters())).record()
    assert record.parameters_bytes == F32 * N_WEIGHTS
    assert record.gradients_bytes == F32 * N_WEIGHTS
    assert record.gradients_basis == "held"
    assert record.optimizer_bytes == states
    assert record.buffers_bytes == 0
    assert sum(m.parameters_bytes for m in record.modules) == F32 * N_WEIGHTS
    assert sum(m.optimizer_bytes for m in record.modules) == states


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", {}), ("SGD", {"momentum": 0.9}), ("Adam", {}), ("Adam", {"amsgrad": True}), ("AdamW", {}),
        ("AdamW", {"amsgrad": True}), ("NAdam", {}), ("RAdam", {}), ("Adamax", {}), ("Adadelta", {}), ("Rprop", {}),
        ("Adagrad", {}), ("RMSprop", {}), ("RMSprop", {"momentum": 0.9}), ("RMSprop", {"centered": True}),
        ("RMSprop", {"momentum": 0.9, "centered": True}),
    ],
)  # fmt: skip
def test_states_expected_before_the_first_step_are_those_held_after_it(name: str, options: dict[str, Any]) -> None:
    module = mlp()
    optimizer = getattr(torch.optim, name)(module.parameters(), lr=0.01, **options)
    expected = ModelMemory(module, [optimizer], torch.device("cpu")).record()
    held = stepped(module, optimizer).record()
    assert expected.optimizer_basis == ("held" if name == "Adagrad" else "expected")  # it keeps states from the start
    assert held.optimizer_bytes is not None
    assert held.optimizer_basis == ("held" if held.optimizer_bytes else "expected")
    assert expected.optimizer_bytes is not None
    assert 0 <= held.optimizer_bytes - expected.optimizer_bytes <= 2 * STEP * N_TENSORS  # counters


def test_everything_takes_half_when_the_model_is_bf16_true() -> None:
    module = mlp().bfloat16()
    record = stepped(module, torch.optim.Adam(module.parameters()), torch.bfloat16).record()
    assert record.parameters_bytes == record.gradients_bytes == BF16 * N_WEIGHTS
    assert record.optimizer_bytes == 2 * BF16 * N_WEIGHTS + STEP * N_TENSORS


def test_parameters_stay_whole_and_activations_shrink_when_mixed() -> None:
    module = mlp()
    memory = ModelMemory(module, [], torch.device("cpu"))
    saved = SavedTensors(memory.count, memory.modules, time.perf_counter_ns)
    with saved, torch.autocast("cpu", dtype=torch.bfloat16):
        module(torch.randn(BATCH, IN))
    record = memory.record(saved)
    assert record.parameters_bytes == F32 * N_WEIGHTS
    # Once more in bf16: the batch, and the second weight; the first one's copy is needed only for the batch's gradient.
    copies = BF16 * (BATCH * IN + HIDDEN * OUT)
    assert record.activations_bytes == copies + BF16 * BATCH * HIDDEN


def test_tied_weights_count_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(100, 16)
            self.head = nn.Linear(16, 100, bias=False)
            self.head.weight = self.embed.weight

    record = ModelMemory(Tied(), [], torch.device("cpu")).record()
    assert record.parameters_bytes == F32 * 1600


def test_views_of_one_buffer_count_as_the_buffer_when_gradients_share_it() -> None:
    module = mlp()
    bucket = torch.zeros(N_WEIGHTS)
    place = 0
    for parameter in module.parameters():
        parameter.grad = bucket[place : place + parameter.numel()].view_as(parameter)
        place += parameter.numel()
    assert ModelMemory(module, [], torch.device("cpu")).record().gradients_bytes == F32 * N_WEIGHTS


def test_frozen_layers_have_neither_gradients_nor_states() -> None:
    module = mlp()
    module[0].requires_grad_(False)
    trained = HIDDEN * OUT + OUT
    before = ModelMemory(module, [torch.optim.Adam(module.parameters())], torch.device("cpu")).record()
    assert before.gradients_bytes == F32 * trained
    assert (before.gradients_basis, before.optimizer_basis) == ("expected", "expected")
    assert before.optimizer_bytes == 2 * F32 * trained
    after = stepped(module, torch.optim.Adam(module.parameters())).record()
    assert after.parameters_bytes == F32 * N_WEIGHTS
    assert after.gradients_bytes == F32 * trained
    assert after.optimizer_bytes == 2 * F32 * trained + STEP * 2


def test_averaged_copy_counts_when_a_callback_holds_it() -> None:
    class Averaging:
        def __init__(self, module: nn.Module) -> None:
            self.average = copy.deepcopy(module)
            self.trained = module

    module = mlp()
    copies = modules_held_by([Averaging(module)], module)
    record = ModelMemory(module, [], torch.device("cpu"), copies).record()
    assert record.copies_bytes == F32 * N_WEIGHTS


def test_states_are_not_known_when_an_unknown_optimizer_has_made_no_step() -> None:
    class Unknown(torch.optim.SGD):
        pass

    module = mlp()
    record = ModelMemory(module, [Unknown(module.parameters(), lr=0.1)], torch.device("cpu")).record()
    assert record.optimizer_bytes is None
    assert "Unknown" in record.optimizer_basis


@pytest.mark.needs_torch("2.5")  # torch.distributed.tensor
def test_local_shards_count_when_parameters_are_distributed(tmp_path: Any) -> None:
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        module = nn.Linear(4, 6, bias=False)
        module.weight = nn.Parameter(distribute_tensor(module.weight.detach(), mesh, [Shard(0)]))
        record = ModelMemory(module, [], torch.device("cpu")).record()
    finally:
        distributed.destroy_process_group()
    assert record.parameters_bytes == record.gradients_bytes == F32 * 24


def test_rest_of_the_peak_counts_as_activations_when_they_were_not_measured() -> None:
    record = ModelMemory(mlp(), [], torch.device("cpu")).record()
    known = 2 * F32 * N_WEIGHTS  # gradients are expected
    whole = with_peak(record, known + 1000, known + 1500)
    assert (whole.activations_bytes, whole.activations_basis) == (1000, "rest of the peak")
    assert (whole.rest_bytes, whole.cache_bytes) == (0, 500)


# -- activations ------------------------------------------------------------


def measured(module: nn.Module, batch: torch.Tensor) -> int:
    found = memory_breakdown(module, batch=batch).record.activations_bytes
    assert found is not None
    return found


def test_activations_agree_with_theory_when_the_model_is_an_mlp() -> None:
    width, depth, batch = 64, 6, 128
    module = nn.Sequential(*(part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())))
    # Each layer keeps its input: the batch itself (counted as such) and the outputs of all activations.
    assert measured(module, torch.randn(batch, width)) == pytest.approx(F32 * batch * width * depth, rel=0.05)


def test_activations_agree_with_theory_when_the_model_is_a_cnn() -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3, padding=1), nn.ReLU()
    )
    batch, side = 4, 32
    pixels = batch * side * side
    # Input of the norm, output of the first ReLU (input of the second convolution), output of the second one.
    assert measured(module, torch.randn(batch, 3, side, side)) == pytest.approx(F32 * pixels * (16 + 16 + 8), rel=0.05)


class Blocks(nn.Module):
    """Blocks that may compute their activations again."""

    def __init__(self, is_checkpointed: bool, use_reentrant: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4))
        self.is_checkpointed, self.use_reentrant = is_checkpointed, use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 1.0
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.use_reentrant) if self.is_checkpointed else block(x)
        return x


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activations_drop_to_the_blocks_inputs_when_checkpointed(use_reentrant: bool) -> None:
    batch = torch.randn(128, 64, requires_grad=use_reentrant)
    plain = measured(Blocks(is_checkpointed=False), batch)
    inputs_only = measured(Blocks(is_checkpointed=True, use_reentrant=use_reentrant), batch)
    assert plain == pytest.approx(4 * F32 * 128 * (64 + 256 + 256), rel=0.05)
    assert inputs_only == pytest.approx(4 * F32 * 128 * 64, rel=0.05)


def test_activations_are_grouped_by_top_level_module() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = nn.Sequential(nn.Linear(8, 32), nn.ReLU()), nn.Linear(32, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.encoder(x)).tanh()

    record = memory_breakdown(Net(), batch=torch.randn(16, 8)).record
    by_name = {m.name: m.activations_bytes for m in record.modules}
    assert by_name == {"encoder": F32 * 16 * 32, "head": 0, "": F32 * 16 * 4}
    assert record.n_samples == 16


def test_single_child_is_skipped_when_naming_modules() -> None:
    assert list(top_level_modules(nn.ModuleDict({"net": mlp()}))) == ["net.0", "net.1", "net.2"]


def test_modules_in_lists_are_named_instead_of_the_lists() -> None:
    class Called(nn.ModuleList):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self[0](x)

    layer = nn.Linear(2, 2)
    net = nn.ModuleDict({"layers": nn.ModuleList([layer, nn.ModuleDict({"a": mlp()})]), "called": Called([layer])})
    net["empty"] = nn.ModuleList()
    assert list(top_level_modules(net)) == ["layers.0", "layers.1.a", "called"]


def test_forward_with_a_functional_transform_runs_and_is_reported_as_not_measured() -> None:
    class Transforms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.func.grad(lambda y: (y**2).sum())(x))

    before = torch.autograd.graph.disable_saved_tensors_hooks
    record = memory_breakdown(Transforms(), batch=torch.randn(2, 4)).record
    assert record.activations_bytes is None
    assert "torch.func" in record.activations_basis
    assert torch.autograd.graph.disable_saved_tensors_hooks is before


# -- memory_breakdown ------------------------------------------------------------


def test_memory_breakdown_leaves_module_and_random_numbers_as_they_were() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    before = copy.deepcopy(module.state_dict())
    state = torch.get_rng_state()
    memory_breakdown(module, torch.optim.AdamW(module.parameters()), torch.randn(8, 4, generator=torch.Generator()))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in module.modules())


def test_memory_breakdown_prints_as_a_table() -> None:
    module = mlp()
    text = str(memory_breakdown(module, torch.optim.AdamW(module.parameters()), torch.randn(BATCH, IN)))
    assert "activations" in text
    assert "optimizer states" in text
    assert "expected" in text


@pytest.mark.parametrize("arguments", [("no module",), (mlp(), "no optimizer"), (mlp(), None, torch.randn(3, IN + 1))])
def test_quick_breakdown_names_the_expected_type_when_given_another(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        memory_breakdown(*arguments)
