"""Counted operations against formulas written by hand."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lightning_perf.probes.model import operators
from lightning_perf.probes.model.flops import ArithmeticCounter
from lightning_perf.probes.model.operators import formula_of
from lightning_perf.records import ModelProfile


def counted(model: nn.Module, *inputs: Any, train: bool = True, depth: int = 1) -> ModelProfile:
    """One pass, forward and backward, from the sum of all that comes out."""
    counter = ArithmeticCounter(model, depth, time.perf_counter_ns, times_operators=True)
    with counter:
        out = model(*inputs)
        loss = (out[0] if isinstance(out, tuple) else out).sum()
    if train:
        counter.direction = "backward"
        with counter:
            loss.backward()
    assert counter.failure == ""
    return counter.profile("cpu", 1)


def near(expected: float) -> Any:
    return pytest.approx(expected, rel=0.01)


def needing(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def test_linear_counts_as_its_formula() -> None:
    profile = counted(nn.Linear(64, 32), needing(16, 64))
    assert profile.forward_flops == near(2 * 16 * 64 * 32)
    assert profile.backward_flops == near(2 * 2 * 16 * 64 * 32)


def test_linear_without_gradient_of_its_input_counts_half_of_the_backward_pass() -> None:
    profile = counted(nn.Linear(64, 32), torch.randn(16, 64))
    assert profile.backward_flops == near(2 * 16 * 64 * 32)


@pytest.mark.parametrize(("groups", "stride", "padding"), [(1, 1, 1), (4, 1, 0), (2, 2, 1), (8, 3, 2)])
def test_convolution_counts_as_its_formula(groups: int, stride: int, padding: int) -> None:
    layer = nn.Conv2d(8, 16, (3, 5), stride=stride, padding=padding, groups=groups)
    inputs = needing(4, 8, 20, 24)
    height, width = layer(inputs).shape[2:]
    once = 2 * 4 * height * width * 16 * (8 // groups) * 3 * 5
    profile = counted(layer, inputs)
    assert profile.forward_flops == near(once)
    assert profile.backward_flops == near(2 * once)


@pytest.mark.parametrize("groups", [1, 4])
def test_transposed_convolution_counts_each_place_of_its_input(groups: int) -> None:
    layer = nn.ConvTranspose2d(8, 16, 3, stride=2, groups=groups)
    once = 2 * 4 * 10 * 12 * 8 * (16 // groups) * 3 * 3
    profile = counted(layer, needing(4, 8, 10, 12))
    assert profile.forward_flops == near(once)
    assert profile.backward_flops == near(2 * once)


class Attention(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)


def test_fused_attention_counts_as_its_formula() -> None:
    batch, heads, n_queries, n_keys, size = 2, 4, 32, 48, 16
    shapes = ((batch, heads, n_queries, size), (batch, heads, n_keys, size), (batch, heads, n_keys, size))
    profile = counted(Attention(), *(needing(*shape) for shape in shapes))
    product = 2 * batch * heads * n_queries * n_keys * size
    assert profile.forward_flops == near(2 * product)
    assert profile.backward_flops == near(5 * product)  # the scores once more, and two products for each of the two
    n_rows = {operator.name: operator.n_rows for operator in profile.operators if operator.flops}
    assert set(n_rows.values()) == {batch * heads * n_queries}
    assert profile.uncounted == ()


def test_attention_of_several_products_counts_as_its_formula() -> None:
    layer = nn.MultiheadAttention(64, 4, batch_first=True)
    tokens = needing(2, 32, 64)
    profile = counted(layer, tokens, tokens, tokens)
    projections, scores = 2 * 2 * 32 * 64 * 64 * 4, 2 * 2 * 2 * 32 * 32 * 64
    assert profile.forward_flops == near(projections + scores)
    assert profile.backward_flops == near(2 * (projections + scores))


def test_mask_of_a_fused_encoder_layer_is_no_weight() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    tokens, mask = torch.rand(8, 64, 16), torch.zeros(8, 64, dtype=torch.bool)
    with torch.no_grad():
        masked, unmasked = (counted(layer, tokens, None, each, train=False).forward_flops for each in (mask, None))
    assert masked == unmasked


@pytest.mark.parametrize("is_bidirectional", [False, True])
def test_lstm_counts_as_its_formula(is_bidirectional: bool) -> None:
    layer = nn.LSTM(24, 32, num_layers=2, batch_first=True, bidirectional=is_bidirectional)
    ways = 1 + is_bidirectional
    once = 2 * 4 * 10 * ways * (4 * 32 * (24 + 32) + 4 * 32 * (32 * ways + 32))
    profile = counted(layer, needing(4, 10, 24))
    assert profile.forward_flops == near(once)
    assert profile.backward_flops == near(2 * once)
    assert profile.uncounted == ()


class Block(nn.Module):
    """Two convolutions with a way around them (He et al. 2015)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after))
        self.around = nn.Sequential()
        if stride != 1 or before != after:
            self.around = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.second(self.first(x)) + self.around(x))


class ResNet18(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        widths = (64, 64, 128, 256, 512)
        self.stages = nn.Sequential(
            *(
                nn.Sequential(Block(before, after, 1 if before == after else 2), Block(after, after, 1))
                for before, after in itertools.pairwise(widths)
            )
        )
        self.head = nn.Linear(512, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


def test_resnet_18_counts_as_published() -> None:
    model = ResNet18()
    assert sum(p.numel() for p in model.parameters()) == 11_689_512
    profile = counted(model, torch.randn(1, 3, 224, 224))
    assert profile.forward_flops == near(2 * 1.82e9)
    # Backward takes twice as many, minus the gradient of the image, which is not needed.
    first = 2 * 112 * 112 * 64 * 3 * 7 * 7
    assert profile.backward_flops == near(2 * (profile.forward_flops or 0) - first)
    assert_modules_add_up(profile)


class Gpt(nn.Module):
    """A small decoder: embedding, two blocks, head."""

    def __init__(self, size: int = 64, n_layers: int = 2, vocabulary: int = 100) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "qkv": nn.Linear(size, 3 * size),
                    "out": nn.Linear(size, size),
                    "up": nn.Linear(size, 4 * size),
                    "down": nn.Linear(4 * size, size),
                }
            )
            for _ in range(n_layers)
        )
        self.head = nn.Linear(size, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            q, k, v = (
                part.unflatten(-1, (4, -1)).transpose(1, 2) for part in block["qkv"](x).chunk(3, -1)  # type: ignore[operator,index]
            )  # fmt: skip
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            x = x + block["out"](mixed)  # type: ignore[operator,index]
            x = x + block["down"](F.gelu(block["up"](x)))  # type: ignore[operator,index]
        return self.head(x)


def test_gpt_counts_as_its_formula() -> None:
    batch, length, size, n_layers, vocabulary = 4, 32, 64, 2, 100
    profile = counted(Gpt(size, n_layers, vocabulary), torch.randint(0, vocabulary, (batch, length)))
    dense = 2 * batch * length * (n_layers * 12 * size**2 + size * vocabulary)
    attention = n_layers * 4 * batch * length**2 * size
    assert profile.forward_flops == near(dense + attention)
    assert profile.backward_flops == near(2 * dense + 2.5 * attention)
    assert_modules_add_up(profile)


def assert_modules_add_up(profile: ModelProfile) -> None:
    for field in ("forward_flops", "backward_flops", "forward_bytes", "backward_bytes"):
        assert sum(getattr(module, field) for module in profile.modules) == getattr(profile, field)
    assert sum(module.n_parameters for module in profile.modules) == profile.n_parameters


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_modules_add_up_when_the_depth_is_larger(depth: int) -> None:
    profile = counted(ResNet18(), torch.randn(1, 3, 64, 64), depth=depth)
    assert_modules_add_up(profile)
    assert profile.module_depth == depth


def test_backward_belongs_to_the_module_whose_forward_made_it() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    profile = counted(model, needing(2, 8))
    found = {module.path: module for module in profile.modules}
    assert found["0"].backward_flops == 2 * found["0"].forward_flops == 4 * 2 * 8 * 16
    assert found["2"].backward_flops == 2 * found["2"].forward_flops == 4 * 2 * 16 * 4
    assert found["1"].backward_flops == 0
    assert found["1"].backward_bytes > 0


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_recomputed_activations_are_counted_separately(is_reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.body, x, use_reentrant=is_reentrant)

    once = 2 * 4 * 8 * 8
    profile = counted(Checkpointed(), needing(4, 8))
    assert profile.forward_flops == 2 * once
    assert profile.recomputed_flops == 2 * once
    assert profile.backward_flops == 4 * once + profile.recomputed_flops


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_forward_alone_is_counted_without_gradients(guard: Callable[[], Any]) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.LSTM(16, 8))
    with guard():
        profile = counted(model, torch.randn(5, 2, 8), train=False)
    assert profile.forward_flops == 2 * 10 * 8 * 16 + 2 * 10 * 4 * 8 * (16 + 8)
    assert profile.backward_flops is None
    assert "no backward pass" in profile.missing["backward_flops"]


def test_bytes_are_those_read_and_written() -> None:
    class Add(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return (a + b).view(-1)

    class InPlace(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a.mul_(b)

    class Copy(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a.copy_(b.expand_as(a))

    a, b = torch.randn(100, 10), torch.randn(100, 10)
    summed = 4 * (1000 + 1)
    assert counted(Add(), a, b, train=False).forward_bytes == 3 * 4000 + summed
    assert counted(InPlace(), a, b, train=False).forward_bytes == 3 * 4000 + summed
    assert counted(Copy(), a, torch.randn(1, 10), train=False).forward_bytes == 4000 + 40 + summed


def test_embedding_reads_the_rows_it_picks_alone() -> None:
    profile = counted(nn.Embedding(100_000, 16), torch.zeros(4, dtype=torch.long), train=False)
    assert profile.forward_bytes == 2 * 4 * 16 * 4 + 4 * 8 + 4 * (64 + 1)


def test_operator_whose_arithmetic_is_not_known_is_named() -> None:
    class Distances(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return torch.cdist(a, a + 1)

    assert counted(Distances(), torch.randn(4, 3), train=False).uncounted == ("aten::_cdist_forward",)


def test_denormal_numbers_are_found_in_what_is_multiplied() -> None:
    layer = nn.Linear(64, 64, bias=False)
    with torch.no_grad():
        layer.weight[:32] = 1e-40
    [operator] = [o for o in counted(layer, torch.randn(4, 64), train=False).operators if o.flops]
    assert operator.denormal_fraction == pytest.approx(0.5, abs=0.1)
    [operator] = [o for o in counted(nn.Linear(8, 8), torch.randn(4, 8), train=False).operators if o.flops]
    assert operator.denormal_fraction == 0.0


def test_products_of_sparse_matrices_are_counted() -> None:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sparse.mm(torch.eye(len(x)).to_sparse(), self.layer(x))

    assert counted(Graph(), torch.randn(4, 8)).forward_flops


def test_numbers_are_the_same_when_a_step_is_counted() -> None:
    def step(is_counted: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.LSTM(30, 16))
        out_grads = torch.randn(4, 4, 32)
        if is_counted:
            counted(model, out_grads)
        else:
            model(out_grads)[0].sum().backward()
        tensors = [p.grad for p in model.parameters()] + list(model.buffers()) + [torch.rand(3)]
        return [t for t in tensors if t is not None]

    for plain, watched in zip(step(False), step(True), strict=True):
        assert torch.equal(plain, watched)


def test_hooks_are_gone_and_errors_of_the_model_pass_through() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(self.inner(x).reshape(3, 7))

    model = Fails()
    counter = ArithmeticCounter(model)
    with pytest.raises(RuntimeError, match="shape"), counter:
        model(torch.randn(2, 2))
    assert not model.inner._forward_hooks
    assert not model.inner._forward_pre_hooks
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_counting_stops_but_the_step_goes_on_when_counting_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 2)
    counter = ArithmeticCounter(model)

    def broken(*_: Any) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(counter, "_count", broken)
    with counter:
        out = model(torch.ones(1, 2))
    assert out.shape == (1, 2)
    profile = counter.profile("cpu")
    assert profile.forward_flops is None
    assert "planted" in profile.missing["forward_flops"]


def test_step_goes_on_uncounted_when_counting_takes_seconds() -> None:
    seconds = itertools.count(step=10**9)  # each reading of the clock
    counter = ArithmeticCounter(nn.Identity(), now_ns=lambda: next(seconds))
    with counter:
        x = torch.ones(2)
        for _ in range(8):
            x = x + 1
    assert x.tolist() == [9.0, 9.0]
    assert counter.profile("cpu").missing["forward_flops"] == "counting the first 5 operators of a step took 3 s"


def test_denormal_share_is_a_plain_number_that_json_can_hold() -> None:
    found = operators.denormal_fractions((torch.tensor([1e-40, 1.0]),))
    assert [type(share) for share in found.values()] == [float]


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("width", [1, 2, 160, 256])
def test_denormal_share_counts_all_columns_alike(width: int, is_transposed: bool) -> None:
    rows = torch.ones(2**17 // width, width)
    rows[:, 0] = 1e-40
    found = operators.denormal_fractions((rows.T if is_transposed else rows,))
    assert list(found.values()) == [pytest.approx(1 / width, rel=0.3)]


def test_denormal_fraction_of_an_operator_weights_calls_by_their_time() -> None:
    a, b = torch.rand(4, 8), torch.rand(8, 4)
    counter = ArithmeticCounter(nn.Linear(1, 1), times_operators=True)
    known = operators.describe(torch.ops.aten.mm.default)
    for ns, share in ((900, 0.5), (100, 0.0)):
        counter._count(known, (a, b), {}, a @ b, ns, {id(a): share, id(b): 0.0})
    [operator] = counter.profile("cpu").operators
    assert operator.denormal_fraction == pytest.approx(0.45)


def test_zeros_are_no_denormal_numbers() -> None:
    profile = counted(nn.Linear(64, 64), torch.zeros(4, 64), train=False)
    [operator] = [o for o in profile.operators if o.flops]
    assert operator.denormal_fraction == 0.0


def test_views_are_not_started() -> None:
    modules = counted(nn.Sequential(nn.Linear(8, 8)), torch.randn(4, 8), train=False).modules
    # The product, whose transposed weight is a view; the sum outside.
    assert {module.path: module.n_operators for module in modules} == {"0": 1, "": 1}


def test_dtype_is_that_of_the_numbers_computed_with() -> None:
    profile = counted(nn.Embedding(4, 2), torch.zeros(100, dtype=torch.long), train=False)
    assert {o.name: o.dtype for o in profile.operators}["aten::embedding"] == "float32"


def test_bags_read_only_the_rows_that_they_look_up() -> None:
    profile = counted(nn.EmbeddingBag(1000, 8), torch.zeros(5, 3, dtype=torch.long), train=False)
    [operator] = [o for o in profile.operators if o.name == "aten::_embedding_bag"]
    rows, n_indices = 5 * 3 * 8 * 4, 5 * 3 * 8
    assert rows + n_indices + 5 * 8 * 4 <= operator.n_bytes <= rows + 3 * n_indices + 5 * 8 * 4


def test_gradients_added_up_belong_to_the_module_of_their_parameter() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    inputs = torch.randn(4, 8)

    def started() -> dict[str, int | None]:
        return {module.path: module.n_operators for module in counted(model, inputs).modules}

    first, again = started(), started()  # the second time there are gradients to add to
    assert {path: (again[path] or 0) - (n or 0) for path, n in first.items()} == {"0": 2, "1": 0, "2": 2, "": 0}


@pytest.mark.parametrize(("wants_weights", "n_products"), [(True, 2), (False, 1)])
def test_recurrent_backward_of_cudnn_counts_the_requested_gradients(wants_weights: bool, n_products: int) -> None:
    inputs, weights = torch.zeros(10, 4, 16), [torch.zeros(128, 16), torch.zeros(128, 32), torch.zeros(128)]
    formula = formula_of(torch.ops.aten._cudnn_rnn_backward)
    assert formula is not None
    arguments = (inputs, weights, *(None,) * 17, [True, True, True, wants_weights])
    assert formula(arguments, None) == n_products * 2 * 10 * 4 * 128 * (16 + 32)


@pytest.mark.parametrize("n_modules", [2, 40])
def test_operators_are_gone_through_as_often_for_many_modules_as_for_few(n_modules: int) -> None:
    class Rows(dict):
        n_passes = 0

        def items(self):
            Rows.n_passes += 1
            return super().items()

    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(n_modules)])
    with ArithmeticCounter(model, now_ns=lambda: 0, times_operators=False) as counter:
        model(torch.ones(1, 2)).sum().backward()
    counter._rows = Rows(counter._rows)
    assert len(counter.profile("cpu").modules) >= n_modules
    assert Rows.n_passes <= 5


@pytest.mark.parametrize("is_inference", [False, True])
def test_tensors_of_uneven_length_are_computed_as_without_counting(is_inference: bool) -> None:
    layer, rows = nn.Linear(4, 3), torch.randn(6, 4)

    def computed() -> torch.Tensor:
        with torch.inference_mode(is_inference):
            return layer(torch.nested.nested_tensor([rows[:2], rows[2:]], layout=torch.jagged)).values()

    expected = computed()
    with ArithmeticCounter(layer, now_ns=lambda: 0, times_operators=False) as counter:
        assert torch.equal(computed(), expected)
    assert not counter.failure
    assert counter.profile("cpu").forward_flops == 2 * 6 * 4 * 3


LAYERS: dict[str, Callable[[], nn.Module]] = {
    **{name: getattr(nn, name) for name in ("ELU", "GELU", "GLU", "Hardswish", "LogSigmoid", "Mish", "PReLU", "RReLU")},
    **{name: getattr(nn, name) for name in ("SELU", "SiLU", "Sigmoid", "Softplus", "Softsign", "Tanh")},
    "BatchNorm2d": lambda: nn.BatchNorm2d(16),
    "ChannelShuffle": lambda: nn.ChannelShuffle(4),
    "Conv2d": lambda: nn.Conv2d(16, 8, 3, groups=2),
    "GroupNorm": lambda: nn.GroupNorm(4, 16),
    "InstanceNorm2d": lambda: nn.InstanceNorm2d(16, affine=True),
    "LPPool2d": lambda: nn.LPPool2d(2, 2),
    "LayerNorm": lambda: nn.LayerNorm(12),
    "Linear": lambda: nn.Linear(12, 7),
    "LogSoftmax": lambda: nn.LogSoftmax(1),
    "RMSNorm": lambda: nn.RMSNorm(12),
    "Upsample": lambda: nn.Upsample(scale_factor=1.5, mode="bilinear"),
}


@pytest.mark.parametrize("is_inference", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_results_have_the_same_bits_when_counted(name: str, is_inference: bool) -> None:
    def results(counter: ArithmeticCounter | None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layer, x = LAYERS[name](), (3 * torch.randn(4, 16, 12, 12)).requires_grad_()
        with counter or contextlib.nullcontext(), torch.inference_mode(is_inference):
            out = layer(x)
            if is_inference:
                return [out]
            out.square().sum().backward()
        return [out, *(each.grad for each in (x, *layer.parameters()) if each.grad is not None)]

    counter = ArithmeticCounter(nn.Linear(1, 1))
    plain, watched = results(None), results(counter)
    assert counter.failure == ""
    assert len(plain) == len(watched)
    assert all(map(torch.equal, plain, watched))
