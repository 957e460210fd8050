"""Several ranks' traces: collectives matched, clocks aligned, and the rank named that the others wait for."""

import json
from pathlib import Path

import pytest

from lightning_perf.records import TraceRanks, TraceRecord
from lightning_perf.traces import analyze_many

from .events import event, launched
from .rank_traces import N_BYTES, N_STEPS, STEP_US, TRANSFER_US, rank_events, save
from .shared import FOLDER, needs_shared_traces


def compared(folder: Path) -> TraceRanks:
    records, errors = analyze_many([folder])
    assert errors == []
    assert all(record.ranks is None for record in records[1:])
    assert records[0].ranks is not None, records[0].missing
    return records[0].ranks


SLOW = [[2000.0, 2000.0, 5000.0], [7000.0, 7000.0, 7000.0]]


@pytest.mark.parametrize("clocks_us", [(0.0, 0.0, 0.0), (0.0, 3_000_000.0, -70_000.0)])
def test_late_rank_is_named_whatever_the_clocks_say(tmp_path: Path, clocks_us: tuple[float, ...]) -> None:
    for rank in range(3):
        save(tmp_path, rank, 3, rank_events(rank, SLOW, clocks_us[rank]))
    ranks = compared(tmp_path)
    assert (ranks.n_steps, ranks.n_matched, ranks.n_unmatched) == (3, 6, 0)
    first, second, slow = ranks.ranks
    assert first.waiting_s == second.waiting_s == pytest.approx(3e-3, rel=0.01)
    assert slow.waiting_s == 0
    assert slow.straggler_share == pytest.approx(0.3, rel=0.05)
    assert first.straggler_share == second.straggler_share == 0
    assert slow.own_s - first.own_s == pytest.approx(3e-3, rel=0.01)
    assert slow.parts_s["compute"] - first.parts_s["compute"] == pytest.approx(3e-3, rel=0.01)
    assert all(one.transfer_s == pytest.approx(2 * TRANSFER_US * 1e-6, rel=0.01) for one in ranks.ranks)


def test_clocks_are_aligned_on_the_ends_of_collectives(tmp_path: Path) -> None:
    for rank, clock_us in enumerate((0.0, 3_000_000.0, -70_000.0)):
        save(tmp_path, rank, 3, rank_events(rank, SLOW, clock_us, jitter_us=20))
    ranks = compared(tmp_path)
    offsets = [one.clock_offset_s for one in ranks.ranks]
    assert offsets == [pytest.approx(x, abs=50e-6) for x in (0.0, 3.0, -0.07)]
    assert 0 < (ranks.clock_spread_s or 0) < 50e-6


def test_bandwidth_counts_from_the_last_arrival(tmp_path: Path) -> None:
    for rank in range(3):
        save(tmp_path, rank, 3, rank_events(rank, SLOW))
    (row,) = compared(tmp_path).collectives
    assert (row.kind, row.n, row.mean_bytes, row.group_size) == ("all_reduce", 6, N_BYTES, 3)
    assert row.median_s == pytest.approx(TRANSFER_US * 1e-6, rel=0.01)
    assert row.bus_bytes_per_s == pytest.approx(N_BYTES * 4 / 3 / (TRANSFER_US * 1e-6), rel=0.01)


def test_each_trace_has_the_waiting_part_of_its_exposed_time(tmp_path: Path) -> None:
    for rank in range(3):
        save(tmp_path, rank, 3, rank_events(rank, SLOW))
    records, _ = analyze_many([tmp_path])
    waits = [record.communication.waiting_s for record in records if record.communication is not None]
    assert waits == [pytest.approx(9e-3, rel=0.02), pytest.approx(9e-3, rel=0.02), 0.0]


def test_waiting_that_computing_hides_costs_nothing(tmp_path: Path) -> None:
    for rank in range(2):
        events = rank_events(rank, [[2000.0, 5000.0]])
        for step in range(N_STEPS):  # another stream computes on until the slow rank has come
            events += launched("sgemm", step * STEP_US + 1, step * STEP_US + 2000, 3000, 900 + step)
        save(tmp_path, rank, 2, events)
    ranks = compared(tmp_path)
    assert ranks.ranks[0].waiting_s == 0
    assert all(one.straggler_share == 0 for one in ranks.ranks)


def test_ranks_that_take_turns_share_the_blame(tmp_path: Path) -> None:
    turns = [[1000.0, 3000.0], [6000.0, 4000.0]]
    for rank in range(2):
        save(tmp_path, rank, 2, rank_events(rank, turns))
    ranks = compared(tmp_path)
    assert [one.last_fraction for one in ranks.ranks] == [0.5, 0.5]
    assert [one.straggler_share for one in ranks.ranks] == [pytest.approx(0.2, rel=0.05)] * 2


def test_groups_of_some_ranks_are_matched_among_themselves(tmp_path: Path) -> None:
    for rank in range(4):
        group = {"Process Group Ranks": "[0, 1]" if rank < 2 else "[2, 3]", "Group size": 2}
        save(tmp_path, rank, 4, rank_events(rank, [[1000.0, 4000.0, 1000.0, 2000.0]], **group))
    # Those of the second pair end independently of the ranks of the first pair.
    for rank in (2, 3):
        group = {"Process Group Ranks": "[2, 3]", "Group size": 2}
        save(tmp_path, rank, 4, rank_events(rank, [[0.0, 0.0, 1000.0, 2000.0]], **group))
    ranks = compared(tmp_path)
    assert [one.waiting_s for one in ranks.ranks] == [
        pytest.approx(3e-3, rel=0.02), 0.0, pytest.approx(1e-3, rel=0.02), 0.0,
    ]  # fmt: skip
    assert ranks.clock_spread_s is None  # nothing that all four take part in
    assert all(one.clock_offset_s is None for one in ranks.ranks)


def test_windows_of_the_same_run_are_compared_one_by_one(tmp_path: Path) -> None:
    for window, slow in (("a", SLOW), ("b", [[1000.0, 1000.0, 1000.0]])):
        for rank in range(3):
            save(tmp_path, rank, 3, rank_events(rank, slow, clock_us=0.0 if window == "a" else 1e6), window)
    records, _ = analyze_many([tmp_path])
    found = [record.ranks for record in records if record.ranks is not None]
    assert [one.n_matched for one in found] == [6, 3]
    assert max(one.straggler_share for one in found[1].ranks) == 0


def reason(records: list[TraceRecord]) -> str:
    assert all(record.ranks is None for record in records)
    return records[0].missing["ranks"]


def test_steps_that_only_one_rank_has_are_left_out(tmp_path: Path) -> None:
    save(tmp_path, 0, 2, rank_events(0, [[1000.0, 3000.0]]))
    save(tmp_path, 1, 2, [one for one in rank_events(1, [[1000.0, 3000.0]]) if one["ts"] >= STEP_US])
    assert compared(tmp_path).n_steps == 2


def test_ranks_are_not_compared_when_two_traces_are_of_different_runs(tmp_path: Path) -> None:
    save(tmp_path, 0, 2, rank_events(0, [[1000.0, 3000.0]]))
    save(tmp_path, 1, 2, rank_events(1, [[1000.0, 3000.0]] * 2, **{"In msg nelems": 17}))
    assert "cannot be compared" in reason(analyze_many([tmp_path])[0])


def test_ranks_are_not_compared_when_collectives_do_not_end_together(tmp_path: Path) -> None:
    save(tmp_path, 0, 2, rank_events(0, [[1000.0, 1000.0]]))
    shifted = rank_events(1, [[1000.0, 1000.0]])
    for one in shifted:  # each step at another time: no offset explains them
        one["ts"] += 700.0 * int(one["ts"] // STEP_US) ** 2
    save(tmp_path, 1, 2, shifted)
    assert "end together" in reason(analyze_many([tmp_path])[0])


def test_ranks_are_not_compared_when_they_exchange_nothing(tmp_path: Path) -> None:
    for rank in range(2):
        save(
            tmp_path, rank, 2, [event("user_annotation", "ProfilerStep#1", 0, 100), event("cpu_op", "aten::mm", 1, 50)]
        )
    reason(analyze_many([tmp_path])[0])


def test_a_single_trace_is_not_compared(tmp_path: Path) -> None:
    save(tmp_path, 0, 2, rank_events(0, [[1000.0, 3000.0]]))
    (record,) = analyze_many([tmp_path])[0]
    assert record.ranks is None
    assert "ranks" not in record.missing


def test_record_survives_json(tmp_path: Path) -> None:
    import msgspec

    for rank in range(3):
        save(tmp_path, rank, 3, rank_events(rank, SLOW))
    records, _ = analyze_many([tmp_path])
    text = msgspec.json.encode(records)
    assert msgspec.json.decode(text, type=list[TraceRecord]) == records
    assert json.loads(text)[0]["ranks"]["ranks"][2]["straggler_share"] > 0.2


@needs_shared_traces
def test_real_traces_that_miss_events_are_not_compared() -> None:
    # Of each only some events were kept: what is left does not end together.
    records, _ = analyze_many([FOLDER / f"sampled-rank-{rank}-of-128.json.gz" for rank in (0, 1)])
    assert "cannot be compared" in reason(records)


@needs_shared_traces
def test_real_traces_of_different_runs_are_not_compared() -> None:
    records, _ = analyze_many([FOLDER / "v100-ddp-unbucketed.json.gz", FOLDER / "a100-ddp-host-bound.json.gz"])
    assert "cannot be compared" in reason(records)
