"""Synchronizing calls of a device: those that it reports, and copies to the host."""

from __future__ import annotations

import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lightning_perf.probes.sampled_steps.code_lines import NOWHERE, StackView
from lightning_perf.probes.sampled_steps.device_warnings import DeviceWarnings, sync_debug_of
from lightning_perf.probes.sampled_steps.operator_tracer import sync_label

HERE = Path(__file__).name
MESSAGE = "called a synchronizing CUDA operation (Triggered internally at ...)"


class FakeDebug:
    """Warns when it is switched on, as torch does."""

    def __init__(self, mode: int = 0) -> None:
        self.mode = mode
        self.modes: list[int] = []

    def get_sync_debug_mode(self) -> int:
        return self.mode

    def set_sync_debug_mode(self, mode: int) -> None:
        self.mode = mode
        self.modes.append(mode)
        if mode:
            warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=1)


def test_line_is_counted_when_it_synchronizes_repeatedly():
    debug, line = FakeDebug(), 0
    traced = DeviceWarnings(debug)
    with warnings.catch_warnings(record=True) as others:
        warnings.simplefilter("always")
        traced.open()
        for _ in range(3):
            line = sys._getframe().f_lineno + 1
            warnings.warn(MESSAGE, stacklevel=1)
        warnings.warn("the user's own", stacklevel=1)
        traced.close()
    assert [str(each.message) for each in others] == ["the user's own"]
    ((place, n),) = traced.n_by_place.items()
    assert (Path(place.file).name, place.line, place.owner, n) == (HERE, line, "user", 3)
    assert debug.modes == [1, 0]


def test_filters_are_put_back_when_the_step_is_over():
    before, shows = list(warnings.filters), warnings.showwarning
    traced = DeviceWarnings(FakeDebug())
    traced.open()
    traced.close()
    traced.close()
    assert list(warnings.filters) == before
    assert warnings.showwarning is shows


def test_warnings_are_shown_as_before_when_python_keeps_filters_by_context(monkeypatch):
    """As without the GIL from 3.14 on, where `catch_warnings` does not restore `showwarning`."""
    monkeypatch.setattr(warnings, "catch_warnings", nullcontext)
    monkeypatch.setattr(warnings, "filters", list(warnings.filters))
    shows, traced = warnings.showwarning, DeviceWarnings(FakeDebug())
    traced.open()
    assert warnings.showwarning is not shows
    traced.close()
    assert warnings.showwarning is shows


@pytest.mark.parametrize("mode", [1, 2])
def test_mode_is_left_alone_when_the_user_has_set_it(mode):
    debug = FakeDebug(mode)
    traced = DeviceWarnings(debug)
    traced.open()
    traced.close()
    assert (debug.mode, debug.modes) == (mode, [])
    assert "left as it is" in traced.failure


def test_filters_are_put_back_when_the_device_refuses():
    class Refuses(FakeDebug):
        def set_sync_debug_mode(self, mode: int) -> None:
            if mode:
                raise RuntimeError("no such mode")

    before = list(warnings.filters)
    with pytest.raises(RuntimeError):
        DeviceWarnings(Refuses()).open()
    assert list(warnings.filters) == before


def test_there_is_no_mode_when_the_device_is_a_cpu():
    assert sync_debug_of(torch.device("cpu")) is None


@pytest.mark.parametrize(
    ("is_async", "is_pinned", "waits"), [(False, True, True), (True, False, True), (True, True, False)]
)
def test_copies_to_the_host_wait_unless_they_are_asynchronous_and_to_pinned_memory(is_async, is_pinned, waits):
    source, stack = torch.zeros(2, device="meta"), StackView(NOWHERE, (), (), None)
    target = SimpleNamespace(device=torch.device("cpu"), is_pinned=lambda: is_pinned)
    named = {"non_blocking": True} if is_async else {}
    assert sync_label("_to_copy", (source,), named, target, stack, "meta") == ("cpu" if waits else "")
    copied = (target, source, True) if is_async else (target, source)
    assert sync_label("copy", copied, {}, target, stack, "meta") == ("copy_" if waits else "")


@pytest.mark.parametrize(("size", "label"), [({}, "repeat_interleave"), ({"output_size": 4}, "")])
def test_repeating_waits_for_the_size_of_the_result_unless_it_is_given(size, label):
    counts, stack = torch.ones(4, dtype=torch.int64), StackView(NOWHERE, (), (), None)
    assert sync_label("repeat_interleave", (counts,), size, None, stack, "cpu") == label
