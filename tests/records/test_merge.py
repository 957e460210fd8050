"""Sessions of the ranks of one run, merged from disk."""

from pathlib import Path

import msgspec
import pytest

from lightning_perf.errors import SessionError
from lightning_perf.records import (
    RANKS_FOLDER,
    SESSION_FILE,
    Finding,
    Machine,
    MissingRank,
    RankSummary,
    Run,
    Session,
    combine_ranks,
    load_run,
)
from lightning_perf.records.merge import MAX_RANKS
from lightning_perf.records.remote import RemotePath

WORLD = 3


def session(rank: int, started_at: str = "2026-11-21T10:00:00Z", world_size: int = WORLD) -> Session:
    summary = RankSummary(rank=rank, node="a", n_steps=10, step_s=0.01 * (rank + 1), own_s=0.01)
    return Session(
        run=Run(id=f"r{rank}", stage="fit", status="finished", started_at=started_at, wall_s=1.0, rank=rank,
                world_size=world_size),
        machine=Machine(os="Linux", python="3.11"),
        ranks=combine_ranks((summary,), world_size),
    )  # fmt: skip


def save(folder: Path | RemotePath, one: Session) -> None:
    name = SESSION_FILE if one.run.rank == 0 else f"{RANKS_FOLDER}/perf_session.rank{one.run.rank}.json"
    one.save(folder / name)


def test_all_ranks_are_found_when_each_left_its_session(tmp_path: Path) -> None:
    for rank in range(WORLD):
        save(tmp_path, session(rank))
    merged = load_run(tmp_path)
    assert merged.run.rank == 0
    assert [one.rank for one in merged.ranks.summaries] == [0, 1, 2]
    assert merged.ranks.step_max_s == pytest.approx(0.03)
    assert merged.ranks.missing == ()
    assert load_run(tmp_path / SESSION_FILE) == merged


def test_merged_session_has_the_findings_of_each_rank(tmp_path: Path) -> None:
    finding = Finding(
        code="PD801", name="thermal-throttling", category="system", severity="high", summary="hot", evidence=()
    )
    save(tmp_path, session(0))
    save(tmp_path, msgspec.structs.replace(session(1), findings=(finding,)))
    assert [one.found for one in load_run(tmp_path).ranks.summaries] == [(), ("PD801 thermal-throttling",)]


def test_rank_is_reported_when_it_left_no_file(tmp_path: Path) -> None:
    for rank in (0, 2):
        save(tmp_path, session(rank))
    assert [(one.rank, one.reason) for one in load_run(tmp_path).ranks.missing] == [(1, "it left no session")]


def test_lowest_rank_is_used_when_the_first_left_no_file(tmp_path: Path) -> None:
    for rank in (2, 1):
        save(tmp_path, session(rank))
    merged = load_run(tmp_path)
    assert merged.run.rank == 1
    assert [one.rank for one in merged.ranks.summaries] == [1, 2]
    assert [one.rank for one in merged.ranks.missing] == [0]


@pytest.mark.parametrize("foreign", [session(1, "2026-11-20T10:00:00Z"), session(1, world_size=8)])
def test_session_of_another_run_is_left_out(tmp_path: Path, foreign: Session) -> None:
    save(tmp_path, session(0))
    save(tmp_path, session(2))
    save(tmp_path, foreign)
    assert [one.rank for one in load_run(tmp_path).ranks.summaries] == [0, 2]


def test_earlier_run_is_not_used_when_it_was_set_aside(tmp_path: Path) -> None:
    save(tmp_path, session(1))
    aside = tmp_path / RANKS_FOLDER / "perf_session.rank0.r0.json"
    session(0, "2026-11-20T10:00:00Z").save(aside)
    (tmp_path / RANKS_FOLDER / "perf_session.rank².json").write_text("{")
    assert load_run(tmp_path).run.rank == 1


def test_ranks_are_of_one_run_when_only_one_has_a_time_zone(tmp_path: Path) -> None:
    save(tmp_path, session(0))
    save(tmp_path, session(1, "2026-11-21T10:00:00"))
    assert [one.rank for one in load_run(tmp_path).ranks.summaries] == [0, 1]


def test_number_of_ranks_is_not_trusted(tmp_path: Path) -> None:
    save(tmp_path, session(0, world_size=10**6))
    save(tmp_path, session(1, world_size=10**6))
    assert len(load_run(tmp_path).ranks.missing) == MAX_RANKS - 2


def test_rank_that_was_not_heard_of_is_missing_until_its_session_is_found(tmp_path: Path) -> None:
    unheard = tuple(MissingRank(rank=rank, reason="it did not answer") for rank in (1, 2))
    first = session(0)
    save(tmp_path, msgspec.structs.replace(first, ranks=combine_ranks(first.ranks.summaries, WORLD, unheard)))
    save(tmp_path, session(1))
    merged = load_run(tmp_path)
    assert [one.rank for one in merged.ranks.summaries] == [0, 1]
    assert [(one.rank, one.reason) for one in merged.ranks.missing] == [(2, "it did not answer")]


def test_unreadable_file_is_reported_and_the_others_are_used(tmp_path: Path) -> None:
    save(tmp_path, session(0))
    save(tmp_path, session(2))
    (tmp_path / RANKS_FOLDER / "perf_session.rank1.json").write_text("{")
    merged = load_run(tmp_path)
    assert [one.rank for one in merged.ranks.summaries] == [0, 2]
    assert [one.rank for one in merged.ranks.missing] == [1]
    assert "not complete JSON" in merged.ranks.missing[0].reason


def test_next_rank_is_used_when_the_first_is_missing_and_the_lowest_unreadable(tmp_path: Path) -> None:
    save(tmp_path, session(2))
    (tmp_path / RANKS_FOLDER / "perf_session.rank1.json").write_text("{")
    merged = load_run(tmp_path)
    assert merged.run.rank == 2
    assert sorted(one.rank for one in merged.ranks.missing) == [0, 1]


def test_run_of_one_rank_is_as_it_was_saved(tmp_path: Path) -> None:
    alone = msgspec.structs.replace(session(0, world_size=1), ranks=None)
    alone.save(tmp_path)
    assert load_run(tmp_path) == alone


def test_nothing_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="cannot read a session"):
        load_run(tmp_path)
