"""Real trainings for the history's benchmark: how often runs of the same training are called slower.

    python benchmarks/history/real_runs.py FOLDER UNITS

runs one of them, in a process of its own. FOLDER receives the run as the history keeps it: one JSON file per state that
was saved. UNITS is the number of matrix multiplications per step, most of its time.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lightning_perf.history.run_history import MAX_RUNS, MIN_STEPS
from lightning_perf.history.slower import slower_times
from lightning_perf.records import Session
from lightning_perf.stats.comparison import typical_step_s
from lightning_perf.stats.next_run import LAST_RUNS, alpha_of

EPOCHS, STEPS, SIZE, PARSED = 2, 260, 192, 3000
"""``PARSED`` rows of JSON are parsed for each batch. A run is compared for the first time after its first epoch: 200
steps and the warm-up."""

N_RUNS, UNITS, MORE_UNITS = 56, 26, 29
"""A ninth more of them are 8 to 9 % more time: the rest of the step stays as it is."""

N_SHUFFLED, MANY = 1000, 10
HEADING = "### Real runs"

PLANTED = (("data_wait", 1.1), ("forward", 1.1), ("backward", 1.1), ("", 1.1), ("", 1.2), ("", 1.5))
"""Phase that is longer, all if empty, and the factor by which this makes steps longer."""

Run = list[Session]
"""States of a run, oldest first."""


def train(folder: Path, units: int) -> None:
    """Train under PerfDoctor, and write each state of the run that would be saved."""
    import torch
    from lightning.pytorch import LightningModule, Trainer

    from lightning_perf import PerfDoctor
    from lightning_perf.history.entry import reduced
    from lightning_perf.history.run_history import RunHistory

    states: list[Any] = []
    RunHistory.save = lambda self, session: states.append(reduced(session))  # type: ignore[method-assign]

    class Net(LightningModule):
        """A linear layer that is applied many times."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(SIZE, SIZE)

        def training_step(self, batch: Any, _: int) -> Any:
            for _ in range(units):
                batch = torch.tanh(self.layer(batch))
            return batch.square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def collate(rows: Sequence[Any]) -> Any:
        json.loads(text)
        return torch.stack(rows)

    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    text = json.dumps([{"id": i, "name": f"row {i}"} for i in range(PARSED)])
    data = torch.utils.data.DataLoader(torch.randn(STEPS * 64, SIZE), batch_size=64, collate_fn=collate)
    doctor = PerfDoctor(reports=(), schedule=None, probe_data=False, out_dir=str(folder / "reports"))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    Trainer(
        max_epochs=EPOCHS, accelerator="cpu", callbacks=[doctor], enable_model_summary=False, **quiet
    ).fit(Net(), data)  # fmt: skip
    for i, state in enumerate(states):
        (folder / f"state{i}.json").write_bytes(msgspec.json.encode(state))


def make(folder: Path) -> None:
    """Make real runs in a folder unless there is one; from the eighth on, every fourth is slower."""
    for i in range(0 if folder.exists() else N_RUNS):
        is_slow = i > 6 and i % 4 == 3
        target = folder / f"{i:03d}{'-slow' if is_slow else ''}"
        target.mkdir(parents=True)
        command = [sys.executable, __file__, str(target), str(MORE_UNITS if is_slow else UNITS)]
        subprocess.run(command, check=True, capture_output=True)


def section(folders: Sequence[Path], slower: Callable[[Session, float, str], Session]) -> str:
    """Return the part of the page on the runs in folders; ``slower`` makes the steps of a session longer."""
    tables = "\n\n".join(_series(folder, slower) for folder in folders)
    return f"""{HEADING}

Runs of one training of {EPOCHS * STEPS} steps, each in a process of its own, on {os.cpu_count()} cores that other
programs use too, with as much as those leave. Each run is compared with up to {MAX_RUNS} before it, or with
{LAST_RUNS}. The last columns take the same runs with longer steps of the next one, by the time of one phase or of all,
at {MIN_STEPS} steps or a few more. Shuffled orders share runs, so they are no more evidence than the runs in order.
*Without the machine's speed*: the same comparison if the time of the fixed piece of Python were not known.

{tables}"""


def _series(folder: Path, slower: Callable[[Session, float, str], Session]) -> str:
    rng = random.Random(1)
    same: list[Run] = []
    planted: list[tuple[list[Run], Run]] = []
    for path in sorted(folder.iterdir()):
        run = _read(path)
        if run and path.name.endswith("-slow"):
            planted.append((same[-MAX_RUNS:], run))
        elif run:
            same.append(run)
    at = range(LAST_RUNS, len(same))
    many = min(MAX_RUNS, len(same) - 1)
    unknown = [[_without_speed(state) for state in run] for run in same]
    by_kind = {
        f"in order, {LAST_RUNS} to {MAX_RUNS} earlier runs": [(same[max(0, i - MAX_RUNS) : i], same[i]) for i in at],
        f"in order, {MANY} to {MAX_RUNS} earlier runs": [
            (same[max(0, i - MAX_RUNS) : i], same[i]) for i in at if i >= MANY
        ],
        f"in order, {LAST_RUNS} earlier runs": [(same[i - LAST_RUNS : i], same[i]) for i in at],
        "in order, without the machine's speed": [(unknown[max(0, i - MAX_RUNS) : i], unknown[i]) for i in at],
        f"shuffled, {LAST_RUNS} earlier runs": [_drawn(rng, same, LAST_RUNS) for _ in range(N_SHUFFLED)],
        f"shuffled, {many} earlier runs": [_drawn(rng, same, many) for _ in range(N_SHUFFLED)],
    }
    rows = [
        (name, len(pairs), *(_share(pairs, slower, by, phase) for phase, by in (("", 1.0), *PLANTED)))
        for name, pairs in by_kind.items()
    ]
    heads = " | ".join(f"{by - 1:.0%} by {phase.replace('_', ' ') or 'all phases'}" for phase, by in PLANTED)
    table = "\n".join(
        f"| {name} | {n:,} | {' | '.join(f'{share:.1%}' for share in shares)} |" for name, n, *shares in rows
    )
    n_said = sum(_said(base, run[:1]) for base, run in planted)
    said = f"{n_said} {'was' if n_said == 1 else 'were'}"
    logs, slow = (np.log([typical_step_s(run[-1]) or math.nan for run in runs])
                  for runs in (same, [run for _, run in planted]))  # fmt: skip
    typical_s, n_apart = math.exp(np.median(logs)), len(same) // (LAST_RUNS + 1)
    return f"""{len(same)} runs with a median step of {1e3 * typical_s:.1f} ms, from {1e3 * math.exp(logs.min()):.1f} to
{1e3 * math.exp(logs.max()):.1f} ms (standard deviation of the logarithm {logs.std(ddof=1):.3f}); {n_apart} sequences of
{LAST_RUNS} earlier runs and the next one have no run in common:

| sequences | number | false alarms | {heads} |
|:--|--:|--:|{len(PLANTED) * "--:|"}
{table}

Of {len(planted)} more runs with a ninth more computing, made between them, {said} called slower at that time; their
median step is {math.exp(np.median(slow)) / typical_s:.2f} times that of the others."""


def kept_section(page: Path) -> str:
    """Return the part of the page as it was written last."""
    text = page.read_text(encoding="utf-8")
    return text[text.index(HEADING) : text.index("\n## Causes")].rstrip() if HEADING in text else ""


def _read(folder: Path) -> Run:
    """Return the states of a run in which it is compared: with ``MIN_STEPS``, then twice as many."""
    states = [msgspec.json.decode(file.read_bytes(), type=Session) for file in sorted(folder.glob("state*.json"))]
    found: Run = []
    for each in states:
        n_steps = each.steady.n_steps if each.steady is not None else 0
        least = 2 * found[-1].steady.n_steps if found and found[-1].steady is not None else MIN_STEPS
        if n_steps >= least:
            found.append(each)
    return found


def is_said(base: Sequence[Session], states: Run) -> bool:
    """Return whether a run is called slower at one of the times that it is compared."""
    return any(slower_times(base, each, alpha_of(i)) for i, each in enumerate(states))


def _said(base: Sequence[Run], states: Run) -> bool:
    return is_said([run[-1] for run in base], states)


def _without_speed(session: Session) -> Session:
    steady = session.steady and msgspec.structs.replace(session.steady, fixed_python_s=None)
    return msgspec.structs.replace(session, steady=steady)


def _drawn(rng: random.Random, runs: Sequence[Run], n: int) -> tuple[list[Run], Run]:
    *base, new = rng.sample(runs, n + 1)
    return base, new


def _share(
    pairs: Sequence[tuple[list[Run], Run]],
    slower: Callable[[Session, float, str], Session],
    by: float,
    phase: str,
) -> float:
    """Return the share of pairs that are called slower: at any time, or made slower at the first."""
    found = [_said(base, run if by == 1 else [slower(run[0], by, phase)]) for base, run in pairs]
    return sum(found) / len(found)


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]))
