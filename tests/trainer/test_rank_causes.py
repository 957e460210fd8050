"""Ranks that hold the others up, and ranks that end badly, in real runs of several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.records import load_run

SCRIPT = Path(__file__).with_name("rank_script.py")
DISTRIBUTED = {"PD701", "PD703", "PD704", "PD705", "PD706", "PD707"}

pytestmark = pytest.mark.alone


def launched(fault: str, out: Path, *more: str, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Runs the script to its end."""
    return subprocess.run(
        [*(launcher or (sys.executable,)), str(SCRIPT), fault, str(out), *more],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=out.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        start_new_session=True,
    )


def session_of(fault: str, out: Path, *more: str, launcher: tuple[str, ...] = ()) -> Any:
    done = launched(fault, out, *more, launcher=launcher)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("fit finished") == 1
    session = load_run(out)
    assert session.probes_off == ()
    assert len(session.ranks.summaries) == session.run.world_size
    assert session.ranks.missing == ()
    return session


def found(session: Any) -> dict[str, Any]:
    return {finding.code: finding for finding in session.findings if finding.code in DISTRIBUTED}


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.parametrize(
    ("fault", "cause", "more", "launcher"),
    [
        ("data", "waiting for its data", ("2",), ()),
        ("compute", "computing", ("2",), TORCHRUN),
        ("compute", "computing", ("4",), ()),
        ("second backward", "computing", ("2",), ()),
        ("callback", "SlowCallback.on_train_batch_end", ("2", "ddp_spawn"), ()),
    ],
    ids=["data, ddp", "compute, torchrun", "compute, four ranks", "two backwards", "callback, ddp_spawn"],
)
def test_slow_rank_is_named_with_its_cause(
    tmp_path: Path, fault: str, cause: str, more: tuple[str, ...], launcher: tuple[str, ...]
) -> None:
    session = session_of(fault, tmp_path / "out", *more, launcher=launcher)
    assert session.verdict.code == "PD701"
    finding = found(session)["PD701"]
    assert finding.summary.startswith("Rank 1 holds the other")
    assert cause in finding.summary
    slow, *others = sorted(session.ranks.summaries, key=lambda one: one.waiting_s)
    assert slow.rank == 1
    assert min(one.waiting_s for one in others) > 0.005


def test_nobody_is_named_when_the_ranks_are_alike(tmp_path: Path) -> None:
    session = session_of("none", tmp_path / "out")
    assert found(session) == {}
    assert {one.n_batches for one in session.ranks.summaries} == {70}


def test_flag_is_named_when_ddp_looks_for_unused_parameters_in_vain(tmp_path: Path) -> None:
    session = session_of("unused", tmp_path / "out")
    assert found(session)["PD703"].prescriptions[0].trainer_flags == {"strategy": "ddp"}


def test_flag_is_not_named_when_a_parameter_is_unused(tmp_path: Path) -> None:
    session = session_of("really unused", tmp_path / "out")
    assert "PD703" not in found(session)
    assert {one.n_unused for one in session.ranks.summaries} == {2}


def test_uneven_batches_are_named(tmp_path: Path) -> None:
    session = session_of("uneven", tmp_path / "out")
    assert "rank 1 280 samples an epoch, rank 0 140" in found(session)["PD704"].summary


def test_reductions_at_every_step_are_named(tmp_path: Path) -> None:
    assert "PD705" in found(session_of("sync_dist", tmp_path / "out"))


def test_error_and_measurements_stay_when_a_rank_raises(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = launched("dies", out)
    assert done.returncode != 0
    assert "ValueError: planted" in done.stderr
    left = load_run(out / "perf_ranks" / "perf_session.rank1.json")
    assert left.run.error == "ValueError"
    assert left.steady.n_steps > 10


def test_survivor_leaves_its_measurements_when_a_rank_is_killed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = launched("killed", out)
    assert done.returncode != 0
    session = load_run(out)
    assert (session.run.rank, session.run.status) == (0, "failed")
    assert session.steady.n_steps > 10
    assert f"{session.run.error}: " in done.stderr  # the one that the exchange of gradients raised


def test_every_rank_ends_and_leaves_its_measurements_when_interrupted(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = launched("ctrl-c", out)
    assert done.returncode != 0
    session = load_run(out)
    assert (session.run.rank, session.run.status) == (0, "interrupted")
    assert session.steady.n_steps > 10
    assert "switched its probe" not in done.stderr
