"""Measure the cost of combining many ranks, at the end of an epoch and later from disk.

    python benchmarks/ranks/run.py             print the table
    python benchmarks/ranks/run.py --write     and write docs/benchmarks/ranks.md

Collection: rank 0 collects the summaries of all ranks from a real TCP store on this machine. The summaries are already
in the store, so rank 0 does not wait. The single message of another rank is timed too. Merging: one session per rank is
written to a folder; a separate process then loads, merges, diagnoses and renders them, and reports its peak memory.
Comparing traces: a separate process matches the collectives of all ranks (three steps with a hundred each) and finds
the late rank. It starts from extracted logs; benchmarks/trace_reading measures reading the traces themselves. Figures
of collection are medians.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "benchmarks" / "ranks.md"
SIZES = (2, 8, 64, 256, 1024)
ROUNDS = 7
ALLOWED_MS, ALLOWED_US_PER_RANK = 5.0, 10.0
ALLOWED_MERGE_S, ALLOWED_MERGE_BYTES = 10.0, 2**30


def summary(rank: int):  # type: ignore[no-untyped-def]
    """Return a summary like that of a real rank."""
    from lightning_perf.records import RankSummary

    slow = 0.01 if rank % 257 == 3 else 0.0
    return RankSummary(
        rank=rank, node=f"node{rank // 8}", n_steps=1000, step_s=0.12, own_s=0.08 + slow, own_p50_s=0.08 + slow,
        waiting_s=0.04 - slow, waiting_n=24, parts_s={"data": 0.01 + slow, "compute": 0.068, "host": 0.002},
        wait_share=0.08, slowest_name="ModelCheckpoint.on_train_batch_end", slowest_s=0.0003, n_batches=1000,
        n_samples=32000, n_unused=0, peak_bytes=40 * 2**30,
    )  # fmt: skip


def collection(n_ranks: int) -> tuple[float, float]:
    """Return the median milliseconds of (rank 0, another rank)."""
    import torch.distributed as dist

    from lightning_perf.probes.ranks.exchange import Exchange

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [Exchange(store, rank, n_ranks) for rank in range(n_ranks)]
    first, others = [], []
    for _ in range(ROUNDS):
        for rank in range(1, n_ranks):
            start = time.perf_counter()
            ranks[rank].share(summary(rank), 2.0)
            others.append(time.perf_counter() - start)
        start = time.perf_counter()
        together = ranks[0].share(summary(0), 2.0)
        first.append(time.perf_counter() - start)
        assert together is not None
        assert len(together.summaries) == n_ranks
    return statistics.median(first) * 1e3, statistics.median(others) * 1e3


def write_sessions(folder: Path, n_ranks: int) -> int:
    """Write the session files of ``n_ranks`` ranks; return their total bytes."""
    sys.path.insert(0, str(REPOSITORY / "tests"))
    from reports.sessions import ddp

    from lightning_perf.records import RANKS_FOLDER, SESSION_FILE, combine_ranks

    base = ddp()
    for rank in range(n_ranks):
        run = msgspec.structs.replace(base.run, rank=rank, world_size=n_ranks, id=f"run-{rank}")
        one = msgspec.structs.replace(base, run=run, ranks=combine_ranks((summary(rank),), n_ranks))
        one.save(folder / (SESSION_FILE if rank == 0 else f"{RANKS_FOLDER}/perf_session.rank{rank}.json"))
    return sum(file.stat().st_size for file in folder.rglob("*.json"))


def compare_traces(n_ranks: int) -> None:
    """Compare the logs of ``n_ranks`` ranks' traces; print time and memory. Runs in a process of its own."""
    from lightning_perf.traces.multi_rank import compare_ranks

    logs = [rank_log(rank, min(3, n_ranks - 1)) for rank in range(n_ranks)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    start = time.perf_counter()
    ranks = compare_ranks(logs)
    took = time.perf_counter() - start
    assert ranks is not None
    assert max(ranks.ranks, key=lambda one: one.straggler_share).rank == min(3, n_ranks - 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps([took, peak, before]))


def rank_log(rank: int, slow: int):  # type: ignore[no-untyped-def]
    """Return the log of a trace: three steps of a hundred collectives; rank ``slow`` is 2 ms late to the first."""
    import numpy as np

    from lightning_perf.traces.multi_rank import CollectiveKey, RankLog, StepTime

    n_steps, n = 3, 100
    noise = np.random.default_rng(rank)
    place = np.arange(n_steps * n)
    ends = (place + 1) * 1_000_000 + noise.integers(0, 5_000, len(place))
    took = 400_000 + 100 * (place % 7) + np.where(place % n == 0, 0 if rank == slow else 2_000_000, 0)
    took = took + noise.integers(0, 50_000, len(place))
    steps = {f"ProfilerStep#{i}": StepTime(100_000_000, 0, 60_000_000, 40_000_000) for i in range(n_steps)}
    keys = tuple(CollectiveKey(f"ProfilerStep#{i // n}", "", "all_reduce", 1 << 22, i % n) for i in place.tolist())
    return RankLog(
        source=f"rank{rank}", rank=rank, world_size=None, begin_ns=rank * 1000,
        steps=steps, keys=keys,
        starts=ends - took, ends=ends, exposed=took, sizes=np.full(len(place), 1 << 22),
        group_sizes=np.full(len(place), 1024),
    )  # fmt: skip


def compared(n_ranks: int) -> tuple[float, int]:
    """Return (seconds, peak bytes including the logs)."""
    command = [sys.executable, __file__, "--compare-traces", str(n_ranks)]
    took, peak, _ = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return took, peak


def merge(folder: Path) -> None:
    """Load, diagnose and render; print time and memory. Runs in a process of its own."""
    start = time.perf_counter()
    from lightning_perf.records import load_run
    from lightning_perf.reports.console import session_document, to_text
    from lightning_perf.rules.engine import diagnose

    session = diagnose(load_run(folder))
    text = to_text(session_document(session))
    took = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert session.ranks is not None
    assert "Ranks: " in text
    print(json.dumps([took, peak, len(session.ranks.summaries)]))


def merged(n_ranks: int) -> tuple[float, int, int]:
    """Return (seconds, peak bytes, bytes on disk)."""
    with tempfile.TemporaryDirectory() as folder:
        on_disk = write_sessions(Path(folder), n_ranks)
        done = subprocess.run([sys.executable, __file__, "--merge", folder], capture_output=True, text=True, check=True)
    took, peak, n = json.loads(done.stdout)
    assert n == n_ranks
    return took, peak, on_disk


def main() -> None:
    """Run the requested measurements."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(REPOSITORY)}")
    parser.add_argument("--merge", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--compare-traces", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.merge is not None:
        merge(arguments.merge)
        return
    if arguments.compare_traces is not None:
        compare_traces(arguments.compare_traces)
        return
    heads = ("ranks", "collection, rank 0, ms", "limit, ms", "collection, other rank, ms", "merging, s")
    heads = (*heads, "merging, peak MiB", "on disk, MiB", "comparing traces, s", "comparing traces, peak MiB")
    lines = ["| " + " | ".join(heads) + " |", "|" + " --: |" * len(heads)]
    met = []
    for n_ranks in SIZES:
        first_ms, other_ms = collection(n_ranks)
        allowed_ms = ALLOWED_MS + ALLOWED_US_PER_RANK * n_ranks / 1e3
        took_s, peak, on_disk = merged(n_ranks)
        compared_s, compared_peak = compared(n_ranks)
        is_merged = max(took_s, compared_s) <= ALLOWED_MERGE_S and max(peak, compared_peak) <= ALLOWED_MERGE_BYTES
        met.append(first_ms <= allowed_ms and is_merged)
        lines.append(
            f"| {n_ranks} | {first_ms:.2f} | {allowed_ms:.2f} | {other_ms:.2f} | {took_s:.2f} | {peak / 2**20:.0f} "
            f"| {on_disk / 2**20:.1f} | {compared_s:.2f} | {compared_peak / 2**20:.0f} |"
        )
        print(lines[-1], flush=True)
    verdict = (
        "Met at every\nsize"
        if all(met)
        else "Missed at " + str([n for n, ok in zip(SIZES, met, strict=True) if not ok])
    )
    text = (
        "# Cost of many ranks\n\nWritten by `python benchmarks/ranks/run.py --write`; do not edit. The method is "
        "described at the top of that script.\n\n" + "\n".join(lines) + "\n\n"
        f"Limits: {ALLOWED_MS:.0f} ms + {ALLOWED_US_PER_RANK:.0f} µs per rank to collect; {ALLOWED_MERGE_S:.0f} s and "
        f"{ALLOWED_MERGE_BYTES / 2**30:.0f} GiB each to merge and report and to compare traces. {verdict}.\n"
    )
    print(text)
    if arguments.write:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
