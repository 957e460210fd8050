"""``lightning-perf demo``: a small training with a planted fault, diagnosed."""

import os
import shlex
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from .output import FOUND, check_choice, check_folder, default_folder, require_folder


class Fault(NamedTuple):
    """A fault that can be planted.

    Attributes:
        code: The rule that should name it; None without a fault.
        summary: The fault in one line.
    """

    code: str | None
    summary: str


FAULTS = {
    "slow-transform": Fault("PD101", "decoding takes 40 ms per batch, and no worker does it in the background"),
    "no-persistent-workers": Fault("PD104", "two workers are restarted in each of many short epochs"),
    "logging-every-step": Fault("PD502", "150 metrics are logged at every step"),
    "slow-callback": Fault("PD504", "a callback inspects the weights for 20 ms after each step"),
    "slow-logger": Fault("PD505", "the logger takes 200 ms to write, every tenth step"),
    "heavy-validation": Fault("PD601", "four validation rounds per epoch"),
    "frequent-checkpoints": Fault("PD602", "a checkpoint is written at every step"),
    "none": Fault(None, "no fault"),
}


def demo(
    fault: Annotated[str, typer.Option(help=f"One of {', '.join(FAULTS)}.")] = "slow-transform",
    out: Annotated[Path | None, typer.Option(help="Where logs go; perf_logs/demo-<fault>-<time> by default.")] = None,
) -> None:
    """Train a small model on the CPU with a planted fault, and diagnose it; takes about half a minute.

    Exits with 1 if the diagnosis names another fault first.
    """
    check_choice("--fault", fault, tuple(FAULTS))
    check_folder(out)
    out_dir = out or default_folder(f"demo-{fault}")
    require_folder(out_dir)
    # On shared cores, threads that spin while they wait make a small training many times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    print("Loading torch and lightning ...", flush=True)
    from lightning_perf.demo import run_demo

    planted = FAULTS[fault]
    print(f"Planted: {planted.summary}.", flush=True)
    session = run_demo(fault, out_dir)
    named = session.verdict.code
    expected = planted.code or "no finding above info"
    print(f"\nPlanted {fault} ({expected}); the diagnosis says {named or session.verdict.category} first.")
    print(f"To show this report again:\nlightning-perf report {shlex.quote(str(out_dir))}")
    if named != planted.code or (planted.code is None and session.verdict.category != "healthy"):
        raise typer.Exit(FOUND)
