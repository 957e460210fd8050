"""The demo, run as a user runs it: every planted fault is named first, and nothing is found in the healthy training."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from lightning_perf import demo, load
from lightning_perf.cli.demo import FAULTS
from lightning_perf.rules.engine import all_rules


def run_demo(*arguments):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-m", "lightning_perf", "demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280, check=False)


def test_codes_expected_are_codes_of_rules():
    assert {fault.code for fault in FAULTS.values()} - {None} <= {rule.code for rule in all_rules()}


def test_demo_reports_a_planted_fault_when_it_is_asked_for(tmp_path):
    done = run_demo("--fault", "slow-callback", "--out", str(tmp_path))

    session = load(tmp_path)
    assert done.returncode == (session.verdict.code != "PD504"), done.stdout[-4000:] + done.stderr[-2000:]
    assert "PD504" in {finding.code for finding in session.findings}  # 20 ms per step: on any machine a part of it
    assert f"the diagnosis says {session.verdict.code} first" in done.stdout


@pytest.mark.clinic
@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "none"])
def test_demo_names_the_fault_first_when_it_is_planted(fault, tmp_path):
    done = run_demo("--fault", fault, "--out", str(tmp_path))

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    session = load(tmp_path)
    assert session.verdict.code == FAULTS[fault].code
    assert session.findings[0].prescriptions
    assert session.steady.phases["other"].share < 0.03


@pytest.mark.clinic
def test_demo_ends_healthy_when_no_fault_is_planted(tmp_path):
    done = run_demo("--fault", "none", "--out", str(tmp_path))

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    session = load(tmp_path)
    assert session.verdict.category == "healthy"
    assert {finding.severity for finding in session.findings} <= {"info"}


@pytest.mark.clinic
def test_demo_is_confident_of_no_finding_when_no_fault_is_planted(tmp_path):
    done = run_demo("--fault", "none", "--out", str(tmp_path))

    # Other programs may slow a healthy training down, also in its second half; a finding then has no high confidence.
    session = load(tmp_path)
    found = [finding.code for finding in session.findings if finding.severity in ("high", "medium")]
    sure = [finding.code for finding in session.findings if finding.confidence == "high" and finding.code in found]
    assert sure == [], session.findings
    assert done.returncode == (session.verdict.category != "healthy"), done.stdout[-4000:] + done.stderr[-2000:]


def test_demo_lists_valid_faults_when_the_fault_is_unknown():
    done = run_demo("--fault", "gremlins")

    assert done.returncode == 2
    assert "gremlins" in done.stderr
    assert "slow-transform" in done.stderr


def test_demo_uses_the_cores_that_it_may_when_a_quota_grants_fewer_than_there_are(monkeypatch):
    threads = []
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(demo, "read_machine", lambda: SimpleNamespace(usable_cores=2.5))
    monkeypatch.setattr(demo.torch, "set_num_threads", threads.append)
    demo._use_all_cores()
    assert threads == [2]


def test_demo_refuses_a_file_as_its_folder(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")

    done = run_demo("--out", str(file))

    assert done.returncode == 2
    assert file.read_text() == "mine"


def test_demo_says_where_it_cannot_write_before_it_trains(tmp_path):
    (tmp_path / "file").write_text("mine")

    done = run_demo("--out", str(tmp_path / "file" / "demo"))

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].endswith("file/demo: Not a directory; choose another --out")
