"""Read a trace recorded on any machine, with or without Lightning.

A plain torch loop reads a tensor row by row and ``torch.profiler`` records it. The trace is then read like one that you
received from someone else (``lightning-perf analyze TRACE`` does the same). Run it: ``python
examples/11_trace_from_anywhere.py`` (a few seconds on a CPU).
"""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.profiler import profile, schedule

from lightning_perf import traces
from lightning_perf.rules.engine import diagnose_trace


def record(path):
    """Record a training loop with many tiny operators."""
    model = nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with profile(schedule=schedule(wait=1, warmup=1, active=4), with_stack=True) as profiler:
        for _ in range(6):
            rows = model(torch.rand(300, 16))
            loss = sum(row.square().sum() for row in rows) / len(rows)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            profiler.step()
    profiler.export_chrome_trace(str(path))


def main():
    """Record, read and diagnose."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json.gz"
        record(path)
        trace = diagnose_trace(traces.analyze(path))
    print(f"{len(trace.steps)} steps of {trace.steps[0].duration_s * 1e3:.0f} ms, {trace.n_operators} operators")
    print("Verdict:", trace.verdict.text)
    return trace


if __name__ == "__main__":
    main()
