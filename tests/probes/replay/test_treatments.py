"""What each treatment replays, and that nothing of the training's changes."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from lightning_perf.probes.clock import now_ns
from lightning_perf.probes.model.flops import ArithmeticCounter
from lightning_perf.probes.replay import threads
from lightning_perf.probes.replay.calls import CallLog, TensorSpec, specs_in
from lightning_perf.probes.replay.compare import HostWatch
from lightning_perf.probes.replay.operators import Arena, OperatorItem, choose_work
from lightning_perf.probes.replay.optimizer import ZeroingItem
from lightning_perf.probes.replay.probe import ReplayProbe
from lightning_perf.probes.replay.rewrites import convolutions_alone
from lightning_perf.probes.replay.treatments import Treated, apply_treatment
from lightning_perf.records import Hypothesis, Interval, Replayed
from tests.fakes import FakeClock

from .replaying import CPU, are_denormals_flushed, asked, call_of, logged, probe_of, snapshot


def treated_of(treatment, log):
    return apply_treatment(treatment, log, CPU, None)


def shapes_of(bound):
    return [spec.shape for spec in specs_in(bound)]


class Attention(nn.Module):
    """Written-out attention, with the softmax in ``dtype``."""

    def __init__(self, is_masked=False, dropout=0.0, dtype=None):
        super().__init__()
        self.project = nn.Linear(16, 48)
        self.is_masked, self.dropout, self.dtype = is_masked, nn.Dropout(dropout), dtype

    def forward(self, x):
        n, length, _ = x.shape
        q, k, v = (each.view(n, length, 2, 8).transpose(1, 2) for each in self.project(x).split(16, -1))
        scores = q @ k.transpose(-2, -1) / math.sqrt(8)
        if self.is_masked:
            scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -math.inf)
        return self.dropout(scores.softmax(-1, dtype=self.dtype).to(v.dtype)) @ v


class Multihead(nn.MultiheadAttention):
    """torch's own, which writes attention out where weights are wanted."""

    def forward(self, x):
        return super().forward(x, x, x, need_weights=True)[0]


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6)
    )


def denormal_layer():
    layer = nn.Linear(64, 64)
    layer.weight.data.mul_(1e-38)
    return layer


def test_attention_is_replaced_by_the_fused_one_when_it_is_written_out():
    (work,) = treated_of("fused-attention", logged(Attention(), torch.rand(4, 32, 16))).works
    assert [call.name for call in work.calls].count("aten::bmm") == 2
    ((function, args, named),) = work.treated
    assert function is nn.functional.scaled_dot_product_attention
    assert [spec.shape for spec in args] == [(4, 2, 32, 8)] * 3
    assert all(spec.needs_grad for spec in args)
    assert named == {"attn_mask": None}


def test_fused_attention_gets_the_mask_and_dropout_when_the_written_one_has_them():
    log = logged(Attention(is_masked=True, dropout=0.5), torch.rand(4, 32, 16))
    (work,) = treated_of("fused-attention", log).works
    named = work.treated[0][2]
    assert (named["attn_mask"].shape, named["attn_mask"].dtype) == ((32, 32), torch.bool)
    assert named["dropout_p"] > 0


def test_fused_attention_gets_no_dropout_when_only_casts_are_between_softmax_and_product():
    log = logged(Attention(dtype=torch.float32).bfloat16(), torch.rand(4, 32, 16).bfloat16())
    (work,) = treated_of("fused-attention", log).works
    assert "aten::_to_copy" in [call.name for call in work.calls]
    assert work.treated[0][2] == {"attn_mask": None}


def test_attention_of_torch_is_replaced_when_it_returns_weights():
    (work,) = treated_of("fused-attention", logged(Multihead(16, 2, batch_first=True), torch.rand(4, 32, 16))).works
    assert [spec.shape for spec in work.treated[0][1]] == [(1, 8, 32, 8)] * 3


@pytest.mark.needs_torch("2.5")  # an older one calls the usual softmax
def test_fused_attention_gets_no_dropout_when_dropout_is_why_torchs_function_has_no_kernel():
    layer = nn.TransformerEncoderLayer(16, 2, 16, dropout=0.1, batch_first=True)
    (work,) = treated_of("fused-attention", logged(layer, torch.rand(4, 32, 16))).works
    assert "aten::mul" in [call.name for call in work.calls]
    assert "dropout_p" not in work.treated[0][2]


def test_attention_is_not_found_when_products_are_without_a_softmax():
    class Products(nn.Linear):
        def forward(self, x):
            return super().forward(x) @ x.transpose(1, 2) @ x

    assert treated_of("fused-attention", logged(Products(8, 8), torch.rand(2, 4, 8))).works == ()


def test_layer_without_bias_computes_the_same_but_for_it_when_it_feeds_a_batch_norm():
    model = convolutions()
    works = treated_of("no-bias", logged(model, torch.rand(4, 3, 8, 8))).works
    assert [work.calls[0].name for work in works] == ["aten::convolution", "aten::addmm"]  # the second one has no norm
    x = torch.rand(4, 3, 8, 8)
    function, args, _ = works[0].treated[0]
    bias = model[0].bias[:, None, None]
    assert torch.allclose(function(x, model[0].weight, *args[2:]), model[0](x) - bias, atol=1e-6)
    assert works[1].treated[0][0] is torch.mm


def test_all_layers_go_without_bias_when_equal_norms_follow_different_ones():
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)]
    works = treated_of("no-bias", logged(nn.Sequential(*layers), torch.rand(4, 3, 8, 8))).works
    assert [work.calls[0].specs[0].shape[1] for work in works] == [3, 8]


def test_products_are_padded_when_their_dimensions_are_misaligned():
    log = logged(nn.Sequential(nn.Linear(70, 65), nn.Linear(65, 64), nn.Linear(64, 8)), torch.rand(64, 70))
    works = treated_of("pad=4", log).works
    assert [shapes_of(work.treated[0]) for work in works] == [[(68,), (64, 72), (72, 68)], [(64,), (64, 68), (68, 64)]]
    weight = specs_in(works[0].treated[0])[2]
    assert weight.stride == (1, 72)  # still transposed
    assert treated_of("pad=8", log).works == ()  # for 16 bit


def test_batch_is_doubled_where_tensors_belong_to_it():
    log = logged(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 6)), torch.rand(6, 6))
    treated = treated_of("batch=2", log)
    products = [work for work in treated.works if work.calls[0].name == "aten::addmm"]
    assert [shapes_of(work.treated[0]) for work in products] == [[(4,), (12, 6), (6, 4)], [(6,), (12, 4), (4, 6)]]
    assert {work.part for work in treated.works} == {0.5}
    item = OperatorItem(products[0], Arena(CPU, 4096), treated)
    assert item.treated_weight == item.weight / 2


def test_batch_cannot_be_replayed_when_its_size_is_not_known():
    log = logged(nn.Linear(4, 4), torch.rand(6, 4))
    log.n_samples = 0
    with pytest.raises(ValueError, match="size of the batch is not known"):
        treated_of("batch=2", log)


def test_batch_cannot_be_replayed_when_no_operator_reads_it():
    class Sampling(nn.Module):
        """Makes its own points, as solvers of differential equations do."""

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 4)

        def forward(self, batch):
            return self.layer(torch.rand(8, 2))

    log = logged(Sampling(), torch.ones(1))
    assert log.batch.is_read() is False
    with pytest.raises(ValueError, match="no operator of the step reads the batch"):
        treated_of("batch=2", log)
    log.batch.is_complete = False
    assert log.batch.is_read() is None
    assert logged(nn.Linear(4, 4), torch.rand(6, 4)).batch.is_read() is True


def test_call_keeps_its_backward_pass_when_an_operator_without_one_follows():
    class Scores(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            scores = self.layer(x)
            return scores + 0 * scores.argmax(-1, keepdim=True)

    log = logged(Scores(), torch.randn(4, 8))
    assert call_of(log, "aten::addmm").backward_ns > 0
    assert call_of(log, "aten::argmax").backward_ns == 0


def test_call_keeps_how_many_denormal_numbers_go_in_when_there_are_some():
    call = call_of(logged(denormal_layer(), torch.rand(32, 64)), "aten::addmm")
    assert [spec.denormal for spec in call.specs] == [0.0, 0.0, 1.0]
    assert call.gradient_denormal == 0.0
    scaled = call_of(logged(nn.Linear(64, 64), torch.rand(32, 64), scale=1e-37), "aten::addmm")
    assert scaled.gradient_denormal == 1.0
    assert scaled.has_denormals


@pytest.mark.parametrize("is_flushed", [False, True])
def test_arena_makes_denormal_numbers_whether_or_not_they_are_flushed(is_flushed):
    if is_flushed and not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush denormal numbers")
    try:
        made = Arena(CPU, 4096).tensor(TensorSpec((4096,), (1,), torch.float32, False, -1, 0.5))
    finally:
        torch.set_flush_denormal(False)
    assert ((made < 1e-38) & (made > 0)).float().mean().item() == pytest.approx(0.5, abs=0.05)


def test_convolutions_are_replayed_outside_of_autograd_when_cudnn_may_choose():
    model = nn.Conv2d(3, 8, 3)
    (work,) = convolutions_alone(logged(model, torch.rand(2, 3, 8, 8)))
    assert [bound[0] for bound in work.as_is] == [
        torch.ops.aten.convolution.default,
        torch.ops.aten.convolution_backward.default,
    ]
    assert not any(spec.needs_grad for bound in work.as_is for spec in specs_in(bound))
    item = OperatorItem(work, Arena(CPU, 4096), Treated())
    assert len(item.run(False, HostWatch(lambda: 0))) == 2


def test_zeroing_adds_to_zeros_or_replaces_when_gradients_are_cleared():
    parameter = nn.Parameter(torch.rand(8))
    parameter.grad = torch.rand(8)
    before = parameter.grad.clone()
    item = ZeroingItem(torch.optim.Adam([parameter]))
    (own,) = item._parameters
    kept, incoming = item._kept[0], item._incoming[0]
    item.run(False, HostWatch(lambda: 0))
    assert own.grad is kept
    assert torch.equal(kept, incoming)
    item.run(True, HostWatch(lambda: 0))
    assert own.grad is incoming
    assert torch.equal(parameter.grad, before)


class Mixed(nn.Linear):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x).relu()


def test_operators_are_in_float32_without_casts_when_full_precision_is_replayed():
    treated = treated_of("precision-32", logged(Mixed(8, 8), torch.rand(4, 8)))
    by_name = {work.calls[0].name: work for work in treated.works}
    assert by_name["aten::_to_copy"].treated == ()
    (product,) = by_name["aten::addmm"].as_is
    (in_full,) = by_name["aten::addmm"].treated
    assert {spec.dtype for spec in specs_in(product)} == {torch.bfloat16}
    assert {spec.dtype for spec in specs_in(in_full)} == {torch.float32}
    assert treated.concerned_s >= sum(work.seconds for work in treated.works)


REPLAYED = {
    "fused-attention": (Attention, (4, 32, 16)),
    "no-bias": (convolutions, (4, 3, 8, 8)),
    "pad=4": (lambda: nn.Linear(70, 65), (64, 70)),
    "batch=2": (convolutions, (4, 3, 8, 8)),
    "flush-denormal": (denormal_layer, (32, 64)),
    "zero-grad-none": (convolutions, (4, 3, 8, 8)),
    "precision-bf16": (convolutions, (4, 3, 8, 8)),
    "threads=2": (convolutions, (4, 3, 8, 8)),
    "fused-optimizer": (convolutions, (4, 3, 8, 8)),
    "channels-last": (convolutions, (4, 3, 8, 8)),
    "matmul-precision-high": (convolutions, (4, 3, 8, 8)),
    "deterministic-off": (convolutions, (4, 3, 8, 8)),
    "onednn": (convolutions, (4, 3, 8, 8)),
    "precision-32": (lambda: Mixed(8, 8), (4, 8)),
}


@pytest.mark.parametrize("treatment", REPLAYED)
def test_replay_leaves_everything_as_it_was_when_it_ran(treatment):
    make, shape = REPLAYED[treatment]
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    log = logged(model, torch.rand(shape))
    optimizer.step()
    before, settings = snapshot(model, optimizer)
    probe = probe_of(model, optimizer)
    with torch.no_grad():
        probe.answer(asked(treatment), log, trained_s=1000.0)
        assert not torch.is_grad_enabled()
    after, settings_after = snapshot(model, optimizer)
    assert settings == settings_after
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    (result,) = probe.record().results
    assert (result.reason, result.n_operators > 0) == ("", True)
    assert result.speedup.low <= result.speedup.value <= result.speedup.high


def test_replay_has_the_reason_when_a_treatment_is_for_another_device():
    model = convolutions()
    probe = probe_of(model)
    log = logged(model, torch.rand(4, 3, 8, 8))
    probe.answer(asked("cudnn-benchmark", "unheard-of"), log, trained_s=1000.0)
    reasons = [result.reason for result in probe.record().results]
    assert reasons == [
        "ValueError: cudnn.benchmark changes nothing on cpu",
        "ValueError: unheard-of cannot be replayed",
    ]


def test_settings_of_a_thread_stay_in_it_when_operators_run_elsewhere():
    seen = {}

    class Item:
        weight = treated_weight = 1.0

        def run(self, is_treated, watch):
            seen[is_treated] = are_denormals_flushed(), torch.get_num_threads()
            return []

    def settings():
        return threads.local_threads(3) if threads.can_set_threads_locally() else threads.flushed_denormals()

    n_threads = torch.get_num_threads()
    with threads.own_threads(threads.contextmanager(lambda: iter([None])), settings) as in_threads:
        item = in_threads(Item())
        for is_treated in (False, True):
            item.run(is_treated, None)
    assert seen[False] == (False, n_threads)
    assert seen[True] != (False, n_threads)
    assert (are_denormals_flushed(), torch.get_num_threads()) == (False, n_threads)


def test_new_threads_compute_with_as_many_threads_as_the_training():
    if not threads.can_set_threads_locally():
        pytest.skip("torch's OpenMP is not found")
    most = threads.torch_library().omp_get_max_threads
    n_threads, seen = torch.get_num_threads(), []

    class Item:
        weight = treated_weight = 1.0

        def run(self, is_treated, watch):
            seen.append(most())  # before any operator that asks for torch's number
            return []

    torch.set_num_threads(n_threads + 2)
    try:
        with threads.own_threads(nullcontext, nullcontext) as in_threads:
            for is_treated in (False, True):
                in_threads(Item()).run(is_treated, None)
    finally:
        torch.set_num_threads(n_threads)
    assert seen == [n_threads + 2] * 2


def test_operators_are_left_out_when_a_round_of_them_takes_too_long():
    log = logged(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(4, 2)), torch.rand(2, 8))
    for call, ns in zip([call for call in log.calls if call.name == "aten::addmm"], (10**9, 10**7, 10**6), strict=True):
        call.ns, call.backward_ns = ns, 0
    treated = treated_of("pad=4", log)._replace(works=treated_of("threads=1", log).works)
    assert choose_work(treated, True, most_s=0.1)[0].seconds == pytest.approx(0.01)
    assert choose_work(treated, True)[0].seconds == pytest.approx(1.0)
    assert choose_work(treated, True, most_s=0.1, longest_s=0.05)[0].seconds == pytest.approx(1.0)  # was traced


def test_time_left_goes_to_the_largest_undecided_hypothesis_when_all_were_measured(monkeypatch):
    clock = FakeClock()
    ratios = {"threads=1": [1.0, 2.0], "channels-last": [2.0]}

    def measured(self, hypothesis, until_ns):
        clock.advance(0.1)
        ratio = ratios[hypothesis.treatment].pop(0)
        speedup = Interval(value=ratio, low=ratio - 0.1, high=ratio + 0.1)
        return Replayed(treatment=hypothesis.treatment, n_operators=1, n_rounds=4, speedup=speedup)

    monkeypatch.setattr(ReplayProbe, "_measured", measured)
    probe = probe_of(convolutions(), clock=clock)
    probe.answer(asked("threads=1", "channels-last"), None, trained_s=1.0)
    assert [result.speedup.value for result in probe.record().results] == [2.0, 2.0]
    assert ratios == {"threads=1": [], "channels-last": []}


def test_replay_is_negligible_when_its_operators_take_too_little_of_the_step():
    model = convolutions()
    log = logged(model, torch.rand(4, 3, 8, 8))
    log.total_ns *= 10**6
    probe = probe_of(model)
    hypothesis = Hypothesis(treatment="no-bias", at_stake_s=10.0, least_part=0.02)
    probe.answer((hypothesis,), log, trained_s=1000.0)
    (result,) = probe.record().results
    assert result.is_negligible
    assert (result.n_rounds, result.speedup) == (0, None)
    assert not probe.answer((hypothesis,), log, trained_s=1000.0)


class OwnOptimizer(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})


@pytest.mark.parametrize(("treatment", "is_replayed"), [("threads=2", True), ("fused-optimizer", False)])
def test_operators_are_replayed_without_the_optimizer_when_its_step_cannot_be(treatment, is_replayed):
    model = nn.Linear(64, 64)
    probe = probe_of(model, OwnOptimizer(model.parameters()))
    probe.answer(asked(treatment), logged(model, torch.rand(64, 64)), trained_s=1000.0)
    (result,) = probe.record().results
    assert (result.speedup is not None) == is_replayed, result.reason
    assert ("OwnOptimizer" in result.reason) != is_replayed


class Words(nn.Module):
    """Embeds words, then attends, or runs a recurrence."""

    def __init__(self, inner, size=16):
        super().__init__()
        self.table, self.inner = nn.Embedding(50, size), inner

    def forward(self, ids):
        out = self.inner(self.table(ids))
        return out[0] if isinstance(out, tuple) else out


def test_sequences_are_shortened_in_products_and_attention_but_not_in_weights():
    log = logged(Words(Attention()), torch.ones(4, 32, dtype=torch.int64))
    works = treated_of("sequence=0.25", log).works
    treated = {work.calls[0].name: shapes_of(work.treated[0]) for work in works}
    assert treated["aten::addmm"] == [(48,), (4 * 8, 16), (16, 48)]
    assert treated["aten::_softmax"] == [(4, 2, 8, 8)]
    products = [shapes_of(work.treated[0]) for work in works if work.calls[0].name == "aten::bmm"]
    assert products == [[(8, 8, 8), (8, 8, 8)], [(8, 8, 8), (8, 8, 8)]]


def test_batch_times_heads_is_not_shortened_when_it_equals_the_length():
    attention = Words(Multihead(16, 8, batch_first=True))
    treated = {}
    for length in (32, 40):  # with 4 × 8 heads
        works = treated_of("sequence=0.25", logged(attention, torch.ones(4, length, dtype=torch.int64))).works
        treated[length] = [shapes_of(work.treated[0]) for work in works if work.calls[0].name == "aten::bmm"]
    assert treated[32] == [[(32, 8, 2), (32, 2, 8)], [(32, 8, 8), (32, 8, 2)]]
    assert treated[40] == [[(32, 10, 2), (32, 2, 10)], [(32, 10, 10), (32, 10, 2)]]


class Autocast(nn.Module):
    """Runs ``inner`` under autocast, which casts the weights."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(x).float()


class Series(nn.Sequential):
    """A linear layer on padded sequences of floats."""

    def __init__(self):
        super().__init__(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3))


def test_sequences_are_shortened_when_a_layer_gets_the_batch_as_a_matrix():
    batch = torch.rand(4, 32, 6)
    for place, sequence in enumerate(batch):
        sequence[8 * place + 8 :] = 0
    log = CallLog(4, [batch, torch.arange(8, 40, 8)])
    with ArithmeticCounter(model := Series(), now_ns=now_ns, times_operators=True, log=log) as counter:
        counter.direction = "forward"
        model(batch).square().mean().backward()
    first = treated_of("sequence=0.5", log).works[0]
    assert shapes_of(first.treated[0]) == [(20,), (4 * 16, 6), (6, 20)]


def test_operators_of_a_recurrence_run_less_often_when_sequences_are_shorter():
    works = treated_of(
        "sequence=0.25", logged(Words(nn.GRU(16, 8, batch_first=True)), torch.ones(4, 32, dtype=torch.int64))
    ).works
    assert works
    assert {work.part for work in works} <= {0.25, 1.0}
    repeated = next(work for work in works if work.part == 0.25)
    item = OperatorItem(repeated, Arena(CPU, 4096), Treated())
    assert item.treated_weight == item.weight / 4


@pytest.mark.parametrize(
    ("model", "shape", "why"),
    [
        (Words(nn.Linear(16, 32)), (4, 32), "also another size"),  # of a layer
        (Words(Autocast(nn.Linear(16, 32))), (4, 32), "also another size"),  # of a layer whose weight is cast
        (Words(Attention()), (4, 8), "also another size"),  # of a head
        (Words(nn.Linear(16, 4)), (32, 32), "also another size"),  # of the batch
        (nn.Linear(32, 4), (4, 32), "is not known"),
    ],
)
def test_shorter_sequences_are_not_replayed_when_the_length_is_not_clear(model, shape, why):
    batch = torch.rand(shape) if isinstance(model, nn.Linear) else torch.ones(shape, dtype=torch.int64)
    log = logged(model, batch)
    with pytest.raises(ValueError, match=why):
        treated_of("sequence=0.5", log)
