"""Record traces and sessions of the trainings in this folder: ``python -m tests.gpu.record_traces``, on a GPU.

They go to ``tests/traces/gpu/``, each with the settings it was made with; ``tests/traces/test_gpu_fixtures.py`` reads
them on machines without a device.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch
from lightning.pytorch import Trainer, seed_everything

from lightning_perf import DoctorOptions, PerfDoctor
from lightning_perf.records import Session
from tests.gpu.trainings import N_STEPS, SCHEDULE, TRAININGS, Training, loader_of

FOLDER = Path(__file__).parents[1] / "traces" / "gpu"


def train(training: Training, folder: Path, with_stack: bool = False) -> Session:
    """Runs one of them with a profiler window.

    Args:
        training: Which.
        folder: Where session and trace go.
        with_stack: Whether Python stacks are recorded; without them steps are closer to what they are.

    Returns:
        The findings of PerfDoctor.
    """
    seed_everything(1, verbose=False)
    options = DoctorOptions(profiler={"with_stack": with_stack})
    doctor = PerfDoctor(schedule=SCHEDULE, options=options, out_dir=folder, reports=("json",))
    trainer = Trainer(
        accelerator="cuda",
        devices=1,
        max_steps=N_STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[doctor],
        **training.trainer,
    )
    trainer.fit(training.module(), loader_of(training))
    if doctor.session is None:
        raise RuntimeError("PerfDoctor has no session; see its warnings above")
    return doctor.session


def main() -> None:
    """Record all of them again."""
    if not torch.cuda.is_available():
        raise SystemExit("no GPU that torch can use: nothing recorded")
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, training in TRAININGS.items():
        with tempfile.TemporaryDirectory() as folder:
            session = train(training, Path(folder))
            (trace,) = Path(folder).rglob("*.pt.trace.json.gz")
            shutil.copy(trace, FOLDER / f"{name}.json.gz")
            session.save(FOLDER / f"{name}.session.json")
        print(f"{name}: {session.verdict.text}")


if __name__ == "__main__":
    main()
