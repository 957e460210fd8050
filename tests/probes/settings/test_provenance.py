from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from lightning_perf.probes.settings.provenance import ProvenanceProbe, digest_of, parse_git_status
from lightning_perf.records import Provenance

HEAD = b"# branch.oid 0123456789abcdef\n# branch.head "


def run_with(dataset: Any = None, model: nn.Module | None = None) -> Any:
    trainer = SimpleNamespace(train_dataloader=SimpleNamespace(dataset=dataset), is_global_zero=True,
                              fast_dev_run=False)  # fmt: skip
    return SimpleNamespace(trainer=trainer, pl_module=model or nn.Linear(3, 2))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script, which is the running program."""
    folder = tmp_path / "project"
    (folder / "jobs").mkdir(parents=True)
    (folder / "jobs" / "train.py").write_text("pass\n")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(folder / "jobs" / "train.py"), raising=False)
    return folder


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def recorded(probe: ProvenanceProbe) -> Provenance:
    end_s = time.monotonic() + 60
    while probe.record().commit is None and time.monotonic() < end_s:
        time.sleep(0.01)
    return probe.record()


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_commit_branch_and_changes_are_recorded_in_a_repository(project: Path) -> None:
    git(project, "init", "-b", "topic")
    git(project, "add", ".")
    git(project, "commit", "-m", "one")
    for is_dirty in (False, True):
        if is_dirty:
            (project / "jobs" / "train.py").write_text("print()\n")
        probe = ProvenanceProbe()
        probe.start()
        found = recorded(probe)
        probe.close()
        assert (found.commit, found.branch, found.is_dirty) == (git(project, "rev-parse", "HEAD"), "topic", is_dirty)
        assert found.script == str(Path("jobs", "train.py"))


def test_no_process_starts_outside_a_repository(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    probe = ProvenanceProbe()
    probe.start()
    assert probe.record() == Provenance(script="train.py")
    probe.close()


@pytest.mark.usefixtures("project")
def test_git_that_never_ends_is_killed() -> None:
    probe = ProvenanceProbe()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    probe._git = process
    assert probe.record().commit is None
    probe.close()
    assert process.returncode is not None
    assert process.stdin is not None
    process.stdin.close()


def test_detached_head_has_the_branch_of_the_ci_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_REF_NAME", raising=False)
    assert parse_git_status(HEAD + b"(detached)\n")["branch"] is None
    monkeypatch.setenv("GITHUB_REF_NAME", "main")
    assert parse_git_status(HEAD + b"(detached)\n")["branch"] == "main"


def test_nothing_is_known_without_a_commit() -> None:
    assert parse_git_status(b"") == {}
    assert parse_git_status(b"# branch.oid (initial)\n# branch.head main\n") == {}


def test_dataset_is_named_inside_the_project_and_only_a_digest_outside(project: Path, tmp_path: Path) -> None:
    (project / "jobs" / "data").mkdir()
    (tmp_path / "secret").mkdir()
    found = []
    for folder in (project / "jobs" / "data", tmp_path / "secret"):
        probe = ProvenanceProbe()
        probe.loops_ready(run_with(SimpleNamespace(root=str(folder))))
        found.append(probe.record().dataset)
    assert found[0] == "data"
    assert found[1] is not None
    assert "secret" not in found[1]
    assert found[1].startswith("outside the project (")


@pytest.mark.usefixtures("project")
def test_sample_shapes_leave_out_the_batch_dimension() -> None:
    probe = ProvenanceProbe()
    probe.first_batch({"x": torch.zeros(8, 3, 4), "y": torch.zeros(8)})
    assert probe.record().sample_shapes == ("3x4", "")


def test_digest_depends_on_shapes_only() -> None:
    one, other = nn.Linear(3, 2), nn.Linear(3, 2).double()
    assert digest_of(one.parameters()) == digest_of(other.parameters())
    assert digest_of(nn.Linear(2, 3).parameters()) != digest_of(one.parameters())
    assert digest_of(nn.LazyLinear(2).parameters()) is None


def test_batches_with_nested_and_sparse_tensors_are_read() -> None:
    probe = ProvenanceProbe()
    x = torch.ones(2, 3)
    probe.first_batch({"nested": torch.nested.nested_tensor([x[0], x[1]]), "sparse": x.to_sparse(), "dense": x})
    assert probe.record().sample_shapes == ("3", "3")
