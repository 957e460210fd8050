"""Peak rates of a device, measured once with torch's operators and kept in the user's cache folder.

Measuring runs at full load for up to three seconds, never during a training. A run reads the cache, or fills it in a
child process after the last step: ``python -m lightning_perf.probes.model.ceilings DEVICE [THREADS]`` prints the
record.
"""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from lightning_perf import interrupts
from lightning_perf.interrupts import error_text
from lightning_perf.probes.base import Probe, RunContext
from lightning_perf.probes.replay.state import matmul_precision
from lightning_perf.probes.sampled_steps.probe import SampledSteps
from lightning_perf.probes.settings.machine import device_name, read_device, read_machine
from lightning_perf.records import Ceilings, Session
from lightning_perf.records.files import read_regular, require_free_space, write_whole
from lightning_perf.stats.datasheets import datasheet_of
from lightning_perf.stats.roofline import assessed

_decode = msgspec.json.Decoder(Ceilings).decode  # built once: building it in two threads at once crashes

BUDGET_S = 3.0
"""Longest measurement on any device, without starting a process for it."""

MAX_SHARE = 0.05
"""Share of a run's time that measuring the device once, after the last step, may take."""

_EXPECTED_S = 8.0  # the budget, and a process that imports torch
_FIRST_SIZE = 256
_LARGEST_SIZE = {"cpu": 2048, "cuda": 8192}
_LONG_ENOUGH_S = 4e-3  # launching is negligible in a product of this length
_COPY_BYTES = {"cpu": 2**27, "cuda": 2**30}  # larger than any cache
_TRANSFER_BYTES = 2**26
_N_LAUNCHES = 500  # fewer than CUDA queues before the host has to wait (1,024 launches)
_MATMUL_SHARE = 0.7  # of the budget
_ROUNDS = 3
_LEAST_AGREEMENT = 0.85  # ratio of the second best round to the best; below it, other programs disturbed the others
_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def cached(device: torch.device) -> Ceilings | None:
    """Return cached ceilings of a device in use, for this torch and number of threads; None if there are none."""
    try:
        found = _decode(read_regular(_cache_file(device)))
    except (OSError, msgspec.MsgspecError):
        return None
    return found if _identity(device) == (found.device, found.name, found.torch, found.n_threads) else None


def measured(device: torch.device) -> Ceilings:
    """Return cached ceilings, or measure them in this process and cache them.

    Random number generators and torch's switches are not changed. A failure to write the cache is ignored.
    """
    found = cached(device)
    if found is None:
        found = measure(device)
        if is_quiet(found):
            _write_cache(found, device)
    return found


def forget(device: torch.device) -> None:
    """Remove the device's ceilings from the cache, if that can be written."""
    with interrupts.suppress(OSError):
        _cache_file(device).unlink(missing_ok=True)


def is_quiet(found: Ceilings) -> bool:
    """Return whether the device was free enough during the measurement to keep the result."""
    return "is_quiet" not in found.missing


def measured_in_child(device: torch.device, limit_s: float) -> tuple[Ceilings | None, str]:
    """Measure in a child process, which leaves this one's memory and libraries unchanged.

    Args:
        device: The device to measure.
        limit_s: When to end the process; on a busy machine or a slow disk, importing torch alone may take longer.

    Returns:
        The ceilings, or None and the reason.
    """
    where, n_threads = device_name(device), str(torch.get_num_threads())
    command = [sys.executable, "-m", "lightning_perf.probes.model.ceilings", where, n_threads]
    try:
        done = subprocess.run(command, capture_output=True, timeout=limit_s, check=False)
        if done.returncode != 0:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            return None, f"the process that measures the device ended with {done.returncode}: {(lines or [''])[-1]}"
        found = _decode(done.stdout)
    except subprocess.TimeoutExpired:
        return None, f"the device was not measured within {limit_s:.0f} s"
    except (OSError, msgspec.MsgspecError) as error:
        return None, f"the device was not measured: {type(error).__name__}"
    if not is_quiet(found):
        return None, found.missing["is_quiet"]
    _write_cache(found, device)
    return found, ""


def measure(
    device: torch.device, budget_s: float = BUDGET_S, clock: Callable[[], float] = time.perf_counter
) -> Ceilings:
    """Measure for at most ``budget_s``. Takes the best of several repetitions: other programs only slow them down."""
    begin = clock()
    missing: dict[str, str] = {}
    bench = _Bench(device, clock)
    precisions = ("fp32", "tf32", "bf16", "fp16") if device.type == "cuda" else ("fp32", "bf16", "fp16")
    rounds: dict[str, list[float]] = {}

    def attempt(name: str, function: Callable[[], float]) -> float | None:
        try:
            return function()
        except Exception as error:  # noqa: BLE001 - recorded
            missing[name] = error_text(error).splitlines()[0][:200]
            return None

    with torch.no_grad():
        # Alternate, so that other programs do not slow down one precision alone.
        for precision in precisions * _ROUNDS:
            limit_s = _MATMUL_SHARE * budget_s / len(precisions) / _ROUNDS
            speed = attempt(f"matmul_flops_per_s.{precision}", partial(bench.matmul, precision, limit_s))
            if speed is not None:
                rounds.setdefault(precision, []).append(speed)
        rest_s = max(0.1, (budget_s - (clock() - begin)) / 5)
        copy = attempt("copy_bytes_per_s", lambda: bench.copy(rest_s))
        pinned = pageable = None
        if device.type == "cpu":
            missing["h2d_pinned_bytes_per_s"] = missing["h2d_pageable_bytes_per_s"] = "the device is the host itself"
        else:
            pinned = attempt("h2d_pinned_bytes_per_s", lambda: bench.transfer(True, rest_s))
            pageable = attempt("h2d_pageable_bytes_per_s", lambda: bench.transfer(False, rest_s))
        launch = attempt("launch_s", lambda: bench.launch(rest_s))
    matmul = {precision: max(speeds) for precision, speeds in rounds.items()}
    for precision, speeds in rounds.items():
        if max(speeds) < matmul.get("fp32", 0.0):
            continue  # slower than fp32: of no use, and its long products vary more
        if len(speeds) > 1 and sorted(speeds)[-2] < _LEAST_AGREEMENT * max(speeds):
            both = " and ".join(f"{speed / 1e9:.0f}" for speed in sorted(speeds)[-2:])
            missing["is_quiet"] = f"another program used the device: {both} GFLOP/s in {precision} in two rounds"
    kind, name, version, n_threads = _identity(device)
    return Ceilings(
        device=kind,
        name=name,
        torch=version,
        n_threads=n_threads,
        matmul_flops_per_s=matmul,
        copy_bytes_per_s=copy,
        h2d_pinned_bytes_per_s=pinned,
        h2d_pageable_bytes_per_s=pageable,
        launch_s=launch,
        measured_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        took_s=clock() - begin,
        missing=missing,
    )


class CeilingsProbe(Probe):
    """The ceilings of the device that one run trains on: looked up, or measured after its last step."""

    name = "ceilings"
    field = "model_profile"
    stages = ("fit",)
    after = ("steps", "sampled_steps")

    def __init__(self, run: RunContext) -> None:
        self._sampled = run.probes.find(SampledSteps) if run.options.arithmetic else None  # counts a step's operations
        self._trainer, self._loop, self._may_measure = run.trainer, run.loop, run.options.ceilings
        self._device: torch.device = run.trainer.strategy.root_device
        self._found: Ceilings | None = None
        self._is_looked_up = False

    def training_ends(self) -> None:
        """Measure the device if operations were counted, no result is cached and the run was long enough."""
        is_counted = self._sampled is not None and self._sampled.profile is not None
        has_time = self._may_measure and not self._trainer.fast_dev_run and not self._trainer.received_sigterm
        if not is_counted or not has_time or self.ceilings() is not None:
            return
        wall_s = self._loop.wall_ns() / 1e9
        if self._trainer.world_size > 1:
            reason = "with several ranks the device is not measured after the run"
        elif MAX_SHARE * wall_s < _EXPECTED_S:
            reason = (
                f"this device was not measured yet, which takes some seconds: too much for a run of {wall_s:.0f} s; "
                "lightning_perf.measure_ceilings() does it once for all"
            )
        else:
            self._found, reason = measured_in_child(self._device, MAX_SHARE * wall_s)
        if reason:
            self.missing["model_profile.ceilings"] = reason

    def part(self, session: Session) -> Mapping[str, Any]:
        """Return the counted operations, assessed against the device's ceilings and the steady step."""
        profile, steady, measured = session.model_profile, session.steady, None
        if self._sampled is not None and self._sampled.profile is not None:
            measured = self.ceilings()
        if profile is None:
            return {}
        chip = next((datasheet_of(each.name) for each in session.machine.devices), None)
        timed = () if steady is None else (steady.step_s, steady.n_steps, True)
        found = assessed(profile, measured, chip, *timed)
        if measured is not None and found.ceilings is None:  # implausible: the next run measures again
            self.missing["model_profile.ceilings"] = found.missing["ceilings"]
            forget(self._device)
        return {"model_profile": found}

    def reasons(self) -> Mapping[str, str]:
        if self._sampled is None:
            return {"model_profile": "arithmetic=False, or counting failed; see probes_off", **self.missing}
        if self._sampled.profile is not None:
            return self.missing
        return {"model_profile": "no step was counted: the run was too short", **self._sampled.missing, **self.missing}

    def ceilings(self) -> Ceilings | None:
        """Return the device's ceilings; None where they are unknown."""
        if not self._is_looked_up:
            self._is_looked_up = True
            self._found = cached(self._device)
        if self._found is None and not self._may_measure:
            self.missing["model_profile.ceilings"] = "ceilings=False, and this device was not measured before"
        return self._found


class _Bench:
    """Single measurements on one device."""

    def __init__(self, device: torch.device, clock: Callable[[], float]) -> None:
        self._device = device
        self._clock = clock
        self._random = torch.Generator(device=device).manual_seed(0)  # zeros would run cooler, and so faster

    def matmul(self, precision: str, limit_s: float) -> float:
        """Return operations per second of the fastest matrix multiplication, trying sizes from small to large."""
        with _tf32(self._device, precision == "tf32"):
            until = self._clock() + limit_s
            best, size = 0.0, _FIRST_SIZE
            largest = _LARGEST_SIZE.get(self._device.type, 4096)
            while size <= largest:
                a, b = (
                    torch.rand(size, size, generator=self._random, device=self._device).to(_DTYPES[precision])
                    for _ in range(2)
                )
                out = torch.empty_like(a)
                product = partial(torch.mm, a, b, out=out)
                once_s = self._once(product)
                part_s = (until - self._clock()) * (0.6 if size == largest or once_s > _LONG_ENOUGH_S else 0.25)
                best_s = self._best(product, part_s, once_s)
                best = max(best, 2.0 * size**3 / best_s)
                size *= 2
                if self._clock() + 12 * best_s > until:  # the next size takes eight times as long
                    break
        return best

    def copy(self, limit_s: float) -> float:
        """Return bytes read and written per second within the device's memory."""
        n_bytes = _COPY_BYTES.get(self._device.type, 2**28)
        source = torch.ones(n_bytes, dtype=torch.uint8, device=self._device)
        target = torch.empty_like(source)
        return 2.0 * n_bytes / self._best(lambda: target.copy_(source), limit_s)

    def transfer(self, is_pinned: bool, limit_s: float) -> float:
        """Return bytes per second from the host's memory to the device's."""
        source = torch.ones(_TRANSFER_BYTES, dtype=torch.uint8, pin_memory=is_pinned)
        target = torch.empty(_TRANSFER_BYTES, dtype=torch.uint8, device=self._device)
        return _TRANSFER_BYTES / self._best(lambda: target.copy_(source, non_blocking=is_pinned), limit_s)

    def launch(self, limit_s: float) -> float:
        """Return the launch latency of one small operator on the host, in seconds."""
        value = torch.zeros(1, device=self._device)
        best, until = float("inf"), self._clock() + limit_s
        while True:
            synchronize(self._device)
            begin = self._clock()
            for _ in range(_N_LAUNCHES):
                value.add_(1.0)
            best = min(best, (self._clock() - begin) / _N_LAUNCHES)
            if self._clock() >= until:
                synchronize(self._device)
                return best

    def _once(self, function: Callable[[], Any]) -> float:
        """Return seconds of the second call: the first one includes initialization."""
        function()
        return self._timed(function, 1)

    def _best(self, function: Callable[[], Any], limit_s: float, once_s: float | None = None) -> float:
        """Return seconds per call: ``once_s``, measured if it is None, or the best of several batches of calls."""
        best = once_s = self._once(function) if once_s is None else once_s
        n = max(1, min(50, int(_LONG_ENOUGH_S / max(once_s, 1e-7))))
        until = self._clock() + limit_s
        while self._clock() + n * once_s < until:
            best = min(best, self._timed(function, n))
        return best

    def _timed(self, function: Callable[[], Any], n: int) -> float:
        synchronize(self._device)
        begin = self._clock()
        for _ in range(n):
            function()
        synchronize(self._device)
        return max((self._clock() - begin) / n, 1e-12)


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished all work queued so far."""
    if device.type == "mps":
        torch.mps.synchronize()  # there is only one
    elif device.type != "cpu":
        getattr(torch, device.type).synchronize(device)


def _tf32(device: torch.device, is_on: bool) -> AbstractContextManager[None]:
    """Return a context in which fp32 matrix multiplication on CUDA may use TF32 or not."""
    return matmul_precision("high" if is_on else "highest") if device.type == "cuda" else nullcontext()


def _identity(device: torch.device) -> tuple[str, str, str, int | None]:
    if device.type == "cpu":
        return "cpu", read_machine().cpu_model or "CPU", str(torch.__version__), torch.get_num_threads()
    return device.type, read_device(device).name, str(torch.__version__), None


def _cache_file(device: torch.device) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    digest = hashlib.sha256(repr(_identity(device)).encode()).hexdigest()[:16]
    return Path(base) / "lightning-perf" / f"ceilings-{device.type}-{digest}.json"


def _write_cache(found: Ceilings, device: torch.device) -> None:
    """Write the cache, if that is possible."""
    content, file = msgspec.json.format(msgspec.json.encode(found), indent=1), _cache_file(device)
    with interrupts.suppress(OSError):
        require_free_space(file.parent, len(content))
        write_whole(file, content)


def _main(arguments: list[str]) -> None:
    device = torch.device(arguments[0])
    if len(arguments) > 1:
        torch.set_num_threads(int(arguments[1]))
    sys.stdout.write(msgspec.json.encode(measure(device)).decode())


if __name__ == "__main__":
    _main(sys.argv[1:])
