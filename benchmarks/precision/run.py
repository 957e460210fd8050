"""Compare the measured speedup of bf16 with PD301's prediction from replayed operators, on a CPU.

The device's ceilings are measured first, for the page. Then fits in fp32 and in ``bf16-mixed`` alternate (A B B A …);
PerfDoctor observes those in fp32, and its finding PD301 has the predicted interval. A step is timed from one start of
``training_step`` to the next, without warm-up; the speedup is the ratio of the medians. The last table times an
operator that bf16 may slow down, the backward pass of fused attention, in both precisions.

Run: ``python benchmarks/precision/run.py [--rounds N] [--threads N] [--write]`` (two minutes, on an otherwise idle
machine).
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_perf import PerfDoctor, measure_ceilings
from lightning_perf.records import Ceilings, Gain
from lightning_perf.stats.roofline import lower_precision_speedup

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "precision.md"
N_STEPS, WARMUP = 40, 10


def _mlp() -> tuple[nn.Module, torch.Tensor]:
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(1024, 1024), nn.ReLU()]
    return nn.Sequential(*layers), torch.randn(256, 1024)


def _transformer() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(8, 128, 256)


def _short_transformer() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(96, 4, 384, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(32, 64, 96)


MODELS = {
    "MLP, 4 layers of 1024, batch 256": _mlp,
    "transformer, 2 layers of 256, 8 x 128 tokens": _transformer,
    "transformer, 2 layers of 96, 32 x 64 tokens": _short_transformer,
}
# Batch, heads, sequence length, head dimension.
ATTENTION_SHAPES = ((128, 4, 16, 32), (64, 4, 32, 32), (32, 4, 64, 24), (32, 4, 64, 128), (16, 4, 128, 64),
                    (8, 4, 256, 64), (4, 4, 512, 64), (2, 4, 1024, 64), (1, 4, 2048, 128))  # fmt: skip
ATTENTION_ROUNDS = 7


class Model(LightningModule):
    """Record when each step begins."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.began: list[float] = []

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        self.began.append(time.perf_counter())
        return self.body(batch[0]).float().square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-6)


class Result(NamedTuple):
    """The prediction and the measurement of one model."""

    name: str
    predicted: Gain | None
    fp32_s: float
    bf16_s: float

    @property
    def gain(self) -> float:
        return self.fp32_s / self.bf16_s

    @property
    def is_inside(self) -> bool | None:
        return None if self.predicted is None else self.predicted.low <= self.gain <= self.predicted.high


def fit(name: str, precision: str, folder: str) -> tuple[list[float], Gain | None]:
    """Return the step times of one fit in seconds and, for fits in fp32, PD301's prediction."""
    torch.manual_seed(0)
    body, sample = MODELS[name]()
    model = Model(body)
    batch_size = len(sample)
    data = DataLoader(TensorDataset(sample.repeat(N_STEPS, *[1] * (sample.dim() - 1))), batch_size)
    doctor = PerfDoctor(reports=(), schedule=None, out_dir=folder)
    trainer = Trainer(accelerator="cpu", precision=precision, max_epochs=1, logger=False, enable_checkpointing=False,
                      enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
                      callbacks=[doctor] if precision == "32-true" else [])  # type: ignore[arg-type]  # fmt: skip
    trainer.fit(model, data)
    steps = [after - before for before, after in zip(model.began, model.began[1:], strict=False)]
    findings: Any = doctor.session.findings if doctor.session is not None else ()
    gain = next((finding.gain for finding in findings if finding.code == "PD301"), None)
    return steps[WARMUP:], gain


def measure(name: str, rounds: int) -> Result:
    """Alternate fits; the prediction is that of the last fit in fp32."""
    taken: dict[str, list[float]] = {"32-true": [], "bf16-mixed": []}
    predicted = None
    with tempfile.TemporaryDirectory() as folder:
        for i in range(rounds):
            for precision in ("32-true", "bf16-mixed") if i % 2 == 0 else ("bf16-mixed", "32-true"):
                steps, gain = fit(name, precision, folder)
                taken[precision] += steps
                predicted = gain or predicted
    return Result(name, predicted, statistics.median(taken["32-true"]), statistics.median(taken["bf16-mixed"]))


def attention_backward_s(shape: tuple[int, int, int, int], dtype: torch.dtype) -> float:
    """Return the median time of a backward pass of fused attention."""
    batch, heads, length, width = shape
    inputs = [torch.randn(batch, length, heads, width, dtype=dtype).transpose(1, 2).requires_grad_() for _ in range(3)]
    out = nn.functional.scaled_dot_product_attention(*inputs)
    gradient = torch.randn_like(out)
    taken = []
    for _ in range(1 + ATTENTION_ROUNDS):
        began = time.perf_counter()
        torch.autograd.grad(out, inputs, gradient, retain_graph=True)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def attention_table() -> list[str]:
    """Return the table of thread time per query and head, in fp32 and bf16."""
    lines = [
        "",
        "Backward pass of fused attention: thread time per query and head.",
        "",
        "| batch x heads x queries x head dimension | fp32 | bf16 |",
        "|---|---:|---:|",
    ]
    n_threads = torch.get_num_threads()
    for shape in ATTENTION_SHAPES:
        n_queries = shape[0] * shape[1] * shape[2]
        full, half = (
            attention_backward_s(shape, dtype) * n_threads / n_queries for dtype in (torch.float32, torch.bfloat16)
        )
        lines.append(f"| {' x '.join(map(str, shape))} | {full * 1e6:.2f} us | {half * 1e6:.2f} us |")
    return lines


def page(ceilings: Ceilings, results: list[Result]) -> str:
    """Return the documentation page."""
    speeds = ceilings.matmul_flops_per_s
    faster = lower_precision_speedup(ceilings, "fp32")
    lines = [
        "# Speedup of bf16: predicted by PD301 and measured",
        "",
        "Written by `benchmarks/precision/run.py --write`. Both come from one run: the interval from replaying the",
        "operators of one step in fp32, the speedup as the ratio of median step times.",
        "",
        f"{ceilings.name}, {ceilings.n_threads} thread{'' if ceilings.n_threads == 1 else 's'}, torch "
        f"{ceilings.torch}: matrix multiplication at "
        + ", ".join(f"{value / 1e9:,.0f} GFLOP/s in {name}" for name, value in speeds.items())
        + ("; no 16-bit type is faster." if faster is None else f"; {faster[0]} is {faster[1]:.1f}x as fast.")
        + f" Copy bandwidth {(ceilings.copy_bytes_per_s or 0) / 1e9:.0f} GB/s.",
        "",
        "| model | predicted | measured | within interval | fp32 per step | bf16-mixed per step |",
        "|---|---|---|---|---:|---:|",
    ]
    for r in results:
        predicted = "none" if r.predicted is None else f"{r.predicted.low:.2f}x to {r.predicted.high:.2f}x"
        inside = {True: "yes", False: "no", None: ""}[r.is_inside]
        lines.append(
            f"| {r.name} | {predicted} | {r.gain:.2f}x | {inside} | {r.fp32_s * 1e3:.1f} ms | {r.bf16_s * 1e3:.1f} ms |"
        )
    return "\n".join(lines + attention_table()) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} of the documentation")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning_perf"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(arguments.threads)
    ceilings = measure_ceilings("cpu", again=True)
    if "is_quiet" in ceilings.missing:
        raise SystemExit(f"{ceilings.missing['is_quiet']}; run this on an otherwise idle machine")
    text = page(ceilings, [measure(name, arguments.rounds) for name in MODELS])
    print(text)
    if arguments.write and lower_precision_speedup(ceilings, "fp32") is None:
        print(f"{PAGE.name} is not changed: it describes a CPU with faster bf16 matrix multiplication")
    elif arguments.write:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
