"""One real training for the history's benchmark, in a process of its own.

    python benchmarks/history/real_runs.py FOLDER UNITS

FOLDER receives the run as the history keeps it: one JSON file per state that was saved. UNITS is the number of matrix
products per step, nearly all of its time, so that a tenth more is a regression of about 10 %.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import msgspec

EPOCHS, STEPS, SIZE = 2, 260, 192
"""A run is compared for the first time after its first epoch: 200 steps and the warm-up."""


def train(folder: Path, units: int) -> None:
    """Train under PerfDoctor, and write each state of the run that would be saved."""
    import torch
    from lightning.pytorch import LightningModule, Trainer

    from lightning_perf import PerfDoctor
    from lightning_perf.history.entry import kept
    from lightning_perf.history.run_history import RunHistory

    states: list[Any] = []
    RunHistory.save = lambda self, session: states.append(kept(session))  # type: ignore[method-assign]

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

    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    data = torch.utils.data.DataLoader(torch.randn(STEPS * 64, SIZE), batch_size=64)
    doctor = PerfDoctor(reports=(), schedule=None, probe_data=False, out_dir=str(folder / "reports"))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    Trainer(
        max_epochs=EPOCHS, accelerator="cpu", callbacks=[doctor], enable_model_summary=False, **quiet
    ).fit(Net(), data)  # fmt: skip
    for i, state in enumerate(states):
        (folder / f"state{i}.json").write_bytes(msgspec.json.encode(state))


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]))
