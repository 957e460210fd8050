from __future__ import annotations

import re

import msgspec
import pytest

from lightning_perf.history.entry import reduced
from lightning_perf.history.suspects import SETTINGS, Suspect, changes, settings_of, suspects
from lightning_perf.records import STEP_PHASES, Session
from lightning_perf.stats.comparison import compare_sessions
from lightning_perf.treatments.specs import parse

from .runs import VERSIONS, run


def ranked(base: list[Session], new: list[Session]) -> list[Suspect]:
    return suspects(base, new, compare_sessions([("", each) for each in base], [("", each) for each in new]))


def test_the_setting_of_the_phase_that_grew_comes_before_others_that_changed_too() -> None:
    base = [reduced(run(n)) for n in range(1, 6)]
    torch = {"versions": {**VERSIONS, "torch": "2.10.0"}}
    new = reduced(run(9, loader={"num_workers": 4}, machine=torch, provenance={"commit": "b" * 40},
                   slower=3.0, phase="data_wait"))  # fmt: skip
    found = ranked(base, [new])
    assert [each.name for each in found] == ["num_workers", "commit", "torch"]
    assert [str(each) for each in found[:2]] == ["num_workers 8 → 4", "commit aaaaaaa → bbbbbbb"]
    assert found[0].score == pytest.approx(1.0, abs=0.05)
    assert found[0].treatment == "loader-workers=8"
    slow = reduced(run(10, loader={"num_workers": 4}, machine=torch, slower=1.5, phase="backward"))
    assert [each.name for each in ranked(base, [slow])] == ["torch", "num_workers"]


def test_what_differs_from_run_to_run_is_no_suspect() -> None:
    base = [reduced(run(n, provenance={"commit": str(n) * 40})) for n in range(1, 6)]
    [only] = ranked(base, [reduced(run(9, provenance={"commit": "b" * 40}, slower=1.5))])
    assert only.score == 0.0


def test_settings_of_the_validation_loader_act_on_validation() -> None:
    base, new = [run(1), run(2), run(3)], run(9, loader={"stage": "val", "num_workers": 0}, validation_s=9.0)
    base = [run(n, loader={"stage": "val"}) for n in (1, 2, 3)]
    [only] = ranked(base, [new])
    assert str(only) == "val num_workers 8 → 0"
    assert only.score > 0.9
    assert only.treatment == ""


def test_changes_name_what_differs_between_two_runs() -> None:
    found = changes(run(1), run(2, trainer={"precision": "32-true"}, loader={"num_workers": 0}))
    assert [(each.name, each.base, each.new) for each in found] == [
        ("num_workers", "8", "0"),
        ("precision", "bf16-mixed", "32-true"),
    ]
    assert changes(run(1), run(2)) == ()


def with_validation(session: Session) -> Session:
    train = session.settings.loaders
    validation = msgspec.structs.replace(train[0], stage="val", dataset_class="Images")
    settings = msgspec.structs.replace(session.settings, loaders=(*train, validation))
    return msgspec.structs.replace(session, settings=settings)


def test_a_loader_that_only_one_run_has_is_one_change() -> None:
    found = changes(run(1), with_validation(run(2)))
    assert [(each.name, each.base, each.new) for each in found] == [("val dataset_class", None, "Images")]
    assert [str(each) for each in ranked([with_validation(run(1))], [run(2)])] == ["val dataset class Images → None"]


def test_settings_are_named_after_fields_of_the_session() -> None:
    ends = {path.rpartition(".")[2] for path in settings_of(run(1, provenance={"dataset": "x"}))}
    known = {*ends, "cuda", "torchmetrics", "numpy"}
    assert set(SETTINGS) <= known, set(SETTINGS) - known


VALUES = {"val_check_interval": ("0.5", "100"), "precision": ("bf16-mixed", "16-mixed")}


@pytest.mark.parametrize("name", [name for name, setting in SETTINGS.items() if setting.treatment])
def test_treatments_of_settings_are_known(name: str) -> None:
    setting = SETTINGS[name]
    assert set(setting.phases) <= {*STEP_PHASES, "validation", "epoch_boundary", "checkpoint"}
    if isinstance(setting.treatment, dict):
        texts = list(setting.treatment.values())
    else:
        texts = [setting.treatment.format(f"{v}b" if v == "100" else v) for v in VALUES.get(name, ("4",))]
    for text in texts:
        assert re.match(rf"{parse(text).treatment.id}\b", text)


def test_values_become_treatments() -> None:
    base = [reduced(run(n, trainer={"val_check_interval": 100})) for n in (1, 2, 3)]
    new = reduced(run(9, trainer={"val_check_interval": 0.5}, loader={"batch_size": 16}, validation_s=9.0))
    found = {each.name: each.treatment for each in ranked(base, [new])}
    assert found == {"val_check_interval": "val-less-often=100b", "batch_size": "batch-size=32"}


def test_values_that_a_treatment_refuses_are_not_tried() -> None:
    fast = {"log_every_n_steps": 0, "progress_bar_refresh_rate": 0, "accumulate_grad_batches": 1}
    slow = {"log_every_n_steps": 1, "progress_bar_refresh_rate": 1, "accumulate_grad_batches": 2}
    base = [reduced(run(n, trainer=fast)) for n in (1, 2, 3)]
    found = {each.name: each.treatment for each in ranked(base, [reduced(run(9, trainer=slow))])}
    assert found == dict.fromkeys(slow, "")
    back = {each.name: each.treatment for each in ranked([reduced(run(9, trainer=slow))], base)}
    assert back == {
        "log_every_n_steps": "log-every-n=1",
        "progress_bar_refresh_rate": "progress-refresh=1",
        "accumulate_grad_batches": "accumulate=2",
    }


def test_removed_profiler_and_mixed_precision_are_tried_when_they_are_new() -> None:
    base = [reduced(run(n, trainer={"precision": "32-true"})) for n in (1, 2, 3)]
    new = reduced(run(9, trainer={"precision": "bf16-mixed", "profiler": "SimpleProfiler"}))
    found = {each.name: each.treatment for each in ranked(base, [new])}
    assert found == {"precision": "precision-32", "profiler": "profiler-off"}


def test_arguments_that_need_workers_are_not_tried_when_the_slow_run_has_none() -> None:
    base = [reduced(run(n, loader={"persistent_workers": True, "prefetch_factor": 4})) for n in (1, 2, 3)]
    new = reduced(run(9, loader={"num_workers": 0, "persistent_workers": False}, slower=3.0, phase="data_wait"))
    found = {each.name: each.treatment for each in ranked(base, [new])}
    assert found == {"num_workers": "loader-workers=8", "persistent_workers": "", "prefetch_factor": ""}
