"""Ranks that delay the others, and ranks that fail, in real runs of several processes."""

from __future__ import annotations

from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from lightning_perf.records import load_run
from lightning_perf.rules.engine import diagnose_trace
from lightning_perf.traces import analyze_many
from tests.forkserver import Forkserver
from tests.fuzzing import IS_TORTURE, thinned
from tests.made_once import made_once

SCRIPT = Path(__file__).with_name("rank_script.py")
DISTRIBUTED = {"PD701", "PD703", "PD704", "PD705", "PD706", "PD707", "PD709"}


def launched(forkserver: Forkserver, fault: str, out: Path, n_ranks: int = 2, *more: str) -> CompletedProcess[str]:
    """Run the script to its end in one process per rank; none of them may outlive it by more than seconds."""
    return forkserver.run(SCRIPT, fault, str(out), str(n_ranks), *more, n_ranks=n_ranks, cwd=out.parent, limit_s=250.0)


def assert_ended_well(done: CompletedProcess[str], faults: str) -> None:
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count(" steps · ") == len(faults.split(","))


def sessions_of(faults: str, out: Path) -> dict[str, Any]:
    """Return the sessions of runs that ended well, by fault."""
    names = faults.split(",")
    sessions = {name: load_run(out / name if len(names) > 1 else out) for name in names}
    for session in sessions.values():
        assert session.probes_off == ()
        assert len(session.ranks.summaries) == session.run.world_size
        assert session.ranks.missing == ()
    return sessions


def found(session: Any) -> dict[str, Any]:
    return {finding.code: finding for finding in session.findings if finding.code in DISTRIBUTED}


CAUSES = {
    "data": "mostly data wait",
    "compute": "mostly compute",
    "second backward": "mostly compute",
    "callback": "SlowCallback.on_train_batch_end",
}


def assert_second_rank_is_named(session: Any, fault: str) -> None:
    """The verdict may be another where more processes than these compete for the cores: then that costs more."""
    finding = found(session)["PD701"]
    assert finding.summary.startswith("Rank 1 slows down ")
    assert CAUSES[fault] in finding.summary


def assert_second_rank_waits_least(session: Any) -> None:
    slow, *others = sorted(session.ranks.summaries, key=lambda one: one.waiting_s)
    assert slow.rank == 1
    assert min(one.waiting_s for one in others) > 0.005


# One start of the processes serves many faults; DDP with its flag is another strategy, so it comes last.
PAIR = (
    "none", "data", "compute", "second backward", "callback", "uneven", "repeated", "sync_dist", "unused",
    "really unused",
)  # fmt: skip
FOUR = thinned(["data"], ["compute", "callback", "none"])
SHARDED = thinned(["data", "compute"], ["callback"])


@pytest.fixture(scope="module")
def pair(forkserver: Forkserver, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Sessions of two ranks."""
    faults = ",".join(PAIR)

    def make(folder: Path) -> None:
        assert_ended_well(launched(forkserver, faults, folder / "out"), faults)

    return sessions_of(faults, made_once(tmp_path_factory, "pair", make) / "out")


@pytest.fixture(scope="module")
def four(forkserver: Forkserver, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Sessions of four ranks."""
    faults = ",".join(FOUR)

    def make(folder: Path) -> None:
        assert_ended_well(launched(forkserver, faults, folder / "out", 4), faults)

    return sessions_of(faults, made_once(tmp_path_factory, "four", make) / "out")


@pytest.fixture(scope="module")
def sharded(forkserver: Forkserver, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Sessions of two ranks that share parameters out between them, and their traces."""
    faults = ",".join(SHARDED)

    def make(folder: Path) -> None:
        assert_ended_well(launched(forkserver, faults, folder / "out", 2, "fsdp2", "traced"), faults)

    out = made_once(tmp_path_factory, "sharded", make) / "out"
    return sessions_of(faults, out) | {"out": out}


@pytest.mark.parametrize("fault", CAUSES)
def test_slow_rank_is_named_with_its_cause(pair: dict[str, Any], fault: str) -> None:
    assert_second_rank_is_named(pair[fault], fault)
    assert_second_rank_waits_least(pair[fault])


@pytest.mark.parametrize("fault", [fault for fault in FOUR if fault != "none"])
def test_slow_rank_of_four_is_named_with_its_cause(four: dict[str, Any], fault: str) -> None:
    assert_second_rank_is_named(four[fault], fault)
    assert_second_rank_waits_least(four[fault])


@pytest.mark.skipif(not IS_TORTURE, reason="make torture; test_ranks.py starts processes in both ways")
@pytest.mark.parametrize(("fault", "strategy"), [("data", "ddp"), ("callback", "ddp_spawn")])
def test_slow_rank_is_named_when_the_trainer_starts_the_processes(
    forkserver: Forkserver, tmp_path: Path, fault: str, strategy: str
) -> None:
    out = tmp_path / "out"
    done = forkserver.run(SCRIPT, fault, str(out), "2", strategy, cwd=tmp_path, limit_s=250.0)
    assert_ended_well(done, fault)
    session = sessions_of(fault, out)[fault]
    assert_second_rank_is_named(session, fault)
    assert_second_rank_waits_least(session)


@pytest.mark.needs_torch("2.6")  # fully_shard
@pytest.mark.parametrize("fault", [fault for fault in SHARDED if fault != "compute"])
def test_slow_rank_is_named_where_parameters_are_sharded(sharded: dict[str, Any], fault: str) -> None:
    session = sharded[fault]
    assert_second_rank_is_named(session, fault)
    assert all(one.waiting_s is None and "compute" not in one.parts_s for one in session.ranks.summaries)
    assert "not at the end of backward" in session.missing["ranks.summaries.waiting_s"]


@pytest.mark.needs_torch("2.6")  # fully_shard
def test_rank_that_computes_more_is_named_by_its_traces_where_parameters_are_sharded(sharded: dict[str, Any]) -> None:
    assert "PD701" not in found(sharded["compute"])  # the clock of the host does not show it
    records, errors = analyze_many([*(sharded["out"] / "compute").glob("*.pt.trace.json.gz")])
    assert errors == []
    ranks = records[0].ranks
    assert ranks is not None, records[0].missing
    assert max(ranks.ranks, key=lambda one: one.straggler_share).rank == 1
    assert any(finding.code == "PD701" for finding in diagnose_trace(records[0]).findings)
    assert records[0].communication is not None
    assert {shard.kind for shard in records[0].communication.shards} == {"all_gather", "reduce_scatter"}


def test_no_rank_is_named_when_they_are_alike(pair: dict[str, Any], four: dict[str, Any]) -> None:
    assert found(pair["none"]) == {}
    assert {one.n_batches for one in pair["none"].ranks.summaries} == {70}
    assert "none" not in four or found(four["none"]) == {}


def test_argument_is_named_when_ddp_searches_unused_parameters_in_vain(pair: dict[str, Any]) -> None:
    prescription = found(pair["unused"])["PD703"].prescriptions[0]
    assert "DDPStrategy(..., find_unused_parameters=False)" in prescription.code
    assert prescription.trainer_flags == {}  # a new strategy would lose the other arguments


def test_flag_is_not_named_when_a_parameter_is_unused(pair: dict[str, Any]) -> None:
    assert "PD703" not in found(pair["really unused"])
    assert {one.n_unused for one in pair["really unused"].ranks.summaries} == {2}


def test_uneven_batches_are_named(pair: dict[str, Any]) -> None:
    assert "rank 1 gets 280 samples per epoch, rank 0 140" in found(pair["uneven"])["PD704"].summary


def test_equal_batches_of_all_ranks_are_named(pair: dict[str, Any]) -> None:
    assert "2 of 2 ranks train on the same samples" in found(pair["repeated"])["PD709"].summary


def test_reductions_at_every_step_are_named(pair: dict[str, Any]) -> None:
    assert "PD705" in found(pair["sync_dist"])


def test_error_and_measurements_stay_when_a_rank_raises(forkserver: Forkserver, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = launched(forkserver, "dies", out)
    assert done.returncode != 0
    assert "ValueError: planted" in done.stderr
    left = load_run(out / "perf_ranks" / "perf_session.rank1.json")
    assert left.run.error == "ValueError"
    assert left.steady.n_steps > 10


def test_post_mortem_is_named_when_another_rank_runs_out_of_memory(forkserver: Forkserver, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = launched(forkserver, "out of memory", out)
    text = "PerfDoctor: Device memory ran out on rank 1 in forward after 40 steps; post-mortem: "
    _, is_shown, place = " ".join(done.stdout.split()).partition(text)
    assert is_shown
    assert (tmp_path / place.split()[0]).is_file()


def test_survivor_leaves_its_measurements_when_a_rank_is_killed(forkserver: Forkserver, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = launched(forkserver, "killed", out)
    assert done.returncode != 0
    session = load_run(out)
    assert (session.run.rank, session.run.status) == (0, "failed")
    assert session.steady.n_steps > 10
    assert f"{session.run.error}: " in done.stderr  # the one that the exchange of gradients raised


def test_survivor_leaves_its_measurements_when_the_first_rank_is_killed(forkserver: Forkserver, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert launched(forkserver, "first killed", out).returncode != 0
    session = load_run(out)
    assert (session.run.rank, session.run.status) == (1, "failed")
    assert session.steady.n_steps > 10
    assert "it left no session" in {one.reason for one in session.ranks.missing}


def test_every_rank_ends_and_leaves_its_measurements_when_interrupted(forkserver: Forkserver, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = launched(forkserver, "ctrl-c", out)
    assert done.returncode != 0
    session = load_run(out)
    assert (session.run.rank, session.run.status) == (0, "interrupted")
    assert session.steady.n_steps > 10
    assert "switched its probe" not in done.stderr
