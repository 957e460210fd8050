"""Results of TraceML on the same cases, with its own launcher, its default settings, and in a separate environment.

TraceML reports a category, not a cause, so the score is whether the category includes the cause. The map is generous: a
category counts for every cause that it could include, and `COMPUTE_BOUND` is no accusation, since it is also the state
of a training without problems. Findings of its sections (memory growth) count like its primary diagnosis. TraceML is
made for GPUs first, and these runs have none; with few steps it reports insufficient data.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from case import Case

HERE = Path(__file__).resolve().parent
PATIENCE_S = 120.0

CATEGORIES = {
    "INPUT_BOUND": "PD101 PD102 PD103 PD104 PD105 PD106 PD107 PD108 PD109 PD110 PD114 PD203",
    "INPUT_STRAGGLER": "PD701 PD704",
    "COMPUTE_STRAGGLER": "PD701",
    "STRAGGLER": "PD701",
    "H2D_STRAGGLER": "PD701",
    "H2D_BOUND": "PD201 PD202 PD203",
    "COMPUTE_BOUND": " ".join(
        ["PD301 PD304 PD308 PD309 PD311 PD312 PD315 PD316 PD318 PD319 PD503 PD510 PD605 PD606 PD610 PD703 PD803"]
        + [f"PD{number}" for number in range(321, 344)]
    ),
    "RESIDUAL_HEAVY": "PD104 PD111 PD502 PD504 PD505 PD506 PD601 PD602 PD603 PD607 PD705",
    "CREEP_CONFIRMED": "PD405 PD113",
    "CREEP_EARLY": "PD405 PD113",
}
"""Its category → the codes whose cause it may stand for."""

ACCUSES_NOBODY = {
    "COMPUTE_BOUND",
    "BALANCED",
    "NORMAL",
    "NO_DATA",
    "NO_GPU",
    "WARMUP",
    "INCOMPLETE_DATA",
    "NO_CLEAR_PERFORMANCE_BOTTLENECK",
    "INSUFFICIENT_STEP_TIME_DATA",
}


class Said(NamedTuple):
    """What it said of one case.

    Attributes:
        case: The case.
        kinds: Its primary diagnosis, then those of its sections.
        is_right: Whether one of them is the category of the cause; of a healthy case, whether none accuses it.
        error: Why there is none.
    """

    case: Case
    kinds: tuple[str, ...]
    is_right: bool
    error: str = ""


def environment(venv: Path | None) -> Path | None:
    """TraceML's environment, made as the benchmark of overhead makes it; None where it cannot be made.

    Args:
        venv: Where it is or shall be; None for where that benchmark has it.
    """
    sys.path.insert(0, str(HERE.parent / "overhead"))
    specification = importlib.util.spec_from_file_location("overhead_run", HERE.parent / "overhead" / "run.py")
    assert specification is not None
    assert specification.loader is not None
    overhead = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(overhead)
    venv = venv or overhead.DEFAULT_VENV
    if not overhead.traceml_venv(venv):
        return None
    python = str(venv / "bin" / "python")
    constraints = ["--constraint", str(HERE.parents[1] / "constraints.txt")]
    try:  # what some of the cases log with
        subprocess.run([python, "-m", "pip", "install", "--quiet", *constraints, "tensorboard"], check=True)
    except subprocess.CalledProcessError as error:
        print(f"TraceML is left out: tensorboard could not be installed beside it ({error})", file=sys.stderr)
        return None
    return venv


def versions_in(venv: Path) -> str:
    """TraceML's version and those it ran with."""
    names = ("traceml-ai", "torch", "lightning")
    told = f"from importlib.metadata import version; print(*(f'{{n}} {{version(n)}}' for n in {names}), sep=', ')"
    done = subprocess.run([str(venv / "bin" / "python"), "-c", told], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def diagnosed(cases: Sequence[Case], venv: Path) -> list[Said]:
    """One run of each, one after another, on as many cores as the case has."""
    told = []
    for case in cases:
        started_s = time.monotonic()
        told.append(_diagnosed(case, venv))
        took_s = time.monotonic() - started_s
        print(
            f"{case.name} by TraceML in {took_s:.1f} s: {told[-1].kinds or told[-1].error}", file=sys.stderr, flush=True
        )
    return told


def _diagnosed(case: Case, venv: Path) -> Said:
    with tempfile.TemporaryDirectory(prefix="clinic-", ignore_cleanup_errors=True) as folder:
        script = Path(folder) / case.script.name
        script.write_text(case.script.read_text(encoding="utf-8"), encoding="utf-8")
        cores = ",".join(map(str, range(case.n_cores)))
        command = ["taskset", "--cpu-list", cores, str(venv / "bin" / "traceml"), "run"]
        try:
            done = subprocess.run(
                [*command, "--logs-dir", f"{folder}/logs", "--run-name", "clinic", str(script)],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Said(case, (), False, f"it did not end within {PATIENCE_S:.0f} s")
        summaries = list(Path(folder).rglob("final_summary.json"))
        if not summaries:
            return Said(case, (), False, f"no summary; ended with {done.returncode}: {done.stderr[-200:].strip()}")
        kinds = _kinds(json.loads(summaries[0].read_text(encoding="utf-8")))
    if case.kind == "healthy":
        return Said(case, kinds, set(kinds[:1]) <= ACCUSES_NOBODY)
    stands_for = {code for kind in kinds for code in CATEGORIES.get(kind, "").split()}
    return Said(case, kinds, bool(stands_for & set(case.expect)))


def _kinds(summary: dict[str, Any]) -> tuple[str, ...]:
    blocks = [summary.get("primary_diagnosis")]
    blocks += [(summary.get(section) or {}).get("diagnosis") for section in ("step_time", "step_memory")]
    return tuple(dict.fromkeys(block["kind"] for block in blocks if block and block.get("kind")))
