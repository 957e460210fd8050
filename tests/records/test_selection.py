"""Recommended arguments: which are taken together, and what is said about the others."""

from typing import Any

import msgspec
import pytest

from lightning_perf import PerfDoctor
from lightning_perf.records import Arm, Finding, Gain, Prescription, Session, TrainerSettings, Trial
from tests.rules.session_builder import build_session


def fix(safety: str = "exact", summary: str = "", **fields: Any) -> Prescription:
    fields = {"treatment": "", "effort": "one line", "summary": summary or str(sorted(fields)), **fields}
    return Prescription(safety=safety, **fields)  # type: ignore[arg-type]


def finding(code: str, *fixes: Prescription, gain: float | None = None, severity: str = "medium") -> Finding:
    return Finding(
        code=code,
        name="",
        category="loop",
        severity=severity,  # type: ignore[arg-type]
        summary="",
        evidence=(),
        prescriptions=fixes,
        gain=None if gain is None else Gain(low=gain, high=2 * gain, basis="", method="timed"),
    )


def session_with(*findings: Finding, **trainer: Any) -> Session:
    session = build_session()
    settings = msgspec.structs.replace(session.settings, trainer=TrainerSettings(**trainer))
    return msgspec.structs.replace(session, findings=findings, settings=settings)


BF16 = fix("numerics", trainer_flags={"precision": "bf16-mixed"})
FULL = fix("numerics", trainer_flags={"precision": "32-true"})
CLIP = fix("semantics", trainer_flags={"gradient_clip_val": 1.0})
SMALLER = fix("semantics", "smaller", trainer_flags={"accumulate_grad_batches": 2}, loader_args={"batch_size": 16})
CODE = fix("exact", "use checkpointing", treatment="activation-checkpointing", code="checkpoint(x)\nmore")


def test_flag_is_found_behind_a_recommendation_that_is_none() -> None:
    session = session_with(finding("PD401", CODE, BF16, SMALLER))
    assert session.trainer_flags() == {}
    assert session.trainer_flags("numerics") == {"precision": "bf16-mixed"}
    assert session.left_out("numerics")["PD401: use checkpointing"] == "write it in your code: checkpoint(x)"


def test_less_safe_alternative_is_left_out_and_said() -> None:
    session = session_with(finding("PD320", BF16, CLIP))
    assert session.trainer_flags("semantics") == {"precision": "bf16-mixed"}
    assert session.left_out("semantics") == {f"PD320: {CLIP.summary}": f"less safe alternative to: {BF16.summary}"}
    assert session.left_out("exact") == {
        f"PD320: {BF16.summary}": 'may change results; safety="numerics" includes it',
        f"PD320: {CLIP.summary}": 'may change results; safety="semantics" includes it',
    }
    assert session_with(finding("PD320", CLIP)).trainer_flags("semantics") == {"gradient_clip_val": 1.0}


@pytest.mark.parametrize("order", [1, -1])
def test_contradiction_is_resolved_by_gain_whatever_the_order(order: int) -> None:
    both = [finding("PD301", BF16, gain=1.2), finding("PD315", FULL, gain=1.6)][::order]
    session = session_with(*both)
    assert session.trainer_flags("numerics") == {"precision": "32-true"}
    assert session.left_out("numerics") == {
        f"PD301: {BF16.summary}": "contradicts precision='32-true' of PD315, which has priority"
    }


def test_dicts_of_a_file_contradict_when_they_are_not_objects() -> None:
    one, other = (fix(summary=f"depth {n}", trainer_flags={"options": {"depth": n}}) for n in (1, 2))
    session = session_with(finding("PD301", one, gain=1.6), finding("PD315", other, gain=1.2))
    assert session.trainer_flags() == {"options": {"depth": 1}}
    assert session.left_out() == {"PD315: depth 2": "contradicts options={'depth': 1} of PD301, which has priority"}


@pytest.mark.parametrize("other", [{"class_path": "a", "init_args": None}, {"class_path": 1, "init_args": {}}])
def test_objects_of_a_file_contradict_when_they_are_not_valid(other: dict[str, Any]) -> None:
    objects = ({"class_path": "a", "init_args": {}}, other)
    findings = [finding(f"PD30{i}", fix(trainer_flags={"profiler": one}), gain=2 - i) for i, one in enumerate(objects)]
    for order in (1, -1):
        assert session_with(*findings[::order]).trainer_flags() == {"profiler": objects[0]}
    assert "which has priority" in next(iter(session_with(*findings).left_out().values()))


def test_more_severe_finding_without_a_gain_comes_first() -> None:
    session = session_with(finding("PD315", FULL, gain=1.6), finding("PD408", BF16, severity="high"))
    assert session.trainer_flags("numerics") == {"precision": "bf16-mixed"}


def test_recommendation_is_left_out_as_a_whole() -> None:
    larger = finding("PD313", fix("semantics", loader_args={"batch_size": 64}), gain=1.5)
    session = session_with(larger, finding("PD407", SMALLER))
    assert session.trainer_flags("semantics") == {}  # accumulation alone would be another training
    assert session.loader_args("semantics") == {"batch_size": 64}


@pytest.mark.parametrize("order", [1, -1])
def test_arguments_that_need_workers_are_not_combined_with_none(order: int) -> None:
    none = finding("PD103", fix(loader_args={"num_workers": 0, "persistent_workers": False}), gain=1.3)
    ahead = finding("PD105", fix(loader_args={"prefetch_factor": 4}), gain=1.3)
    arguments = session_with(*[none, ahead][::order]).loader_args()
    assert arguments in ({"num_workers": 0, "persistent_workers": False}, {"prefetch_factor": 4})


def test_flags_that_lightning_refuses_are_left_out() -> None:
    session = session_with(finding("PD407", SMALLER), finding("PD320", CLIP), is_automatic_optimization=False)
    assert session.trainer_flags("semantics") == {}
    assert session.loader_args("semantics") == {}
    assert session.left_out("semantics")["PD407: smaller"].endswith("accumulate_grad_batches with manual optimization")
    sharded = finding("PD403", fix("numerics", trainer_flags={"strategy": "fsdp"}))
    assert session_with(sharded, gradient_clip_val=1.0).trainer_flags("numerics") == {}
    for clipping in ({}, {"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"}):
        assert session_with(sharded, **clipping).trainer_flags("numerics") == {"strategy": "fsdp"}


def test_unmeasured_recommendation_names_the_trial() -> None:
    session = session_with(finding("PD307", fix("numerics", "set benchmark", treatment="cudnn-benchmark")))
    assert session.left_out() == {
        "PD307: set benchmark": "its speedup was not measured: "
        "lightning-perf trial --try cudnn-benchmark -- python train.py"
    }


def test_callback_returns_the_same_and_nothing_before_the_first_run() -> None:
    doctor = PerfDoctor()
    assert (doctor.trainer_flags(), doctor.loader_args(), doctor.left_out()) == ({}, {}, {})
    doctor.session = session_with(finding("PD401", CODE, BF16))
    assert type(doctor.trainer_flags("numerics")) is dict
    assert doctor.trainer_flags("numerics") == {"precision": "bf16-mixed"}
    assert list(doctor.left_out("numerics")) == ["PD401: use checkpointing"]


@pytest.mark.parametrize(
    ("verdicts", "is_kept"),
    [(("improved",), True), (("no_change",), False), (("regressed", "improved"), True), (("inconclusive",), True)],
)
def test_treatment_without_a_gain_in_a_trial_is_left_out(verdicts: tuple[str, ...], is_kept: bool) -> None:
    arms = [
        Arm(id=f"log-every-n={i}", treatments=(f"log-every-n={i}",), verdict=verdict)  # type: ignore[arg-type]
        for i, verdict in enumerate(verdicts)
    ]
    trial = Trial(id="t", command=(), status="finished", started_at="", arms=tuple(arms))
    rarely = fix(treatment="log-every-n", trainer_flags={"log_every_n_steps": 50})
    session = msgspec.structs.replace(session_with(finding("PD502", rarely, gain=1.1)), trials=(trial,))
    assert session.trainer_flags() == ({"log_every_n_steps": 50} if is_kept else {})
    assert list(session.left_out().values()) == ([] if is_kept else ["no gain in a trial: no change"])
