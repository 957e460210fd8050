"""Replays of real operators: what is run again, and that nothing of the training's is touched."""

from __future__ import annotations

import itertools
import time
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.torch_version import TorchVersion

from lightning_perf.options import DoctorOptions
from lightning_perf.probes.replay import compare as watch_module
from lightning_perf.probes.replay import probe as probe_module
from lightning_perf.probes.replay import threads, treatments
from lightning_perf.probes.replay.calls import CallLog, TensorSpec, specs_in
from lightning_perf.probes.replay.compare import Comparison, DeviceWatch, HostWatch
from lightning_perf.probes.replay.functions import function_of
from lightning_perf.probes.replay.operators import Arena, OperatorItem, choose_work, elements_for
from lightning_perf.probes.replay.optimizer import OptimizerItem, ZeroingItem, kinds_of_groups
from lightning_perf.probes.replay.probe import ReplayProbe
from lightning_perf.probes.replay.state import WORKSPACE_BYTES, CudaMemory, unchanged
from lightning_perf.probes.replay.treatments import apply_treatment
from lightning_perf.records import Interval
from tests.fakes import FakeClock, FakeDevice

from .replaying import CPU, asked, call_of, logged, probe_of


def layers():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(), nn.Dropout(0.1), nn.Linear(288, 8)
    )


def test_log_holds_forward_operators_with_their_backward_when_a_step_ran():
    log = logged(layers(), torch.rand(2, 3, 8, 8))
    convolution = call_of(log, "aten::convolution")
    assert convolution.n == 1
    assert convolution.specs[0].shape == (2, 3, 8, 8)
    assert [spec.needs_grad for spec in convolution.specs] == [False, True, True]
    assert convolution.backward_ns > 0
    assert call_of(log, "aten::addmm").backward_ns > 0
    assert log.total_ns >= sum(call.ns + call.backward_ns for call in log.calls)


def test_log_counts_calls_that_share_a_weight_when_a_layer_runs_often():
    layer = nn.Linear(4, 4)
    log = logged(nn.Sequential(layer, layer, layer), torch.rand(2, 4))
    assert sum(call.n for call in log.calls if call.func._schema.name == "aten::addmm") == 3
    assert max(call.n_uses for call in log.calls) == 2  # the first of three has no gradient for its input


@pytest.mark.parametrize("transposed", [False, True])
def test_function_computes_the_same_when_it_replaces_a_convolution(transposed):
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    model = kind(4, 6, 3, stride=2, padding=1, dilation=2, groups=2)
    function, args, kwargs = function_of(call_of(logged(model, torch.rand(2, 4, 9, 9)), "aten::convolution"))
    x = torch.rand(2, 4, 9, 9)
    filled = [x, model.weight, model.bias, *args[3:]]
    assert torch.equal(function(*filled, **kwargs), model(x))


def test_function_is_the_public_attention_when_a_kernel_was_seen():
    class Attention(nn.Module):
        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    log = logged(Attention(), torch.rand(1, 2, 16, 8, requires_grad=True))
    call = next(call for call in log.calls if "attention" in call.func._schema.name)
    function, args, kwargs = function_of(call)
    assert function is nn.functional.scaled_dot_product_attention
    assert len(args) == 3
    assert kwargs["is_causal"] is True


@pytest.mark.skipif(torch.__version__ < TorchVersion("2.5"), reason="heads were not shared")
def test_function_shares_keys_when_they_have_fewer_heads_than_queries():
    class Attention(nn.Module):
        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(x, x[:, :2], x[:, :2], enable_gqa=True)

    x = torch.rand(1, 8, 16, 8, requires_grad=True)
    log = logged(Attention(), x)
    call = next(call for call in log.calls if any(spec.shape == (1, 2, 16, 8) for spec in call.specs))
    function, args, kwargs = function_of(call)
    assert [spec.shape[1] for spec in args] == [8, 2, 2]
    assert torch.equal(function(x, x[:, :2], x[:, :2], **kwargs), Attention()(x))


def test_function_has_a_gradient_when_a_slice_is_assigned():
    class Filled(nn.Linear):
        def forward(self, x):
            out = torch.zeros(4, 8)
            out[1:3] = super().forward(x)
            return out

    call = call_of(logged(Filled(8, 8), torch.rand(2, 8)), "aten::copy_")
    function, (target, source), kwargs = function_of(call)
    assert (target.needs_grad, source.needs_grad) == (False, True)
    given, value = torch.zeros(2, 8), torch.rand(2, 8, requires_grad=True)
    out = function(given, value, **kwargs)
    assert torch.equal(out, value)
    assert not given.any()
    assert torch.equal(torch.autograd.grad(out.sum(), value)[0], torch.ones(2, 8))


def test_function_is_absent_when_the_time_depends_on_integers():
    class Lookup(nn.Embedding):
        def forward(self, x):
            return super().forward(x.long())

    assert function_of(call_of(logged(Lookup(8, 4), torch.rand(3)), "aten::embedding")) is None


def test_autocast_reaches_operators_fed_by_lower_precision_when_it_has_no_rule_for_them():
    log = logged(layers(), torch.rand(2, 3, 8, 8))
    arena = Arena(CPU, 4096)
    treated = apply_treatment("precision-bf16", log, CPU, arena.tensor)
    dtypes = {
        work.calls[0].name: [spec.dtype for spec in specs_in(work.treated[0])]
        for work in choose_work(treated, is_timed=False)
    }
    assert "aten::convolution" in dtypes
    norm = dtypes["aten::native_batch_norm"]
    assert norm == [torch.bfloat16] + [torch.float32] * (len(norm) - 1)
    assert dtypes["aten::relu_"] == [torch.bfloat16]


def test_arena_makes_tensors_as_specified_when_asked():
    spec = TensorSpec((4, 3), (1, 4), torch.bfloat16, True, -1)
    made = Arena(CPU, 64).tensor(spec)
    assert (tuple(made.shape), made.stride(), made.dtype) == ((4, 3), (1, 4), torch.bfloat16)
    assert made.requires_grad
    assert made.is_leaf


def test_arena_that_shows_dtypes_is_freed_before_operators_get_theirs(monkeypatch):
    arenas, n_alive = [], []

    class Counted(Arena):
        def __init__(self, *args):
            n_alive.append(sum(arena() is not None for arena in arenas))
            arenas.append(weakref.ref(self))
            super().__init__(*args)

    monkeypatch.setattr(probe_module, "Arena", Counted)
    model = layers()
    probe_of(model).answer(asked("precision-bf16"), logged(model, torch.rand(2, 3, 8, 8)), trained_s=1.0)
    assert n_alive == [0, 0]


@pytest.mark.parametrize("starts_over", [False, True])
def test_arena_begins_each_operator_at_the_same_place_when_it_starts_over(starts_over):
    arena = Arena(CPU, 4096)
    arena.starts_over = starts_over
    places = []
    for _ in range(2):
        arena.begin_operator()
        places.append([arena.tensor(TensorSpec((64,), (1,), torch.float32, False, -1)).data_ptr() for _ in range(2)])
    assert places[0][0] != places[0][1]
    assert (places[0] == places[1]) == starts_over


@pytest.mark.parametrize(
    ("cold", "warm", "expected"),
    [
        ((1.4, 1.6), (2.0, 2.4), (1.4, 2.4)),
        ((1.4, 1.6), (0.7, 0.9), (0.7, 1.6)),  # nothing is certain
        ((1.4, 1.6), None, (1.4, 1.6)),
        ((0.8, 1.6), (0.8, 1.6), (0.8, 1.6)),  # not asked: the second one tries again
    ],
)
def test_interval_includes_operators_whose_tensors_are_in_caches_when_a_treatment_is_faster(
    monkeypatch, cold, warm, expected
):
    arenas, intervals = [], iter([cold, warm])

    def compared(items, *_):
        arenas.append(items[0]._arena.starts_over)
        found = next(intervals)
        speedup = None if found is None else Interval(value=1.5, low=found[0], high=found[1])
        return watch_module.Comparison(0.1, 0.1, 9, speedup)

    monkeypatch.setattr(probe_module, "compare", compared)
    model = nn.Linear(64, 64).double()
    probe = probe_of(model)
    probe.answer(asked("float32"), logged(model, torch.rand(64, 64).double()), trained_s=1000.0)
    (result,) = probe.record().results
    assert (result.speedup.low, result.speedup.high) == expected
    assert (True in arenas) == (cold[0] > 1)


@pytest.mark.parametrize("starts_over", [False, True])
def test_operators_take_their_tensors_from_the_same_place_when_the_arena_starts_over(starts_over):
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(9)))
    log = logged(model, torch.rand(4, 8))
    arena = Arena(CPU, 2**20)
    arena.starts_over = starts_over
    treated = apply_treatment("threads=2", log, CPU, None)
    item = OperatorItem(treated.works[0], arena, treated)
    places = []
    for _ in range(2):
        item.run(False, HostWatch(time.perf_counter_ns))
        places.append(arena._place)
    assert (places[0] == places[1]) == starts_over


def test_arena_holds_the_tensors_of_all_calls_when_equal_operators_are_one():
    def elements(n_layers):
        model = nn.Sequential(*(nn.GELU() for _ in range(n_layers)))
        log = logged(model, torch.rand(8, 512, requires_grad=True))
        probe = probe_of(nn.Linear(1, 1), memory=SimpleNamespace(free_bytes=lambda: 2**30))
        probe._is_timed = False
        arena, _ = probe._operators(apply_treatment("threads=2", log, CPU, None), until_ns=0)
        return arena.n_elements

    assert elements(8) - elements(4) == 2 * 4 * 8 * 512  # as it is, and with the treatment


@pytest.mark.parametrize("is_detached", [False, True])
def test_backward_is_not_replayed_when_nothing_needs_it(is_detached):
    class Target(nn.Linear):
        def forward(self, x):
            target = super().forward(x)
            return x * (target.detach() if is_detached else target)

    log = logged(Target(8, 8), torch.rand(4, 8, requires_grad=True))
    (work,) = (work for work in apply_treatment("threads=2", log, CPU, None).works if work.calls[0].n_out == 4 * 8
               and work.calls[0].name == "aten::addmm")  # fmt: skip
    item = OperatorItem(work, Arena(CPU, 4096), treatments.Treated())
    assert len(item.run(False, HostWatch(time.perf_counter_ns))) == (1 if is_detached else 2)


@pytest.mark.parametrize("treatment", ["precision-bf16", "threads=2", "channels-last", "matmul-precision-high"])
def test_replay_gives_an_interval_when_there_is_time(treatment):
    model = layers()
    probe = probe_of(model)
    assert probe.answer(asked(treatment), logged(model, torch.rand(2, 3, 8, 8)), trained_s=1000.0)
    (result,) = probe.record().results
    assert result.reason == ""
    assert result.speedup.low <= result.speedup.value <= result.speedup.high
    assert result.n_operators > 0
    assert result.before_s > 0


def test_replay_converts_doubles_when_float32_is_asked():
    model = nn.Linear(8, 8).double()
    probe = probe_of(model)
    probe.answer(asked("float32"), logged(model, torch.rand(4, 8, dtype=torch.float64)), trained_s=1000.0)
    assert probe.record().results[0].speedup is not None


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_replay_restores_the_threads_when_the_process_exits(monkeypatch, error):
    def interrupted(*args):
        torch.set_num_threads(3)
        raise error

    monkeypatch.setattr(probe_module, "compare", interrupted)
    model = layers()
    log = logged(model, torch.rand(2, 3, 8, 8))
    n_threads, stream = torch.get_num_threads(), torch.get_rng_state()
    with pytest.raises(error):
        probe_of(model).answer(asked("threads=3"), log, trained_s=1000.0)
    assert torch.get_num_threads() == n_threads
    assert torch.equal(torch.get_rng_state(), stream)


class Graph(nn.Module):
    """Averages over the neighbors of a graph, whose matrix is sparse."""

    def __init__(self, layout, product=torch.sparse.mm):
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 1)
        self.neighbors, self.product = torch.eye(64).to_sparse(layout=layout), product

    def forward(self, x):
        return self.last(self.product(self.neighbors, self.first(x)).relu())


class Interpolation(nn.Linear):
    def forward(self, x):
        return super().forward(torch.lerp(x, super().forward(x), torch.rand(len(x), 1)))


def test_no_lower_precision_is_replayed_when_an_operator_fails_in_it():
    model, batch = Interpolation(16, 16), torch.rand(64, 16)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError, match="BFloat16"):
        model(batch)
    probe = probe_of(model)
    probe.answer(asked("precision-bf16"), logged(model, batch), trained_s=1000.0)
    found = probe.record().results[0]
    assert found.is_negligible
    assert "lerp fails with it" in found.reason


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize(
    ("layout", "product", "fails"),
    [
        (torch.sparse_csr, torch.sparse.mm, True),
        (torch.sparse_csr, torch.mm, True),
        (torch.sparse_coo, torch.sparse.mm, True),  # in the backward pass
        (torch.sparse_coo, torch.mm, False),
    ],
)
def test_no_lower_precision_is_replayed_where_sparse_products_fail_in_it(layout, product, fails):
    model = Graph(layout, product)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.rand(64, 16)).sum()
        loss.backward()
        assert not fails, "torch has such products now: the test needs another layout"
    except RuntimeError:
        assert fails
    probe = probe_of(model)
    probe.answer(asked("precision-bf16"), logged(model, torch.rand(64, 16)), trained_s=1000.0)
    found = probe.record().results[0]
    assert found.is_negligible == fails
    assert (f"products with {layout} matrices fail with it" in found.reason) == fails
    assert (found.speedup is None) == fails


def test_replay_reports_the_reason_when_it_fails(monkeypatch):
    def broken(*args):
        raise RuntimeError("no such kernel\nmore")

    monkeypatch.setattr(probe_module, "compare", broken)
    model = layers()
    probe = probe_of(model)
    probe.answer(asked("precision-bf16"), logged(model, torch.rand(2, 3, 8, 8)), trained_s=1000.0)
    assert probe.record().results[0].reason == "RuntimeError: no such kernel"


@pytest.mark.parametrize("option", ["replay", "arithmetic"])
def test_option_that_leaves_nothing_to_replay_is_the_reason(option):
    run = SimpleNamespace(options=DoctorOptions(**{option: False}), missing={})
    assert ReplayProbe.open(run) is None
    assert run.missing == {"replay": f"{option}=False"}


def test_replay_is_refused_when_others_would_see_it():
    model = layers()
    log = logged(model, torch.rand(2, 3, 8, 8))
    within = probe_of(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert not within.answer(asked("precision-bf16"), log, 1000.0)
    assert "within torch.autocast" in within.missing["replay"]
    profiled = probe_of(model)
    with torch.profiler.profile():
        assert not profiled.answer(asked("precision-bf16"), log, 1000.0)
    assert "profiler" in profiled.missing["replay"]


def test_replay_measures_on_rank_0_only_when_there_are_several():
    model = layers()
    log = logged(model, torch.rand(2, 3, 8, 8))
    probe = probe_of(model)
    assert probe.answer(asked("channels-last"), log, trained_s=1000.0)
    assert probe.record().results[0].speedup is not None
    other = probe_of(model)
    other._trainer.is_global_zero = False
    assert not other.answer(asked("channels-last"), log, trained_s=1000.0)
    assert other.missing["replay"] == "rank 0 replays"


def test_nothing_is_replayed_when_the_run_is_asked_to_end():
    model = layers()
    probe = probe_of(model)
    probe._trainer.received_sigterm = True
    probe.answer(asked("channels-last"), logged(model, torch.rand(2, 3, 8, 8)), trained_s=1000.0)
    (found,) = probe.record().results
    assert (found.speedup, found.reason) == (None, "the run was asked to end")


def test_replay_is_refused_when_threads_cannot_be_started(monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads.threading.Thread, "start", refuse)
    with pytest.raises(ValueError, match="only 0 more threads can be started, and 4 are needed"):
        threads._require_threads(4)


def on_a_device(model, clock, device, memory=None):
    """A probe whose operators run on the CPU and whose events are a fake device's."""
    probe = probe_of(model, clock=clock, memory=memory or CudaMemory(CPU, FakeCuda()))
    probe._is_timed, probe._watch = False, DeviceWatch(device.event)
    return probe


def test_replay_times_operators_by_events_when_they_run_on_a_device(monkeypatch):
    model = layers()
    log = logged(model, torch.rand(2, 3, 8, 8))
    clock = FakeClock()
    device = FakeDevice(clock)
    probe = on_a_device(model, clock, device)
    real = OperatorItem.run

    def launching(self, is_treated, watch):
        device.launch(0.002 if is_treated else 0.003)
        clock.advance(0.01)
        begin = watch.mark()
        real(self, is_treated, watch)
        device.launch(0.002 if is_treated else 0.003)
        end = watch.mark()
        clock.advance(0.01)
        return [(begin, end)]

    monkeypatch.setattr(OperatorItem, "run", launching)
    probe.answer(asked("channels-last"), log, trained_s=1000.0)
    record = probe.record()
    (result,) = record.results
    assert result.reason == ""
    assert result.speedup.value == pytest.approx(1.5)
    assert (record.operators_s, result.seen_s, result.concerned_s) == (None, None, None)


class BrokenEvent:
    """An event of a device that fails."""

    def __init__(self, failing):
        self._failing = failing

    def _maybe_fail(self, name):
        if name == self._failing:
            raise RuntimeError(f"CUDA error in {name}")

    def record(self):
        self._maybe_fail("record")

    def query(self):
        self._maybe_fail("query")
        return True

    def elapsed_time(self, end):
        self._maybe_fail("elapsed_time")
        return 1.0


@pytest.mark.parametrize("failing", ["record", "query", "elapsed_time"])
def test_replay_is_a_reason_when_an_event_fails(failing):
    model = layers()
    clock = FakeClock()
    probe = on_a_device(model, clock, FakeDevice(clock))
    probe._watch = DeviceWatch(lambda: BrokenEvent(failing))
    probe.answer(asked("channels-last"), logged(model, torch.rand(2, 3, 8, 8)), trained_s=1000.0)
    assert probe.record().results[0].reason == f"RuntimeError: CUDA error in {failing}"


@pytest.mark.parametrize("failing", ["mem_get_info", "memory_allocated", "MemPool", "use_mem_pool"])
def test_replay_is_a_reason_when_the_device_memory_fails(failing):
    def broken(*args, **kwargs):
        raise RuntimeError("CUDA error: out of memory")

    cuda = FakeCuda()
    setattr(cuda, failing, broken)
    model = layers()
    clock = FakeClock()
    probe = on_a_device(model, clock, FakeDevice(clock), CudaMemory(CPU, cuda))
    log = logged(model, torch.rand(2, 3, 8, 8))
    stream = torch.get_rng_state()
    probe.answer(asked("channels-last"), log, trained_s=1000.0)
    assert probe.record().results[0].reason == "RuntimeError: CUDA error: out of memory"
    assert torch.equal(torch.get_rng_state(), stream)
    assert cuda.pools == []


def test_replay_is_a_reason_when_the_device_never_finishes(monkeypatch):
    monkeypatch.setattr(watch_module, "_DEVICE_TIMEOUT_S", 0.0)
    monkeypatch.setattr(BrokenEvent, "query", lambda self: False)
    model = layers()
    clock = FakeClock()
    probe = on_a_device(model, clock, FakeDevice(clock))
    probe._watch = DeviceWatch(lambda: BrokenEvent(""))
    probe.answer(asked("channels-last"), logged(model, torch.rand(2, 3, 8, 8)), trained_s=1000.0)
    assert "the device did not finish" in probe.record().results[0].reason


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")
def test_replay_is_a_reason_when_cuda_cannot_be_used():
    model = layers()
    probe = probe_of(model)
    probe._device = torch.device("cuda")
    probe.answer(asked("channels-last"), logged(model, torch.rand(2, 3, 8, 8)), trained_s=1000.0)
    assert probe.record().results[0].reason


def test_replay_reports_missing_memory_when_memory_is_short():
    class Full:
        def free_bytes(self):
            return 1000

        @contextmanager
        def scope(self):
            yield

    model = layers()
    probe = probe_of(model, memory=Full())
    probe.answer(asked("precision-bf16"), logged(model, torch.rand(2, 3, 8, 8)), trained_s=1000.0)
    assert "not enough for the largest operator" in probe.record().results[0].reason


def test_arena_fits_when_there_is_room_for_it_and_for_results_casts_and_gradients():
    log = logged(nn.Linear(512, 512, bias=False), torch.rand(256, 512))
    call = call_of(log, "aten::mm")
    n = 256 * 512 + 512 * 512 + 256 * 512  # of arguments and results
    assert call.n_out == 256 * 512
    needed_bytes = (n + 1024) * (4 + 2 + 2 * 4)  # in float32 and half precision; results and gradients, with casts
    assert elements_for([(call.specs, call.n_out, 1)], needed_bytes) == n + 1024
    with pytest.raises(MemoryError):
        elements_for([(call.specs, call.n_out, 1)], needed_bytes - 100)


def test_replay_does_not_ask_again_when_a_treatment_was_answered():
    model = layers()
    probe = probe_of(model)
    log = logged(model, torch.rand(2, 3, 8, 8))
    assert probe.answer(asked("channels-last"), log, 1000.0)
    assert not probe.answer(asked("channels-last"), log, 1000.0)


def test_optimizer_is_replayed_on_copies_of_a_sample_when_it_is_large():
    parameters = [nn.Parameter(torch.rand(100)) for _ in range(40)]
    optimizer = torch.optim.Adam(parameters, foreach=False, weight_decay=0.1)
    for parameter in parameters:
        parameter.grad = torch.rand(100)
    before = [parameter.detach().clone() for parameter in parameters]
    item = OptimizerItem(optimizer, {"fused": True}, n_elements=1000)
    assert sum(len(group["params"]) for group in item._sides[False].param_groups) == 10
    assert item.weight == pytest.approx(4.0)
    for is_treated in (False, True):
        item.run(is_treated, HostWatch(FakeClock()))
    assert [group["fused"] for group in item._sides[True].param_groups] == [True]
    assert item._sides[False].param_groups[0]["weight_decay"] == 0.1
    assert not optimizer.state
    assert all(torch.equal(one, other) for one, other in zip(before, parameters, strict=True))


def split_optimizer():
    parameters = [nn.Parameter(torch.rand(2)) for _ in range(6)]
    groups = [{"params": [each], "weight_decay": 0.1 * (place % 2)} for place, each in enumerate(parameters)]
    return torch.optim.AdamW(groups, fused=True)


def test_optimizer_is_replayed_with_equal_groups_as_one():
    optimizer = split_optimizer()
    item = OptimizerItem(optimizer, {}, kinds=kinds_of_groups(optimizer, []))
    for is_treated in (False, True):
        item.run(is_treated, HostWatch(FakeClock()))
    as_is, joined = item._sides[False].param_groups, item._sides[True].param_groups
    assert [len(group["params"]) for group in as_is] == 6 * [1]
    kept = [(len(group["params"]), group["weight_decay"], group["fused"]) for group in joined]
    assert kept == [(3, 0.0, True), (3, 0.1, True)]


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        ({}, "without a Trainer, the schedules of parameter groups are not known"),
        ({"lr_scheduler_configs": []}, "no two parameter groups have the same arguments any more"),
    ],
)
def test_groups_are_not_joined_when_that_is_not_known_to_change_nothing(configs, reason):
    model = nn.Linear(2, 2)
    probe = probe_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    vars(probe._trainer).update(configs)
    probe.answer(asked("joined-groups"), None, 1000.0)
    (found,) = probe.record().results
    assert found.speedup is None
    assert found.reason.endswith(reason)


def test_groups_are_not_replayed_as_one_on_a_sample_of_the_parameters():
    optimizer = split_optimizer()
    with pytest.raises(ValueError, match="too large to replay all of its parameter groups"):
        OptimizerItem(optimizer, {}, n_elements=8, kinds=kinds_of_groups(optimizer, []))


@pytest.mark.parametrize(
    ("schedule", "n_kinds"),
    [
        (lambda one: torch.optim.lr_scheduler.LambdaLR(one, lambda epoch: 0.9**epoch), 2),
        (lambda one: torch.optim.lr_scheduler.LambdaLR(one, [lambda epoch: 1.0 for _ in range(6)]), 6),
        (lambda one: torch.optim.lr_scheduler.CyclicLR(one, 1e-3, [0.1, 0.1, 0.1, 0.1, 0.2, 0.2]), 4),
        (
            lambda one: torch.optim.lr_scheduler.SequentialLR(
                one,
                [
                    torch.optim.lr_scheduler.ConstantLR(one),
                    torch.optim.lr_scheduler.LambdaLR(one, [lambda epoch: 1.0 for _ in range(6)]),
                ],
                [3],
            ),
            6,
        ),
    ],
)
def test_groups_with_schedules_of_their_own_are_not_joined(schedule, n_kinds):
    optimizer = split_optimizer()
    kinds = kinds_of_groups(optimizer, [schedule(optimizer), schedule(split_optimizer())])
    assert len(set(kinds.values())) == n_kinds
    assert OptimizerItem(optimizer, {}, kinds=kinds).is_changed is (n_kinds < 6)


def test_optimizer_counts_once_for_the_batches_of_a_step():
    optimizer = torch.optim.AdamW([nn.Parameter(torch.rand(2))])
    assert OptimizerItem(optimizer, {}, n_batches=8).weight == OptimizerItem(optimizer, {}).weight / 8
    assert ZeroingItem(optimizer, n_batches=8).treated_weight == ZeroingItem(optimizer).treated_weight / 8


def test_hooks_on_all_optimizers_see_no_replayed_step():
    item = OptimizerItem(torch.optim.AdamW([nn.Parameter(torch.rand(2))]), {"fused": True})
    seen = []
    handles = [
        register_optimizer_step_pre_hook(lambda *_: seen.append("before")),
        register_optimizer_step_post_hook(lambda *_: seen.append("after")),
    ]
    try:
        for is_treated in (False, True):
            item.run(is_treated, HostWatch(FakeClock()))
    finally:
        for handle in handles:
            handle.remove()
    assert seen == []
    assert [side.state[side.param_groups[0]["params"][0]]["step"].item() for side in item._sides.values()] == [1, 1]


@pytest.mark.parametrize("treatment", ["fused-optimizer", "zero-grad-none", "sparse-embeddings"])
def test_optimizers_are_not_copied_when_no_memory_is_free(treatment):
    model = nn.Embedding(50, 8)
    cuda = FakeCuda()
    cuda.peak = 0
    clock = FakeClock()
    probe = on_a_device(model, clock, FakeDevice(clock), CudaMemory(CPU, cuda))
    probe.answer(asked(treatment), logged(model, torch.arange(4)), trained_s=1000.0)
    assert "MemoryError" in probe.record().results[0].reason


def test_optimizers_share_the_memory_that_is_free(monkeypatch):
    sizes = []
    monkeypatch.setattr(probe_module, "ZeroingItem", lambda _, n_elements, n_batches: sizes.append(n_elements))
    probe = probe_of(nn.Linear(2, 2), memory=SimpleNamespace(free_bytes=lambda: 32 * 1000))
    probe._trainer.optimizers = [torch.optim.SGD([nn.Parameter(torch.rand(2))]) for _ in range(2)]
    probe._optimizer_items("zero-grad-none")
    assert sizes == [500, 500]


def test_optimizer_is_refused_when_its_step_is_the_users():
    class Own(torch.optim.SGD):
        pass

    with pytest.raises(ValueError, match="not one of torch's optimizers"):
        OptimizerItem(Own([nn.Parameter(torch.rand(2))], lr=0.1), {"foreach": True})


@pytest.mark.needs_torch("2.5")
def test_optimizers_of_torch_are_replayed_when_their_class_names_the_package_as_its_module():
    optimizer = torch.optim.Adafactor([nn.Parameter(torch.rand(2, 2))])
    assert type(optimizer).__module__ == "torch.optim"
    OptimizerItem(optimizer, {}).run(False, HostWatch(FakeClock()))


@pytest.mark.parametrize("kind", [torch.optim.RMSprop, torch.optim.SparseAdam])
def test_optimizer_stays_as_it_is_when_it_does_not_take_the_argument(kind):
    item = OptimizerItem(kind([nn.Parameter(torch.rand(2))]), {"fused": True})
    assert not item.is_changed
    assert "fused" not in item._sides[True].param_groups[0]


def test_optimizer_is_refused_when_it_gets_sparse_gradients():
    table = nn.Embedding(9, 2, sparse=True)
    table(torch.arange(3)).sum().backward()
    with pytest.raises(ValueError, match="sparse gradients are not replayed"):
        OptimizerItem(torch.optim.SGD(table.parameters()), {})


class FakeCuda:
    """The parts of ``torch.cuda`` that ``CudaMemory`` uses."""

    def __init__(self):
        self.pools = []

    peak = 2**31

    def mem_get_info(self, device):
        return 2**32, 2**33

    def max_memory_allocated(self, device):
        return self.peak

    def memory_allocated(self, device):
        return 700

    def MemPool(self):
        return object()

    @contextmanager
    def use_mem_pool(self, pool, device):
        self.pools.append(pool)
        try:
            yield
        finally:
            self.pools.remove(pool)


def test_replay_memory_of_a_device_stays_below_the_peak_when_little_is_free():
    cuda = FakeCuda()
    cuda.peak = 900 + WORKSPACE_BYTES
    memory = CudaMemory(CPU, cuda)
    assert memory.free_bytes() == 200
    with memory.scope():
        assert len(cuda.pools) == 1
    assert cuda.pools == []


def test_random_stream_is_restored_when_a_random_operator_is_replayed():
    class Dropping(nn.Linear):
        def forward(self, x):
            return torch.native_dropout(super().forward(x), 0.5, True)[0]

    model = Dropping(8, 8)
    log = logged(model, torch.rand(4, 8))
    assert function_of(call_of(log, "aten::native_dropout")) is not None
    stream = torch.get_rng_state()
    probe_of(model).answer(asked("threads=1"), log, trained_s=1000.0)
    assert torch.equal(torch.get_rng_state(), stream)


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_random_stream_of_a_device_is_restored(monkeypatch, kind):
    device, states = torch.device(kind), ["of the training"]
    monkeypatch.setattr(getattr(torch, kind), "get_rng_state", lambda of: states[-1] if of == device else None)
    monkeypatch.setattr(getattr(torch, kind), "set_rng_state", lambda state, of: states.append(state))
    with unchanged(device):
        states.append("after dropout")
    assert states[-1] == "of the training"


def test_function_is_absent_when_a_call_only_checks_a_tensor():
    class Checked(nn.Linear):
        def forward(self, x):
            torch._assert_async((x == x).all())
            return super().forward(x)

    log = logged(Checked(4, 4), torch.rand(2, 4))
    assert function_of(call_of(log, "aten::_assert_async")) is None
    assert function_of(call_of(log, "aten::addmm")) is not None


def test_replay_starts_nothing_when_operators_took_longer_than_the_time_left(monkeypatch):
    model = layers()
    log = logged(model, torch.rand(2, 3, 8, 8))
    for call in log.calls:
        call.ns = 10**9
    monkeypatch.setattr(probe_module, "compare", lambda *args: pytest.fail("replayed"))
    probe = probe_of(model)
    probe.answer(asked("threads=2"), log, trained_s=1.0)
    (found,) = probe.record().results
    assert "s are left" in found.reason
    assert found.speedup is None


def test_autocast_inspection_stops_when_the_time_is_up():
    model = layers()
    log = logged(model, torch.rand(2, 3, 8, 8))
    ticks = itertools.count(0, 10**9)
    probe = probe_of(model, clock=lambda: next(ticks))
    probe.answer(asked("precision-bf16"), log, trained_s=1.0)
    (found,) = probe.record().results
    assert "no time to run each operator once" in found.reason


def test_backends_keep_their_own_precision_when_tf32_was_replayed():
    if not hasattr(torch.backends.mkldnn, "matmul") or not hasattr(torch.backends.mkldnn.matmul, "fp32_precision"):
        pytest.skip("this torch has one precision for all backends")
    backends = [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul]
    before = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = "none"
    try:
        with apply_treatment("matmul-precision-high", CallLog(), CPU, None).around_pass():
            assert torch.get_float32_matmul_precision() == "high"
        assert [backend.fp32_precision for backend in backends] == ["none", "none"]
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision


@pytest.mark.skipif(not threads.can_set_threads_locally(), reason="this torch sets no number of threads per thread")
@pytest.mark.parametrize(("n_cores", "high"), [(0, 4.2), (64, 1.2)])
def test_fewer_threads_may_scale_from_one_when_the_process_has_more_than_cores(monkeypatch, n_cores, high):
    fewer, one = Interval(value=1.1, low=1.05, high=1.2), Interval(value=2.0, low=1.9, high=2.1)
    seen = []

    def compared(items, *arguments):
        n_threads = items[0]._threads[True].call(torch.get_num_threads)
        seen.append(n_threads)
        return Comparison(0.02, 0.01, 8, one if n_threads == 1 else fewer)

    monkeypatch.setattr(treatments, "affine_cores", lambda: list(range(n_cores)))
    monkeypatch.setattr(probe_module, "compare", compared)
    model = layers()
    log = logged(model, torch.rand(2, 3, 8, 8))
    probe = probe_of(model)
    probe.answer(asked("threads=2"), log, trained_s=1000.0)
    (found,) = probe.record().results
    assert (found.speedup.low, found.speedup.high) == (1.05, high)
    assert seen == ([2, 2, 1] if n_cores == 0 else [2, 2])
