from __future__ import annotations

import logging
import re
from pathlib import Path

import msgspec
import pytest
from reports.sessions import spread

from benchmarks.comparison.simulated_sessions import STEP_S
from lightning_perf.history.run_history import RunHistory, earlier_runs
from lightning_perf.history.store import History
from lightning_perf.records import HostTelemetry, Session, Telemetry

from .runs import run


def with_runs(file: Path, n: int = 5, **kind: object) -> RunHistory:
    for i in range(1, n + 1):
        History(file).save(run(i, **kind))
    return RunHistory(file)


def test_news_name_the_phase_that_grew_and_what_changed(history_file: Path) -> None:
    history = with_runs(history_file)
    slow = run(9, slower=3.0, phase="data_wait", loader={"num_workers": 4})
    text = history.news(slow)
    assert text is not None
    assert " % slower than your last 5 runs: data wait +" in text
    assert text.endswith(" ms per step; since then num_workers 8 → 4")


def test_news_say_that_nothing_changed_and_how_many_times_as_slow(history_file: Path) -> None:
    text = with_runs(history_file, n=4).news(run(9, slower=3.0))
    assert text is not None
    assert "the time per step of your last 4 runs" in text
    assert text.endswith("no setting or version changed")


@pytest.mark.parametrize(("busy", "says"), [(0.5, True), (0.3, False)])
def test_news_say_when_other_programs_use_the_cores(history_file: Path, busy: float, says: bool) -> None:
    slow = run(9, slower=1.5)
    host = HostTelemetry(n_samples=9, process_cpu_cores=spread(2.0), cpu_busy_fraction=spread(busy))
    text = with_runs(history_file).news(msgspec.structs.replace(slow, telemetry=Telemetry(hz=1.0, host=host)))
    assert text is not None
    assert text.endswith("no setting or version changed; other programs used 2.0 of 8 cores") is says


def on_machine(session: Session, factor: float) -> Session:
    """Return a run on a machine whose speed was measured: a piece of Python took ``factor`` times as long."""
    assert session.steady is not None
    return msgspec.structs.replace(
        session, steady=msgspec.structs.replace(session.steady, fixed_python_s=2e-5 * factor)
    )


SPEEDS = (1.0, 1.3, 0.9, 1.1, 1.2, 0.95)


@pytest.mark.parametrize(
    ("factor", "more", "says"),
    [
        (1.3, 1.5, r"(4\d|5\d) % slower than your last 5 runs, on top of (19|20|21) % because the machine is slower"),
        (0.9, 1.5, r"(4\d|5\d) % slower than .*, although the machine is faster, which saves (16|17|18) %"),
        (1.08, 1.5, r"(4\d|5\d) % slower than your last 5 runs: backward \+"),
    ],
)
def test_news_say_what_the_speed_of_the_machine_explains(
    history_file: Path, factor: float, more: float, says: str
) -> None:
    for i, each in enumerate(SPEEDS):
        History(history_file).save(on_machine(run(i, slower=each), each))
    text = RunHistory(history_file).news(on_machine(run(9, slower=factor * more), factor))
    assert text is not None
    assert re.match(says, text), text


def test_news_say_that_one_phase_grew_more_than_all_else(history_file: Path) -> None:
    for i, each in enumerate(SPEEDS):
        History(history_file).save(run(i, slower=each, between=0.0))
    text = RunHistory(history_file).news(run(9, slower=1.3, between=0.0, more_s={"data_wait": 0.1 * 1.3 * STEP_S}))
    assert text is not None
    says = "10 % slower than your last 5 runs, on top of (20|21|22) % by which all else in a step is slower: "
    assert re.match(says + r"data wait \+6\.\d+ ms per step", text), text


def test_news_say_that_no_change_explains_it(history_file: Path) -> None:
    history = with_runs(history_file)
    text = history.news(run(9, slower=1.5, phase="forward", loader={"num_workers": 4}))
    assert text is not None
    assert text.endswith("; no changed setting explains it")


def test_news_say_that_the_machine_is_slower_where_earlier_runs_do_not_show_what_that_means(history_file: Path) -> None:
    for i in range(3):
        History(history_file).save(on_machine(run(i), 1.0))
    text = RunHistory(history_file).news(on_machine(run(9, slower=3.0), 1.12))
    assert text is not None
    assert "your last 3 runs (the machine itself is 12 % slower): backward +" in text


def test_phase_that_grew_excludes_what_the_machine_explains(history_file: Path) -> None:
    for i, each in enumerate(SPEEDS):
        History(history_file).save(on_machine(run(i, slower=each), each))
    text = RunHistory(history_file).news(on_machine(run(9, slower=1.6, more_s={"data_wait": 0.03}), 1.6))
    assert text is not None
    assert re.search(r"data wait \+(29|30)\.\d ms per step", text), text  # and 20 ms for the machine


def test_there_are_no_news_of_a_run_on_a_slower_machine(history_file: Path) -> None:
    for i, each in enumerate(SPEEDS):
        History(history_file).save(on_machine(run(i, slower=each), each))
    history = RunHistory(history_file)
    slow = on_machine(run(9, slower=1.6), 1.6)
    assert history.news(slow) is None
    earlier = history.earlier(slow)
    assert earlier is not None
    assert earlier.machine_factor == pytest.approx(1.48, rel=0.1)


def test_news_come_once(history_file: Path) -> None:
    history = with_runs(history_file)
    assert history.news(run(9, slower=1.5)) is not None
    assert history.news(run(9, slower=1.5, n_epochs=20)) is None


@pytest.mark.parametrize(
    ("n_runs", "kind"),
    [(2, {}), (5, {"n_epochs": 1, "steps_an_epoch": 150}), (5, {"machine": {"cpu_model": "another"}})],
)
def test_there_are_no_news_of_too_few_runs_steps_or_of_another_training(
    history_file: Path, n_runs: int, kind: dict[str, object]
) -> None:
    history = with_runs(history_file, n=n_runs)
    assert history.news(run(9, slower=2.0, **kind)) is None


def test_there_are_no_news_of_a_run_that_is_as_fast_or_faster(history_file: Path) -> None:
    for slower in (1.0, 0.7):
        assert with_runs(history_file).news(run(9, slower=slower)) is None


def test_a_run_is_compared_again_when_its_steps_have_doubled(history_file: Path) -> None:
    history = with_runs(history_file)
    kind = {"n_epochs": 1, "steps_an_epoch": 300}
    assert history.news(run(9, **kind)) is None
    assert history.news(run(9, slower=1.5, n_epochs=1, steps_an_epoch=400)) is None
    assert history.news(run(9, slower=1.5, n_epochs=1, steps_an_epoch=700)) is not None


def test_much_shorter_runs_are_no_base(history_file: Path) -> None:
    history = with_runs(history_file, n_epochs=1, steps_an_epoch=200)
    assert history.news(run(9, slower=1.5, n_epochs=5, steps_an_epoch=200)) is None


def test_earlier_runs_end_with_this_one_and_name_its_changes(history_file: Path) -> None:
    history = with_runs(history_file, n=3)
    found = history.earlier(run(9, loader={"num_workers": 0}))
    assert found is not None
    assert [each.id for each in found.runs] == ["1", "2", "3", "9"]
    assert [each.changes for each in found.runs[:3]] == [(), (), ()]
    assert [each.name for each in found.runs[3].changes] == ["num_workers"]
    assert found.runs[0].step_s == pytest.approx(0.05, rel=0.1)
    assert found.runs[0].phase_s["validation"] == pytest.approx(0.005, rel=0.1)
    assert found.news == ""
    assert found.detectable is None


def test_times_of_phases_are_per_step_of_the_span_when_epochs_are_short() -> None:
    steady = msgspec.structs.replace(run(1).steady, n_steps=20, n_first_steps=20)
    (found,) = earlier_runs([msgspec.structs.replace(run(1), steady=steady)])
    assert found.phase_s == {name: pytest.approx(phase.total_s / 40) for name, phase in steady.phases.items()}


@pytest.mark.parametrize(("n_runs", "is_known"), [(2, False), (5, True)])
def test_earlier_runs_say_what_would_have_been_found_if_there_were_enough(
    n_runs: int, is_known: bool, history_file: Path
) -> None:
    history = with_runs(history_file, n=n_runs)
    assert history.news(run(9)) is None
    found = history.earlier(run(9))
    assert found is not None
    assert (found.detectable is not None and 1.02 < found.detectable < 1.5) == is_known


def test_there_are_no_earlier_runs_at_first_and_before_the_first_steps(history_file: Path) -> None:
    history = with_runs(history_file, n=0)
    assert history.earlier(run(1)) is None
    assert with_runs(history_file).earlier(msgspec.structs.replace(run(9), steady=None)) is None


def test_nothing_is_kept_when_switched_off(tmp_path: Path) -> None:
    history = RunHistory(None)
    history.save(run(1))
    assert history.news(run(9)) is None
    assert history.earlier(run(9)) is None
    assert list(tmp_path.iterdir()) == []


def test_run_goes_on_when_its_history_file_cannot_be_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    history = RunHistory(tmp_path / "file" / "history.db")
    with caplog.at_level(logging.INFO, "lightning_perf"):
        for session in (run(1), run(2)):
            history.save(session)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert history.news(run(3)) is None


def test_a_run_without_steady_steps_is_not_saved(history_file: Path) -> None:
    empty: Session = msgspec.structs.replace(run(1), steady=None)
    RunHistory(history_file).save(empty)
    assert not history_file.exists()
