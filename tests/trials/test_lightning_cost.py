"""What Lightning costs per step: the arm ``bare-loop`` is measured, never kept, and reported in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import lightning_perf
from lightning_perf.errors import ConfigError
from lightning_perf.records import Arm, Interval, Trial
from lightning_perf.reports.sections.trials import headline
from lightning_perf.trials import sizes
from lightning_perf.trials import trial as trials
from lightning_perf.trials.ladder import best, ladder
from lightning_perf.trials.lightning_cost import features_of, lightning_cost
from lightning_perf.trials.plan import applicable_specs, choose
from lightning_perf.trials.rounds import Candidate, Plan
from tests.rules.session_builder import build_session

from .runs import Lab
from .test_python import Model, _in_an_empty_folder, make_data, make_trainer  # noqa: F401


def interval(value: float, low: float, high: float) -> Interval:
    return Interval(value=value, low=low, high=high)


def arms(speedup: Interval | None, **plain: Any) -> tuple[Arm, ...]:
    return (
        Arm(id="baseline", step_s=interval(0.0125, 0.012, 0.013)),
        Arm(
            id="bare-loop",
            treatments=("bare-loop",),
            speedup=speedup,
            **{"loss": "identical", "verdict": "improved", **plain},
        ),
    )


def test_cost_is_the_part_of_a_step_that_the_plain_loop_does_not_take() -> None:
    cost = lightning_cost(arms(interval(1.25, 1.2, 1.3)), ["CSVLogger every 50 steps", "gradient clipping"])
    assert cost is not None
    assert cost.share.value == pytest.approx(0.2)
    assert cost.cost_s.value == pytest.approx(0.0025)
    assert cost.cost_s.low == pytest.approx(0.0125 * (1 - 1 / 1.2))
    assert cost.text == (
        "Lightning costs 2.50 ms of 12.5 ms per step (20.0 %, 95 %: 16.7–23.1 %) with CSVLogger every 50 steps, "
        "gradient clipping"
    )


@pytest.mark.parametrize(
    ("speedup", "plain", "text"),
    [
        (interval(1.0, 0.99, 1.01), {}, "at most 124 µs of 12.5 ms per step (0.0 %, 95 %: −1.0–1.0 %)"),
        (interval(0.98, 0.97, 0.99), {}, "no measurable time of 12.5 ms per step (−2.0 %, 95 %: −3.1–−1.0 %)"),
        (interval(2, 2, 2), {"loss": "diverged"}, "losses differ, so the plain loop does not train the same"),
        (interval(2, 2, 2), {"loss": "within_noise"}, "agree with the Trainer's only up to noise"),
        (interval(2, 2, 2), {"loss": "unknown"}, "too few losses to compare"),
        (
            interval(2, 1, 3),
            {"verdict": "inconclusive", "reason": "within the noise"},
            "inconclusive: within the noise",
        ),
    ],
)
def test_sentence_says_what_is_not_certain(speedup: Interval, plain: dict[str, Any], text: str) -> None:
    cost = lightning_cost(arms(speedup, **plain), [])
    assert cost is not None
    assert text in cost.text


def test_plain_loop_that_failed_has_no_cost() -> None:
    failed = arms(None, verdict="failed", reason="LBFGS needs a closure")
    assert lightning_cost(failed, []) is None
    assert lightning_cost(failed[:1], []) is None
    trial = Trial(id="", command=("x",), status="finished", started_at="", arms=failed)
    assert headline(trial) == "Lightning's cost was not measured"
    assert "LBFGS needs a closure" in lightning_perf.to_text(trial)


def test_features_are_what_the_training_uses() -> None:
    trainer = {
        "callbacks": ["ModelCheckpoint", "TQDMProgressBar"],
        "progress_bar": "TQDMProgressBar",
        "loggers": ["CSVLogger"],
        "log_every_n_steps": 50,
        "gradient_clip_val": 1.0,
        "accumulate_grad_batches": 4,
        "strategy": "SingleDeviceStrategy",
        "precision": "32-true",
        "profiler": None,
    }
    assert features_of(build_session({"settings": {"trainer": trainer}})) == (
        *("ModelCheckpoint", "TQDMProgressBar", "CSVLogger every 50 steps", "gradient clipping"),
        *("accumulation over 4 batches", "SingleDeviceStrategy", "32-true"),
    )


def test_plain_loop_is_measured_alone_and_not_kept_beside_a_treatment() -> None:
    candidates = (Candidate(treatment="bare-loop", is_measurement=True), Candidate(treatment="compile"))
    lab = Lab({"bare-loop": 2.0, "compile": 1.5}, Plan(candidates=candidates)).finish()
    assert {run.arm for run in lab.runs} == {"baseline", "baseline-again", "bare-loop", "compile"}
    rungs = ladder(lab.plan, lab.runs)
    assert [rung.added for rung in rungs] == ["", "compile"]
    assert best(rungs) == "compile"


@pytest.mark.parametrize(
    ("trainer", "model", "reason"),
    [
        ({"is_automatic_optimization": False}, {}, "manual optimization"),
        ({"strategy": "DDPStrategy"}, {}, "not with DDPStrategy"),
        ({}, {"optimizers": 2 * ["SGD"]}, "one optimizer, not 2"),
        ({}, {"optimizers": ["LBFGS"]}, "LBFGS needs a closure"),
    ],
)
def test_training_that_a_plain_loop_cannot_do_is_refused_after_the_diagnosis(
    trainer: dict[str, Any], model: dict[str, Any], reason: str
) -> None:
    session = build_session({"settings": {"trainer": {"strategy": "SingleDeviceStrategy", **trainer}}})
    optimizers = [
        {"class_name": name, "implementation": "unknown", "n_tensors": 1, "n_elements": 1}
        for name in model.get("optimizers", ["SGD"])
    ]
    content = msgspec.to_builtins(session)
    content["settings"]["model"] = {
        "class_name": "Net",
        **(content["settings"]["model"] or {}),
        "optimizers": optimizers,
    }
    choice = choose(msgspec.convert(content, type(session)), ("bare-loop",), semantics=False)
    assert choice.candidates == ()
    assert reason in choice.not_tried["bare-loop"]


def test_plain_loop_is_no_treatment_of_a_real_run() -> None:
    with pytest.raises(ConfigError, match="trial --try bare-loop"):
        applicable_specs("loader-workers=2,bare-loop")


def test_real_training_is_measured_with_the_same_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_PILOT_S", 0.5)
    monkeypatch.setattr(sizes, "TARGET_S", 0.05)
    trial = lightning_perf.trial(
        treatments=["bare-loop"],
        make_trainer=lambda: make_trainer(gradient_clip_val=1.0),
        make_module=Model,
        make_data=make_data,
        repeats=1,
        out_dir=tmp_path / "out",
        progress=False,
    )
    assert [arm.id for arm in trial.arms] == ["baseline", "baseline-again", "bare-loop"]
    assert all(run.status == "ok" for run in trial.runs)
    losses = {run.losses[:8] for run in trial.runs}
    assert len(losses) == 1
    assert trial.best == "baseline"
    assert (trial.code, [rung.added for rung in trial.ladder]) == ("", [""])
    if trial.lightning_cost is not None:  # a noisy machine may give no figure
        assert "gradient clipping" in trial.lightning_cost.features
        assert headline(trial).startswith("Lightning costs ")
