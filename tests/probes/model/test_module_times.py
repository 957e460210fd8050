"""Module times by device events, on a fake device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lightning_perf.probes.model import module_times
from lightning_perf.probes.model.module_times import REST, ModuleTime, ModuleTimes, mean_times, with_times


class Device:
    """A device clock that advances a millisecond per layer; the host clock does not move."""

    def __init__(self) -> None:
        self.ms = 0.0
        self.done_ms = float("inf")

    def event(self) -> Event:
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self.device, self.ms = device, 0.0

    def record(self) -> None:
        self.ms = self.device.ms

    def query(self) -> bool:
        return self.ms <= self.device.done_ms

    def elapsed_time(self, end: Event) -> float:
        return end.ms - self.ms


class Working(torch.autograd.Function):
    """Takes the device's time, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, device: Device, forward_ms: float, backward_ms: float) -> torch.Tensor:
        ctx.device, ctx.ms = device, backward_ms
        device.ms += forward_ms
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.device.ms += ctx.ms
        return gradients[0], None, None, None


class Layer(nn.Module):
    def __init__(self, device: Device, forward_ms: float, backward_ms: float) -> None:
        super().__init__()
        self.arguments = (device, forward_ms, backward_ms)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Working.apply(x, *self.arguments)


def looked_at(device: Device, *layers: Layer, outside_ms: float = 0.0) -> ModuleTimes:
    model = nn.ModuleDict({f"layer{i}": layer for i, layer in enumerate(layers)})
    look = ModuleTimes(model, 1, lambda: 0, device.event)
    look.open()
    look.enters("training_step")
    x = torch.ones(2, requires_grad=True)
    for layer in layers:
        x = layer(x)
    device.ms += outside_ms
    loss = x.sum()
    look.leaves("training_step")
    device.ms += 100.0  # between forward and backward
    look.enters("backward")
    loss.backward()
    look.leaves("backward")
    look.close()
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)
    return look


def test_modules_have_device_time_and_the_rest_is_separate() -> None:
    device = Device()
    times = looked_at(device, Layer(device, 2.0, 5.0), Layer(device, 3.0, 7.0), outside_ms=1.0).times()
    assert times is not None
    assert times["layer0"] == ModuleTime(pytest.approx(0.002), pytest.approx(0.005), 1)
    assert times["layer1"] == ModuleTime(pytest.approx(0.003), pytest.approx(0.007), 1)
    assert times[module_times.REST] == ModuleTime(pytest.approx(0.001), 0.0, 0)


def test_waits_for_other_ranks_are_no_modules_time() -> None:
    device = Device()

    class Exchanged(Layer):
        """As DDP, waits for the exchange of gradients at the end of backward, once the last one is there."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            engine: Any = torch.autograd.Variable._execution_engine
            x.register_hook(lambda _: engine.queue_callback(self.wait))
            return super().forward(x)

        def wait(self) -> None:
            device.ms += 50.0

    times = looked_at(device, Exchanged(device, 2.0, 5.0), Layer(device, 3.0, 7.0)).times()
    assert times is not None
    assert times["layer0"].backward_s == pytest.approx(0.005)
    assert times["layer1"].backward_s == pytest.approx(0.007)
    assert times[module_times.REST].backward_s == pytest.approx(0.050)


def test_outer_module_has_what_it_does_before_and_after_the_inner_one() -> None:
    device = Device()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Layer(device, 2.0, 5.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            device.ms += 10.0
            x = self.inner(x)
            device.ms += 20.0
            return x

    model = nn.ModuleDict({"outer": Outer(), "other": nn.Identity()})
    look = ModuleTimes(model, 2, lambda: 0, device.event)
    look.open()
    look.enters("training_step")
    model["outer"](torch.ones(2))
    look.leaves("training_step")
    look.close()
    times = look.times()
    assert times is not None
    assert times["outer"].forward_s == pytest.approx(0.030)
    assert times["outer.inner"].forward_s == pytest.approx(0.002)
    assert times[module_times.REST].forward_s == 0.0


def test_module_that_is_called_twice_has_both_calls_time() -> None:
    device = Device()
    layer = Layer(device, 2.0, 5.0)
    look = ModuleTimes(nn.ModuleDict({"layer": layer}), 1, lambda: 0, device.event)
    look.open()
    look.enters("training_step")
    x = torch.ones(2, requires_grad=True)
    x = layer(x)
    device.ms += 1.0
    loss = layer(x).sum()
    look.leaves("training_step")
    look.enters("backward")
    loss.backward()
    look.leaves("backward")
    look.close()
    times = look.times()
    assert times is not None
    assert times["layer"] == ModuleTime(pytest.approx(0.004), pytest.approx(0.010), 2)
    assert times[module_times.REST].forward_s == pytest.approx(0.001)


def test_gradients_asked_for_within_the_forward_pass_are_the_forward_passs_own() -> None:
    device = Device()
    layer = Layer(device, 2.0, 5.0)
    model = nn.ModuleDict({"layer": layer})
    look = ModuleTimes(model, 1, lambda: 0, device.event)
    look.open()
    look.enters("training_step")
    x = torch.ones(2, requires_grad=True)
    torch.autograd.grad(layer(x).sum(), x)
    look.leaves("training_step")
    look.close()
    times = look.times()
    assert times is not None
    assert times["layer"] == ModuleTime(pytest.approx(0.002), 0.0, 1)
    assert times[module_times.REST] == ModuleTime(pytest.approx(0.005), 0.0, 0)


def test_times_are_reported_once_device_events_completed() -> None:
    device = Device()
    look = looked_at(device, Layer(device, 2.0, 5.0))
    device.done_ms = 0.0
    assert not look.is_resolved()
    assert look.times() is None
    device.done_ms = device.ms
    times = look.times()
    assert times is not None
    assert times["layer0"].forward_s == pytest.approx(0.002)


def test_too_many_marks_end_the_look_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_times, "_MAX_EVENTS", 3)
    device = Device()
    look = looked_at(device, *(Layer(device, 1.0, 1.0) for _ in range(4)))
    assert "choose a smaller depth" in look.failure
    assert look.times() is None


def test_step_goes_on_when_the_devices_events_fail() -> None:
    device = Device()
    working, broken = device.event, 0

    def event() -> Event:
        nonlocal broken
        broken += 1
        if broken > 2:
            raise RuntimeError("planted")
        return working()

    device.event = event  # type: ignore[method-assign]
    look = looked_at(device, Layer(device, 1.0, 1.0), Layer(device, 1.0, 1.0))
    assert look.failure == "RuntimeError: planted"


def test_parameters_count_in_the_innermost_module_when_operations_were_not_counted() -> None:
    inner = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1, bias=False))
    root = nn.Module()
    root.inner, root.outer, root.scale = inner, nn.Linear(2, 2), nn.Parameter(torch.ones(5))
    times = dict.fromkeys(("inner", "outer", "inner.0", "inner.1", REST), ModuleTime(1.0, 1.0, 1))
    found = {module.path: module.n_parameters for module in with_times(None, root, torch.device("cpu"), times).modules}
    assert found == {"inner": 0, "outer": 6, "inner.0": 9, "inner.1": 3, REST: 5}


def test_mean_counts_a_module_that_did_not_run_as_no_time() -> None:
    mean = mean_times([{"a": ModuleTime(1.0, 2.0, 3), "b": ModuleTime(4.0, 0.0, 1)}, {"a": ModuleTime(3.0, 4.0, 2)}])
    assert mean == {"a": ModuleTime(2.0, 3.0, 3), "b": ModuleTime(2.0, 0.0, 1)}
