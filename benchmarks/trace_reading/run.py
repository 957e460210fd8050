"""Compare reading traces with HolisticTraceAnalysis and the old TensorBoard tab's loader; read a trace of 1 GiB.

    python benchmarks/trace_reading/run.py --traces DIR [--venv DIR] [--out docs/benchmarks/trace-reading.md]

Each reader has its own interpreter (virtual environments are created under ``--venv``) and each measurement its own
process; readers alternate: ours, HTA, the tab, and again. Figures are medians of CPU seconds without imports.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from statistics import median
from typing import Any

from big_trace import write_trace

PEERS = {"hta": "HolisticTraceAnalysis==0.5.0", "tb": "torch-tb-profiler==0.4.3"}
HERE = Path(__file__).parent
DEFAULT_TRACES = (
    *("resnet50-workers0", "resnet50-workers4", "a100-ddp-host-bound", "v100-compute", "qwen-h100"),
    "transformer-with-stack-h100",
)
PLAIN = "resnet50-workers0"
"""This trace is also read uncompressed: 35 MB of JSON."""


def peers(folder: Path) -> dict[str, Path]:
    """Create the peers' environments if missing; leave out those that cannot be installed."""
    found: dict[str, Path] = {}
    for name, requirement in PEERS.items():
        python = folder / name / "bin" / "python"
        if not python.exists():
            venv.create(folder / name, with_pip=True)
        installed = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", requirement], capture_output=True, text=True, check=False
        )
        if installed.returncode:
            print(f"{requirement} cannot be installed and is left out: {installed.stderr.strip()[-200:]}")
        else:
            found[name] = python
    return found


def measure(python: Path, reader: str, trace: Path) -> dict[str, Any]:
    """Measure one reading in a new process; return ``{"error": …}`` if it failed."""
    done = subprocess.run(
        [python, HERE / "arm.py", reader, trace], capture_output=True, text=True, check=False, timeout=900
    )
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1][:80] if done.stderr.strip() else "failed"}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def compare(pythons: dict[str, Path], traces: list[Path], repeats: int) -> list[str]:
    """Return the table of readers by traces."""
    lines = [
        "| trace | MB of JSON | ours: CPU, s | wall, s | HTA 0.5.0: CPU, s | wall, s | CPU ÷ ours | wall ÷ ours "
        "| old tab's loader: CPU, s | wall, s | CPU ÷ ours | wall ÷ ours |",
        "|:--|--:|" + "--:|" * 10,
    ]
    for trace in traces:
        runs: dict[str, list[dict[str, Any]]] = {reader: [] for reader in pythons}
        for _ in range(repeats):
            for reader, python in pythons.items():
                runs[reader].append(measure(python, reader, trace))
        own_cpu, own_wall = _medians(runs["ours"])
        cells = [trace.name, f"{_text_bytes(trace) / 1e6:.1f}", f"{own_cpu:.2f}", f"{own_wall:.2f}"]
        for reader in PEERS:
            good = [run for run in runs.get(reader, []) if "cpu_s" in run]
            if good:
                cpu, wall = _medians(good)
                cells += [f"{cpu:.2f}", f"{wall:.2f}", f"{cpu / own_cpu:.1f}×", f"{wall / own_wall:.1f}×"]
            else:
                why = next((run["error"] for run in runs.get(reader, []) if "error" in run), "not installed")
                cells += [f"refused: {why}", "", "", ""]
        lines.append("| " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    return lines


def _medians(runs: list[dict[str, Any]]) -> tuple[float, float]:
    return median(run["cpu_s"] for run in runs), median(run["wall_s"] for run in runs)


def _text_bytes(trace: Path) -> int:
    if trace.suffix != ".gz":
        return trace.stat().st_size
    with gzip.open(trace) as file:
        return sum(len(chunk) for chunk in iter(lambda: file.read(1 << 20), b""))


def large(folder: Path, gib: float, n_events: int) -> list[str]:
    """Return the table of synthetic traces too large to hold as objects."""
    lines = [
        "| trace | size, MB | events | CPU, s | wall, s | peak memory, MB | peak ÷ size |",
        "|:--|--:|--:|--:|--:|--:|--:|",
    ]
    for label, options in (
        (f"{gib:g} GiB", {"n_bytes": int(gib * 2**30)}),
        (f"{n_events:,} events", {"n_events": n_events}),
    ):
        if not any(options.values()):
            continue
        trace = folder / "big.json"
        written = write_trace(trace, **options)
        size = trace.stat().st_size
        run = measure(Path(sys.executable), "ours", trace)
        trace.unlink()
        if "error" in run:
            lines.append(f"| {label} | {size / 1e6:,.0f} | {written:,} | failed: {run['error']} | | | |")
        else:
            lines.append(
                f"| {label} | {size / 1e6:,.0f} | {written:,} | {run['cpu_s']:.1f} | {run['wall_s']:.1f} "
                f"| {run['peak_bytes'] / 1e6:,.0f} | {run['peak_bytes'] / size:.2f} |"
            )
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Run both parts and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, required=True, help="folder of real traces")
    parser.add_argument("--only", nargs="*", default=DEFAULT_TRACES, help="names of traces, without extensions")
    parser.add_argument("--venv", type=Path, default=Path.home() / ".cache" / "lightning-perf" / "peers")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--gib", type=float, default=1.0, help="size of the synthetic trace; 0 for none")
    parser.add_argument(
        "--events", type=int, default=0, help="events of a second synthetic trace, e.g. 10000000; 0 for none"
    )
    parser.add_argument("--out", type=Path, help="write the tables to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        traces = []
        for trace in arguments.only:
            packed = arguments.traces / f"{trace}.json.gz"
            if trace == PLAIN:
                plain = folder / f"{trace}.json"
                with gzip.open(packed) as source, plain.open("wb") as target:
                    shutil.copyfileobj(source, target)
                traces.append(plain)
            traces.append(packed)
        compared = compare({"ours": Path(sys.executable), **peers(arguments.venv)}, traces, arguments.repeats)
        big = large(folder, arguments.gib, arguments.events)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(_page(compared, big, arguments.repeats), encoding="utf-8")


def _page(compared: list[str], big: list[str], repeats: int) -> str:
    return "\n".join(
        [
            "# Reading traces",
            "",
            "Written by `benchmarks/trace_reading/run.py`. Seconds of the process and its children, without imports;",
            f"medians of {repeats} new processes per reader, readers alternate. Ours loads and analyzes everything;",
            "HTA loads and computes its temporal and idle breakdowns; the old tab parses, processes and analyzes.",
            f"Python {platform.python_version()} on {platform.machine()}; the machine was shared: compare ratios only.",
            "",
            *compared,
            "",
            "## Large traces",
            "",
            "Synthetic traces, loaded and analyzed completely; peak memory includes the interpreter and all imports.",
            "",
            *big,
            "",
        ]
    )


if __name__ == "__main__":
    main()
