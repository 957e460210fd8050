"""Measure the overhead of sampling device and host: CPU time of its thread ÷ wall time, at the default rate.

python benchmarks/telemetry/run.py [seconds]
"""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import torch

from lightning_perf.probes.telemetry.probe import DEFAULT_HZ, FIRST_S, TelemetryProbe

LIMIT = 0.005


def main(seconds: float = 30.0) -> int:
    """Sample while the main thread sleeps and print the share of one core; return 1 if it exceeds the limit."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    loop = SimpleNamespace(timeline=SimpleNamespace(start_ns=time.perf_counter_ns()), main=SimpleNamespace(n_steps=1))
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=device))
    options = SimpleNamespace(device_stats=True)
    run: Any = SimpleNamespace(options=options, trainer=trainer, loop=loop, now_ns=time.perf_counter_ns)
    probe = TelemetryProbe.open(run)
    assert probe is not None
    probe.start()
    time.sleep(seconds)
    probe.close()
    record = probe.record()
    fraction = record.sampler_core_fraction or 0.0
    n_samples = record.host.n_samples if record.host is not None else 0
    print(f"{device}: {n_samples} samples in {seconds:g} s; {DEFAULT_HZ:g} per second after the first {FIRST_S:g} s")
    sample_ms = 1e3 * fraction * seconds / max(1, n_samples)
    print(f"{fraction:.3%} of one core, limit {LIMIT:.1%}; {sample_ms:.2f} ms per sample")
    return int(fraction > LIMIT)


if __name__ == "__main__":
    sys.exit(main(*map(float, sys.argv[1:2])))
