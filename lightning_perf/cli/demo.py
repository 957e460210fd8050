"""``lightning-perf demo``: a small training with a planted fault, diagnosed."""

import os
from pathlib import Path
from typing import Annotated

import typer

from .output import FOUND, check_choice, check_folder, default_folder

FAULT_NAMES = (
    "slow-transform",
    "no-persistent-workers",
    "logging-every-step",
    "slow-callback",
    "slow-logger",
    "heavy-validation",
    "frequent-checkpoints",
    "none",
)


def demo(
    fault: Annotated[str, typer.Option(help=f"One of {', '.join(FAULT_NAMES)}.")] = "slow-transform",
    out: Annotated[Path | None, typer.Option(help="Where logs go; perf_logs/demo-<fault>-<time> by default.")] = None,
) -> None:
    """Train a small model on the CPU with a planted fault, and diagnose it; takes about half a minute.

    Exits with 1 if the diagnosis names another fault first.
    """
    check_choice("--fault", fault, FAULT_NAMES)
    check_folder(out)
    # On shared cores, threads that spin while they wait make a small training many times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    print("Loading torch and lightning ...", flush=True)
    from lightning_perf.demo import FAULTS, run_demo

    planted = FAULTS[fault]
    print(f"Planted: {planted.summary}.", flush=True)
    out_dir = out or default_folder(f"demo-{fault}")
    session = run_demo(fault, out_dir)
    named = session.verdict.code
    expected = planted.code or "no finding above info"
    print(f"\nPlanted {fault} ({expected}); the diagnosis says {named or session.verdict.category} first.")
    print(f"The session is in {out_dir}: lightning-perf report {out_dir}")
    if named != planted.code or (planted.code is None and session.verdict.category != "healthy"):
        raise typer.Exit(FOUND)
