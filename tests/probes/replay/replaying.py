"""What tests of replays share: a step's log, a probe, and a snapshot of all that a replay must not change."""

from __future__ import annotations

import ctypes
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from lightning_perf.probes.clock import now_ns
from lightning_perf.probes.model.flops import ArithmeticCounter
from lightning_perf.probes.replay.calls import CallLog
from lightning_perf.probes.replay.probe import ReplayProbe
from lightning_perf.records import Hypothesis

CPU = torch.device("cpu")


def logged(model, batch, scale=1.0, unowned=()):
    log = CallLog(len(batch), [batch], unowned=unowned)
    with ArithmeticCounter(model, now_ns=now_ns, times_operators=True, log=log) as counter:
        counter.direction = "forward"
        loss = model(batch).square().mean() * scale
        loss.backward()
    assert not counter.failure
    return log


def probe_of(model, optimizer=None, clock=now_ns, memory=None):
    trainer = SimpleNamespace(
        strategy=SimpleNamespace(root_device=CPU),
        is_global_zero=True,
        received_sigterm=False,
        accumulate_grad_batches=1,
        optimizers=[optimizer or torch.optim.SGD(model.parameters(), lr=0.1)],
    )
    loop = SimpleNamespace(make_event=lambda: None, main=SimpleNamespace(recent_median_ns=lambda: None))
    run = SimpleNamespace(trainer=trainer, pl_module=model, now_ns=clock, loop=loop)
    return ReplayProbe(run, memory)


def asked(*treatments):
    return tuple(Hypothesis(treatment=one, at_stake_s=1.0) for one in treatments)


def call_of(log, name):
    return next(call for call in log.calls if call.func._schema.name == name)


def snapshot(model, optimizer):
    """Return tensors and settings; both have to be the same after a replay."""
    state = [value.clone() for value in model.state_dict().values()]
    moments = [value.clone() for one in optimizer.state.values() for value in one.values() if torch.is_tensor(value)]
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    streams = (torch.get_rng_state(), torch.from_numpy(np.random.get_state()[1].astype(np.int64)))
    backends = torch.backends
    settings = (
        random.getstate(), torch.get_num_threads(), _mkl_threads(), torch.is_grad_enabled(), torch.get_default_dtype(),
        torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(), torch.get_float32_matmul_precision(), torch.is_anomaly_enabled(),
        torch.are_deterministic_algorithms_enabled(), are_denormals_flushed(),
        backends.cudnn.benchmark, backends.cudnn.deterministic, backends.cudnn.enabled,
        backends.mkldnn.enabled, getattr(backends.mkldnn, "deterministic", None),
        backends.cuda.flash_sdp_enabled(), backends.cuda.math_sdp_enabled(),
        [[(name, value) for name, value in group.items() if name != "params"] for group in optimizer.param_groups],
    )  # fmt: skip
    return state + moments + gradients + list(streams), settings


def are_denormals_flushed():
    return bool((torch.tensor(1e-38) * 1e-3 == 0).item())


def _mkl_threads():
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        return ctypes.CDLL(str(path)).MKL_Get_Max_Threads()
    except (OSError, AttributeError):
        return None
