"""``lightning-perf config``: what it prints is accepted by Python, YAML and LightningCLI."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel

from lightning_perf.cli.config import FORMATS
from lightning_perf.records import Finding, Prescription, Session, TrainerSettings
from tests.cli.command_line import BLOCKER, call
from tests.rules.session_builder import build_session

BASE = "trainer: {accelerator: cpu, callbacks: [{class_path: lightning.pytorch.callbacks.LearningRateMonitor}]}"


def fix(treatment: str, safety: str = "exact", **fields: Any) -> Prescription:
    summary = f"use {treatment or 'code'}"
    return Prescription(treatment=treatment, summary=summary, safety=safety, effort="one line", **fields)  # type: ignore[arg-type]


RECOMMENDED = {
    "PD101": fix("loader-workers", loader_args={"num_workers": 2, "persistent_workers": True}),
    "PD301": fix("precision-bf16", "numerics", trainer_flags={"precision": "bf16-mixed"}),
    "PD402": fix("activation-checkpointing", code="x = checkpoint(block, x)"),
    "PD503": fix("anomaly-off", trainer_flags={"detect_anomaly": False}),
    "PD506": fix("progress-refresh", value=30),
    "PD601": fix(
        "val-less-often", "semantics", trainer_flags={"val_check_interval": 8, "check_val_every_n_epoch": None}
    ),
    "PD602": fix("async-checkpoint"),
    "PD702": fix("ddp-static-graph"),
    "PD703": fix("ddp-find-unused-off"),
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return with_findings(RECOMMENDED).save(tmp_path / "run")


def with_findings(recommended: dict[str, Prescription]) -> Session:
    findings = tuple(
        Finding(
            code=code,
            name="",
            category="loop",
            severity="low",
            summary="",
            evidence=(),
            prescriptions=(one,),
            gain=None,
        )
        for code, one in recommended.items()
    )
    session = build_session()
    trainer = TrainerSettings(progress_bar="TQDMProgressBar")
    settings = msgspec.structs.replace(session.settings, trainer=trainer)
    return msgspec.structs.replace(session, findings=findings, settings=settings)


@pytest.fixture
def printed(saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> Any:
        assert call(monkeypatch, "config", saved, *arguments) == 0
        return capsys.readouterr()

    return run


def trainer_of(arguments: list[str]) -> Trainer:
    return LightningCLI(BoringModel, BoringDataModule, run=False, args=arguments, save_config_callback=None).trainer


def check(trainer: Trainer) -> None:
    assert trainer.precision == "bf16-mixed"
    assert trainer.val_check_interval == 8
    assert trainer.check_val_every_n_epoch is None
    assert trainer.progress_bar_callback.refresh_rate == 30  # type: ignore[union-attr]
    assert type(trainer.strategy.checkpoint_io).__name__ == "AsyncCheckpointIO"
    assert trainer.strategy._ddp_kwargs["static_graph"] is True  # type: ignore[attr-defined]
    assert trainer.strategy._ddp_kwargs["find_unused_parameters"] is False  # type: ignore[attr-defined]


def test_python_runs_and_builds_the_trainer(printed: Any) -> None:
    text = printed("--safety", "semantics").out
    names: dict[str, Any] = {}
    exec(compile(text, "config.py", "exec"), names)
    check(Trainer(accelerator="cpu", **names["trainer_flags"]))
    assert names["loader_args"] == {"num_workers": 2, "persistent_workers": True}
    assert '"precision": "bf16-mixed",  # PD301' in text
    assert "# PD702, PD703" in text
    assert "# PD402: use activation-checkpointing -> write it in your code: x = checkpoint(block, x)" in text


def test_yaml_is_accepted_by_lightning_cli_and_adds_to_its_lists(printed: Any, tmp_path: Path) -> None:
    text = printed("--format", "yaml", "--safety", "semantics").out
    assert set(yaml.safe_load(text)) == {"trainer"}
    assert "#   num_workers: 2  # PD101" in text
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "perf.yaml").write_text(text)
    trainer = trainer_of(["--config", str(tmp_path / "base.yaml"), "--config", str(tmp_path / "perf.yaml")])
    check(trainer)
    assert "LearningRateMonitor" in [type(one).__name__ for one in trainer.callbacks]


def test_arguments_are_accepted_by_lightning_cli(printed: Any, tmp_path: Path) -> None:
    seen = printed("--format", "cli", "--safety", "semantics")
    assert seen.out.split() == shlex.split(seen.out)  # usable as $(lightning-perf config …)
    (tmp_path / "base.yaml").write_text(BASE)
    trainer = trainer_of(["--config", str(tmp_path / "base.yaml"), *seen.out.split()])
    check(trainer)
    assert "LearningRateMonitor" in [type(one).__name__ for one in trainer.callbacks]
    assert "num_workers: 2" in seen.err


@pytest.mark.parametrize("format_", FORMATS)
def test_safety_limits_what_is_printed_and_the_rest_is_named(printed: Any, format_: str) -> None:
    seen = printed("--format", format_)
    assert "bf16-mixed" not in seen.out
    assert '# PD301: use precision-bf16 -> may change results; safety="numerics" includes it' in seen.out + seen.err


@pytest.mark.parametrize("format_", FORMATS)
def test_session_without_recommendations_gives_valid_output(
    format_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_findings({}).save(tmp_path / "run")
    assert call(monkeypatch, "config", tmp_path / "run", "--format", format_) == 0
    text = capsys.readouterr().out
    if format_ == "python":
        names: dict[str, Any] = {}
        exec(text, names)
        assert (names["trainer_flags"], names["loader_args"]) == ({}, {})
    (tmp_path / "perf.yaml").write_text(text)
    if format_ == "yaml":
        trainer_of(["--config", str(tmp_path / "perf.yaml")])
    if format_ == "cli":
        assert text.split() == []


def test_bar_of_another_class_is_not_replaced(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    session = with_findings({"PD506": fix("progress-refresh", value=30, code="RichProgressBar(refresh_rate=30)")})
    trainer = TrainerSettings(progress_bar="RichProgressBar")
    settings = msgspec.structs.replace(session.settings, trainer=trainer)
    file = msgspec.structs.replace(session, settings=settings).save(tmp_path)
    assert call(monkeypatch, "config", file, "--format", "yaml") == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text) == {"trainer": {}}
    assert "write it in your code: RichProgressBar(refresh_rate=30)" in text


@pytest.mark.parametrize("format_", FORMATS)
def test_classes_are_of_the_package_of_the_trainer(tmp_path: Path, monkeypatch: Any, capsys: Any, format_: str) -> None:
    session = with_findings({"PD602": fix("async-checkpoint")})
    settings = msgspec.structs.replace(session.settings, trainer=TrainerSettings(package="pytorch_lightning"))
    file = msgspec.structs.replace(session, settings=settings).save(tmp_path)
    assert call(monkeypatch, "config", file, "--format", format_) == 0
    text = capsys.readouterr().out
    assert "pytorch_lightning.plugins.io" in text
    assert "lightning.pytorch" not in text


def test_treatment_of_a_newer_version_is_left_out(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    file = with_findings({"PD999": fix("teleport", code="teleport()")}).save(tmp_path)
    assert call(monkeypatch, "config", file) == 0
    assert "# PD999: use teleport -> write it in your code: teleport()" in capsys.readouterr().out


def test_file_is_written_and_not_replaced(saved: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    out = tmp_path / "perf.yaml"
    assert call(monkeypatch, "config", saved, "--format", "yaml", "--out", out) == 0
    assert yaml.safe_load(out.read_text())["trainer"]["detect_anomaly"] is False
    assert call(monkeypatch, "config", saved, "--format", "yaml", "--out", out) == 2
    assert "add --force" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value"), [("--format", "toml"), ("--safety", "reckless")])
def test_unknown_choice_is_one_line(saved: Path, monkeypatch: Any, capsys: Any, option: str, value: str) -> None:
    assert call(monkeypatch, "config", saved, option, value) == 2
    seen = capsys.readouterr()
    assert seen.err.count("\n") == 1
    assert f"{option} {value} is not known; expected one of" in seen.err


def test_config_needs_no_torch(saved: Path) -> None:
    command = [sys.executable, "-c", BLOCKER, "config", str(saved), "--format", "yaml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ})
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["trainer"]["detect_anomaly"] is False
