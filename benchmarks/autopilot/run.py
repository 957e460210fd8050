"""Check decisions of the autopilot on simulated steps and in real trainings.

- Simulated: rounds of a treatment without effect, and of gains from 5 to 50 %, with steps that are independent,
  correlated or drift. Blocks are those of a real run: 20 steps, and 6 before them that are left out. At most 2 % of the
  rounds without effect may be kept.
- Real: a small training in a process of its own, in which the autopilot tries one treatment, whether or not a finding
  recommends it. ``no effect`` tries a setting that is set already, several times in one run. For the others the right
  decision is known, and the realized gain is compared with runs that had the setting from the start.

Run: ``python benchmarks/autopilot/run.py [--rounds N] [--real N] [--write]``: half a minute for 200 simulated rounds,
six minutes for each real round. ``--clinic FILE [--real N] [--write]`` makes the runs of ``in_clinic`` instead, those
that the file lacks: a quarter of an hour per round, and as much for the healthy trainings.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from lightning_perf.stats.sequential import BlockTrial

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "autopilot.md"
STEPS, LEFT_OUT = 26, 6
STEP_KINDS = {
    "independent": (0.1, 0.0, 0.0),
    "correlated (0.9)": (0.1, 0.9, 0.0),
    "strongly correlated (0.99)": (0.1, 0.99, 0.0),
    "drift, 2.6 % per block": (0.1, 0.0, 1e-3),
    "noisy and correlated (0.95)": (0.3, 0.95, -1e-4),
}
"""Standard deviation of a step's logarithm, its correlation with the step before, and drift per step."""

GAINS = (0.9, 1.0, 1.05, 1.1, 1.2, 1.5)
MOST_KEPT = 0.02

CASES: dict[str, tuple[str, str]] = {
    "anomaly detection": ("anomaly-off", "kept"),
    "8 threads": ("threads=1", "kept"),
    "to 8 threads": ("threads=8", "undone"),
    "progress bar at each step": ("progress-refresh=50", "kept"),
    "slow data": ("loader-workers=2", "kept"),
    "fast data": ("loader-workers=2", "undone"),
}
"""Of each real training, the treatment and the right decision."""

N_AA, N_PAIRS = 20, 3


def simulated(gain: float, deviation: float, correlation: float, drift: float, seed: int) -> tuple[str, int]:
    """Return the decision on a treatment, and the pairs of blocks that it took."""
    draw, trial = np.random.default_rng(seed), BlockTrial(random.Random(seed))
    level, step = 0.0, 0
    while (verdict := trial.verdict()) is None:
        noise = draw.normal(0, deviation * math.sqrt(1 - correlation**2), STEPS)
        times = []
        for each in noise:
            level = correlation * level + each
            times.append(math.exp(level + drift * step))
            step += 1
        mean_s = statistics.fmean(times[LEFT_OUT:])
        trial.add(mean_s / gain if trial.is_next_treated else mean_s)
    return verdict, len(trial.logs)


def simulated_rows(n_rounds: int) -> list[list[str]]:
    rows = []
    for name, kind in STEP_KINDS.items():
        cells = []
        for gain in GAINS:
            found = [simulated(gain, *kind, seed) for seed in range(n_rounds)]
            kept = sum(verdict == "kept" for verdict, _ in found) / n_rounds
            median = round(statistics.median(n for _, n in found))
            cells.append(f"{100 * kept:.1f} % ({median} + {median})")
            if gain <= 1 and kept > MOST_KEPT:
                cells[-1] += " **too many**"
        rows.append([name, *cells])
    return rows


def train(case: str, treatment: str, is_from_start: bool) -> None:
    """Train in this process and print the tries, and the median time of the last steps."""
    import torch
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import TQDMProgressBar
    from torch.utils.data import DataLoader, Dataset

    from lightning_perf import PerfDoctor, autopilot

    class Samples(Dataset):
        def __len__(self) -> int:
            return 320

        def __getitem__(self, index: int) -> torch.Tensor:
            if case == "slow data":
                time.sleep(0.001)
            return torch.full((64,), float(index % 5))

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            layers = [torch.nn.Linear(64, 64) for _ in range(6 if "bar" in case else 20)]
            self.layers = torch.nn.Sequential(*layers)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layers(batch).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-4)

    class Times(Callback):
        def __init__(self) -> None:
            self.at_s: list[float] = []

        def on_train_epoch_start(self, *_: Any) -> None:
            self.at_s.append(time.perf_counter())

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if not is_from_start and batch_idx == 0:
                pilot = doctor._run.autopilot if doctor._run is not None else None
                trainer.should_stop |= pilot is not None and not pilot._waiting and pilot._try is None

    begin = autopilot.Autopilot.__init__
    n_tries = N_AA if case == "no effect" else 0 if is_from_start else 1

    def init(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        if n_tries:
            unit = self._unit_of(autopilot.parse(treatment))
            self._waiting, self._next_sync = [(treatment, "PD000", unit)] * n_tries, 60

    autopilot.Autopilot.__init__ = init  # type: ignore[method-assign]
    autopilot.Autopilot.offer = lambda *_: None  # type: ignore[method-assign,assignment]
    setting = treatment if is_from_start else ""
    torch.set_num_threads({"8 threads": 8}.get(case, 1))
    if setting.startswith("threads"):
        torch.set_num_threads(int(setting.partition("=")[2]))
    doctor, times = PerfDoctor(autopilot="numerics", reports=(), schedule=None, probe_data=False), Times()
    is_epochs = case in ("slow data", "fast data")
    trainer = Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_model_summary=False,
        detect_anomaly=case == "anomaly detection" and not setting, enable_progress_bar="bar" in case,
        max_epochs=(6 if is_epochs else 40) if is_from_start else 30 if is_epochs else 400,
        callbacks=[doctor, times, *([TQDMProgressBar(50 if setting else 1)] if "bar" in case else [])],
    )  # fmt: skip
    workers = 2 if is_epochs and setting else 0
    trainer.fit(Model(), DataLoader(Samples(), batch_size=8, num_workers=workers, persistent_workers=workers > 0))
    epochs = [after - before for before, after in zip(times.at_s, times.at_s[1:], strict=False)]
    assert doctor.session is not None
    pilot = doctor.session.autopilot
    assert pilot is not None
    gains = [one.speedup and [one.speedup.value, one.speedup.low, one.speedup.high] for one in pilot.tries]
    tries = [[one.status, one.n_pairs, gain, one.reason] for one, gain in zip(pilot.tries, gains, strict=True)]
    epoch_s = statistics.median(epochs[1:] or [0.0])
    print("RESULT", json.dumps({"tries": tries, "epoch_s": epoch_s, "lost_s": pilot.lost_s}))


def run(case: str, treatment: str, is_from_start: bool = False) -> dict[str, Any]:
    arguments = ["--train", case, treatment, *(["--from-start"] if is_from_start else [])]
    command, environment = [sys.executable, __file__, *arguments], {**os.environ, "OMP_NUM_THREADS": "8"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    line = next((each for each in done.stdout.splitlines() if each.startswith("RESULT")), None)
    if line is None:
        raise SystemExit(f"{case} failed: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(line.partition(" ")[2])
    return found


def real_rows(n_rounds: int) -> list[list[str]]:
    rows = []
    for n in range(n_rounds):
        tries = run("no effect", "threads=1")["tries"]
        kept = sum(status == "kept" for status, *_ in tries)
        text = f"{kept} of {len(tries)} kept"
        rows.append([f"no effect, round {n + 1}", "threads=1, as it is", "met" if not kept else "missed", text, ""])
        print(" | ".join(rows[-1]), flush=True)
        for case, (treatment, right) in CASES.items():
            status, n_pairs, speedup, reason = run(case, treatment)["tries"][0]
            told = f"{status}, {n_pairs} + {n_pairs}"
            told += f", {speedup[0]:.2f}x ({speedup[1]:.2f}–{speedup[2]:.2f})" if speedup else f", {reason}"
            offline = ""
            if right == "kept":
                offline = f"{_from_start(case, treatment):.2f}x"
            rows.append([f"{case}, round {n + 1}", treatment, "met" if status == right else "missed", told, offline])
            print(" | ".join(rows[-1]), flush=True)
    return rows


def _from_start(case: str, treatment: str) -> float:
    """Return the time of an epoch without the setting ÷ with it from the start: the median of alternating runs."""
    ratios = []
    for n in range(N_PAIRS):
        order = (treatment, "") if n % 2 else ("", treatment)
        epoch_s = {text: run(case, text, is_from_start=True)["epoch_s"] for text in order}
        ratios.append(epoch_s[""] / epoch_s[treatment])
    return statistics.median(ratios)


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--real", type=int, default=1)
    parser.add_argument("--clinic", type=Path, metavar="FILE", help="JSON lines, one per run in the clinic's trainings")
    parser.add_argument("--cases", default="", metavar="NAME,…", help="only these of the clinic's")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--train", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--from-start", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(*arguments.train, arguments.from_start)
        return
    if arguments.clinic:
        import in_clinic

        in_clinic.add_to(arguments.clinic, arguments.real, {name for name in arguments.cases.split(",") if name})
        text = in_clinic.section(in_clinic.lines_of(arguments.clinic))
        print(text)
        if arguments.write:
            PAGE.write_text(PAGE.read_text().partition(in_clinic.HEADING)[0] + text)
        return
    heads = ["steps", *(f"{gain:.2f}x" for gain in GAINS)]
    text = table(heads, simulated_rows(arguments.rounds))
    print(text, flush=True)
    real = table(["training", "treatment", "", "decision", "set from the start"], real_rows(arguments.real))
    print(real)
    if arguments.write:
        date = datetime.now(timezone.utc).date()
        about = (__doc__ or "").partition("\n\nRun:")[0]
        command = f"python benchmarks/autopilot/run.py --rounds {arguments.rounds} --real {arguments.real} --write"
        in_clinics = "".join(PAGE.read_text().partition("\n## In the clinic's trainings")[1:])
        PAGE.write_text(
            f"# Autopilot\n\n{about}\n\nWritten by `{command}`: {os.cpu_count()} cores, {date}.\n\n## Simulated\n\n"
            "Share of rounds in which the treatment was kept, and the median number of blocks without and with it, by "
            f"its true speedup.\n\n{text}\n\n## Real\n\n{real}\n{in_clinics}"
        )


if __name__ == "__main__":
    main()
