"""Record the small CPU traces in this folder: ``python tests/traces/record_fixtures.py``.

Run it again after a change to torch's profiler; what the traces must say is in test_fixtures.py.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

FOLDER = Path(__file__).parent / "fixtures"
N_STEPS = 3


class ItemLoop(torch.nn.Module):
    """Adds up single numbers in Python, each fetched with ``.item()``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        out = self.layer(batch)
        total = 0.0
        for i in range(40):
            total += (out[i % 8] * 2.0).sum().item()
        return out.sum() * total


class WrittenOutAttention(torch.nn.Module):
    """Attention with its scores in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(32, 96)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(batch).chunk(3, dim=-1)
        scores = torch.softmax(query @ key.transpose(-2, -1) / 5.6, dim=-1)
        return (scores @ value).sum()


class PlainConvolution(torch.nn.Module):
    """A convolution with a bias that the following normalization cancels."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(8 * 14 * 14, 4)
        )

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.net(batch).square().mean()


def train(model: torch.nn.Module, batch_shape: tuple[int, ...], with_stack: bool) -> dict[str, Any]:
    """Trains for a few profiled steps and returns the trace."""
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(torch.randn(N_STEPS + 2, *batch_shape), batch_size=None)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        with profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=0, warmup=2, active=N_STEPS),
            on_trace_ready=lambda done: done.export_chrome_trace(str(file)),
            record_shapes=True,
            with_stack=with_stack,
        ) as profiler:
            for batch in loader:
                loss = model(batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                profiler.step()
        document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return document


def save(name: str, document: dict[str, Any]) -> None:
    """Write a trace without details of the machine and without metadata events."""
    document["traceEvents"] = [entry for entry in document["traceEvents"] if entry.get("ph") == "X"]
    for key in ("host_name", "traceName", "trace_id"):
        document.pop(key, None)
    text = json.dumps(document).replace(str(Path(__file__).parents[2]) + "/", "")
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / name).write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    torch.set_num_threads(1)
    save("cpu-item-loop.json.gz", train(ItemLoop(), (8, 8), with_stack=True))
    save("cpu-attention.json.gz", train(WrittenOutAttention(), (4, 128, 32), with_stack=True))
    save("cpu-plain.json.gz", train(PlainConvolution(), (2, 3, 16, 16), with_stack=False))
