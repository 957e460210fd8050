from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from lightning_perf.probes.model import ceilings
from lightning_perf.records import Ceilings

CPU = torch.device("cpu")


def fake(**changes: Any) -> Ceilings:
    kind, name, version, n_threads = ceilings._identity(CPU)
    figures: dict[str, Any] = {"device": kind, "name": name, "torch": version, "n_threads": n_threads,
                               "matmul_flops_per_s": {"fp32": 1e11}}  # fmt: skip
    return Ceilings(**{**figures, **changes})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cache, instead of the user's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "lightning-perf"


@pytest.fixture
def n_measured(monkeypatch: pytest.MonkeyPatch) -> list[Ceilings]:
    """What was measured, by a device that needs no time for it."""
    found: list[Ceilings] = []

    def measure(device: torch.device) -> Ceilings:
        found.append(fake())
        return found[-1]

    monkeypatch.setattr(ceilings, "measure", measure)
    return found


def test_device_is_measured_once_for_all(n_measured: list[Ceilings]) -> None:
    assert ceilings.cached(CPU) is None
    first = ceilings.measured(CPU)
    assert ceilings.measured(CPU) == ceilings.cached(CPU) == first
    assert len(n_measured) == 1


def test_cache_holds_for_so_many_threads(n_measured: list[Ceilings]) -> None:
    before = torch.get_num_threads()
    ceilings.measured(CPU)
    try:
        torch.set_num_threads(before + 1)
        assert ceilings.cached(CPU) is None
    finally:
        torch.set_num_threads(before)
    assert ceilings.cached(CPU) is not None


def test_ceilings_are_measured_again_when_the_cache_cannot_be_read(cache: Path, n_measured: list[Ceilings]) -> None:
    ceilings.measured(CPU)
    [file] = cache.iterdir()
    file.write_text("{")
    ceilings.measured(CPU)
    assert len(n_measured) == 2


def test_cache_is_in_the_users_folder(cache: Path, n_measured: list[Ceilings]) -> None:
    ceilings.measured(CPU)
    assert [file.suffix for file in cache.iterdir()] == [".json"]


def test_figures_are_given_but_not_kept_when_others_used_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "measure", lambda device: fake(missing={"is_quiet": "other processes"}))
    assert ceilings.measured(CPU).matmul_flops_per_s == {"fp32": 1e11}
    assert ceilings.cached(CPU) is None


def test_cache_that_cannot_be_written_is_no_error(cache: Path, n_measured: list[Ceilings]) -> None:
    cache.write_text("")  # where the folder would be
    assert ceilings.measured(CPU).matmul_flops_per_s == {"fp32": 1e11}


def test_measuring_reports_every_figure_and_keeps_the_random_state() -> None:
    state = torch.get_rng_state()
    found = ceilings.measure(CPU, budget_s=0.3)
    assert torch.equal(torch.get_rng_state(), state)
    assert set(found.matmul_flops_per_s) | {n.rpartition(".")[2] for n in found.missing} >= {"fp32", "bf16", "fp16"}
    assert all(value > 0 for value in found.matmul_flops_per_s.values())
    assert found.copy_bytes_per_s is not None
    assert found.launch_s is not None
    assert found.h2d_pinned_bytes_per_s is None
    assert "host itself" in found.missing["h2d_pinned_bytes_per_s"]


def test_figure_that_cannot_be_measured_is_missing_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(self: Any, precision: str, limit_s: float) -> float:
        if precision == "fp16":
            raise RuntimeError("not implemented for Half\nmore")
        return 1e9

    monkeypatch.setattr(ceilings._Bench, "matmul", refuses)
    found = ceilings.measure(CPU, budget_s=0.1)
    assert found.matmul_flops_per_s == {"fp32": 1e9, "bf16": 1e9}
    assert found.missing["matmul_flops_per_s.fp16"] == "RuntimeError: not implemented for Half"


def answers(monkeypatch: pytest.MonkeyPatch, returncode: int, stdout: bytes, stderr: bytes = b"") -> list[list[str]]:
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        return subprocess.CompletedProcess(command, returncode, stdout, stderr)

    monkeypatch.setattr(ceilings.subprocess, "run", run)
    return commands


def test_child_measures_with_as_many_threads_and_the_cache_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = answers(monkeypatch, 0, msgspec.json.encode(fake()))
    found, reason = ceilings.measured_in_child(CPU, 9.0)
    assert (found, reason) == (fake(), "")
    assert commands[0][-2:] == ["cpu", str(torch.get_num_threads())]
    assert ceilings.cached(CPU) == fake()


@pytest.mark.parametrize(
    ("returncode", "stdout", "expected"),
    [
        (1, b"", "ended with 1: no device"),
        (0, b"nonsense", "not measured"),
        (0, msgspec.json.encode(fake(missing={"is_quiet": "other processes used the cores"})), "other processes"),
    ],
)
def test_child_that_fails_gives_a_reason(
    monkeypatch: pytest.MonkeyPatch, returncode: int, stdout: bytes, expected: str
) -> None:
    answers(monkeypatch, returncode, stdout, b"Traceback\nno device")
    found, reason = ceilings.measured_in_child(CPU, 9.0)
    assert found is None
    assert expected in reason
    assert ceilings.cached(CPU) is None


def test_child_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], timeout: float, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(ceilings.subprocess, "run", run)
    assert ceilings.measured_in_child(CPU, 9.0) == (None, "the device was not measured within 9 s")


@pytest.mark.parametrize(("second", "is_quiet"), [(0.86e9, True), (0.84e9, False)])
def test_figures_are_disturbed_when_no_two_rounds_agree(
    monkeypatch: pytest.MonkeyPatch, second: float, is_quiet: bool
) -> None:
    speeds = {precision: iter((0.1e9, 1e9, second)) for precision in ("fp32", "bf16", "fp16")}
    monkeypatch.setattr(ceilings._Bench, "matmul", lambda self, precision, limit_s: next(speeds[precision]))
    found = ceilings.measure(CPU, budget_s=0.1)
    assert found.matmul_flops_per_s["fp32"] == 1e9
    assert ceilings.is_quiet(found) == is_quiet


def test_precision_that_is_no_faster_may_scatter(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {"fp32": [1e9] * 3, "bf16": [2e9] * 3, "fp16": [0.1e9, 0.3e9, 0.1e9]}
    monkeypatch.setattr(ceilings._Bench, "matmul", lambda self, precision, limit_s: speeds[precision].pop())
    assert ceilings.is_quiet(ceilings.measure(CPU, budget_s=0.1))


class FakeBench:
    """A CUDA device that is there in name alone."""

    def __init__(self, device: torch.device, clock: Any) -> None:
        assert device.type == "cuda"

    def matmul(self, precision: str, limit_s: float) -> float:
        return {"fp32": 60e12, "tf32": 400e12, "bf16": 800e12, "fp16": 790e12}[precision]

    def copy(self, limit_s: float) -> float:
        return 3e12

    def transfer(self, is_pinned: bool, limit_s: float) -> float:
        return 50e9 if is_pinned else 10e9

    def launch(self, limit_s: float) -> float:
        return 4e-6


def test_cuda_device_is_asked_for_all_precisions_and_both_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "_Bench", FakeBench)
    monkeypatch.setattr(ceilings, "_identity", lambda device: ("cuda", "Synthetic GPU", "2.13", None))
    found = ceilings.measure(torch.device("cuda"), budget_s=0.1)
    assert found.matmul_flops_per_s == {"fp32": 60e12, "tf32": 400e12, "bf16": 800e12, "fp16": 790e12}
    assert (found.h2d_pinned_bytes_per_s, found.h2d_pageable_bytes_per_s) == (50e9, 10e9)
    assert (found.copy_bytes_per_s, found.launch_s) == (3e12, 4e-6)
    assert (found.name, found.n_threads, found.missing) == ("Synthetic GPU", None, {})


@pytest.mark.parametrize(("is_on", "expected"), [(True, "high"), (False, "highest")])
def test_tf32_is_switched_for_one_measurement_and_put_back(is_on: bool, expected: str) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with ceilings._tf32(torch.device("cuda"), is_on):
            assert torch.get_float32_matmul_precision() == expected
        assert torch.get_float32_matmul_precision() == "medium"
        with ceilings._tf32(CPU, is_on):
            assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_device_is_waited_for_before_and_after_what_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: events.append(f"waited for {device}"))
    bench = ceilings._Bench(CPU, lambda: events.append("read") or 0.0)  # type: ignore[func-returns-value, arg-type]
    bench._device = torch.device("cuda:1")
    bench._timed(lambda: events.append("run"), 2)
    assert events == ["waited for cuda:1", "read", "run", "run", "waited for cuda:1", "read"]
