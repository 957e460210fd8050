from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lightning_perf.records import Distribution, Interval, Overhead, Session, from_json
from lightning_perf.reports import tensorboard
from lightning_perf.reports.render.markdown import to_markdown
from lightning_perf.reports.tensorboard import SessionWriter, scalars, write_scalars, write_text, write_trial
from reports.sessions import SESSIONS, ddp, starved, validate_stage
from reports.trials import broken, climbed


class FakeWriter:
    def __init__(self) -> None:
        self.written: list[tuple[str, Any, int | None]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        self.written.append((tag, scalar_value, global_step))

    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> None:
        self.written.append((tag, text_string, global_step))


def test_scalars_hold_step_times_shares_and_rate_of_training() -> None:
    figures = scalars(starved())
    assert figures["perf/step_ms/p50"] == pytest.approx(30.7)
    assert figures["perf/share/data_wait"] == 0.541
    assert figures["perf/samples_per_s"] == 1043.2
    assert figures["perf/overhead_us"] == 14.2
    assert "perf/starved_share" not in figures


def test_scalars_hold_device_and_validation_figures_when_there_are_some() -> None:
    figures = scalars(ddp())
    assert figures["perf/starved_share"] == 0.095
    assert figures["perf/memory_gib/cuda_0"] == pytest.approx(31.2)
    assert figures["perf/memory_reserved_gib/cuda_0"] == 40.0
    assert figures["perf/memory_gib/host"] == 9.0
    assert figures["perf/validation/share/forward"] == 0.71


def test_scalars_of_another_stage_do_not_mix_with_those_of_training() -> None:
    tags = [tag for tag in scalars(validate_stage()) if "overhead" not in tag and "memory" not in tag]
    assert tags
    assert all(tag.startswith("perf/validate/") for tag in tags)


@pytest.mark.parametrize("name", SESSIONS)
def test_scalars_are_plain_finite_floats(name: str) -> None:
    assert all(type(value) is float and math.isfinite(value) for value in scalars(SESSIONS[name]()).values())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_scalars_leave_out_what_is_not_finite(bad: float) -> None:
    base = starved()
    assert base.steady is not None
    step_s = Distribution(p50=bad, p95=0.1, p99=bad, mean=bad, std=bad)
    overhead = Overhead(per_step_us=bad, reporting_s=0.0, share=bad, budget_us=40.0)
    steady = msgspec.structs.replace(base.steady, step_s=step_s, samples_per_s=bad)
    writer = FakeWriter()
    write_scalars(writer, msgspec.structs.replace(base, steady=steady, overhead=overhead), 3)
    tags = [tag for tag, _, _ in writer.written]
    assert "perf/step_ms/p95" in tags
    assert not {"perf/step_ms/p50", "perf/samples_per_s", "perf/overhead_us"} & set(tags)


def test_write_scalars_writes_each_at_the_step() -> None:
    writer = FakeWriter()
    write_scalars(writer, starved(), 420)
    assert writer.written == [(tag, value, 420) for tag, value in scalars(starved()).items()]


def test_write_text_writes_the_markdown_diagnosis() -> None:
    writer = FakeWriter()
    write_text(writer, starved(), 420)
    assert writer.written == [("perf/diagnosis", to_markdown(starved()), 420)]


class FakeFileWriter:
    def __init__(self) -> None:
        self.written: list[tuple[Any, int]] = []

    def _get_file_writer(self) -> FakeFileWriter:
        return self

    def add_summary(self, summary: Any, step: int) -> None:
        self.written.append((summary, step))


def test_session_writer_writes_the_whole_session_for_the_tab() -> None:
    writer = FakeFileWriter()
    assert SessionWriter().write(writer, starved(), 420)
    [(summary, step)] = writer.written
    [value] = summary.value
    assert step == 420
    assert value.metadata.plugin_data.plugin_name == "perfdoctor"
    assert value.tag == f"perfdoctor/{starved().run.id}"
    assert from_json(value.tensor.string_val[0], "the summary") == starved()


def running() -> Session:
    return msgspec.structs.replace(starved(), run=msgspec.structs.replace(starved().run, status="running"))


def test_session_writer_writes_ever_more_rarely_once_it_has_written_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "EVENT_BYTES", 3 * len(starved().to_json()) // 2)
    writer, sessions = FakeFileWriter(), SessionWriter()
    written = [i for i in range(1, 65) if sessions.write(writer, running(), i)]
    assert written[:2] == [1, 2]
    assert len(written) <= 10
    assert all(later >= 2 * earlier for earlier, later in itertools.pairwise(written))


def test_session_writer_always_writes_the_session_of_a_run_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "EVENT_BYTES", 0)
    sessions = SessionWriter()
    assert [sessions.write(FakeFileWriter(), running(), 1) for _ in range(3)] == [True, True, False]
    assert sessions.write(FakeFileWriter(), starved(), 1)


def test_session_writer_leaves_a_writer_that_hides_its_file() -> None:
    assert not SessionWriter().write(FakeWriter(), starved(), 1)


@pytest.mark.parametrize("name", SESSIONS)
def test_tags_are_names_that_hosted_loggers_take(name: str) -> None:
    # MLflow's rule is the strictest: letters, digits, underscores, dashes, dots, blanks, colons and slashes.
    assert all(re.fullmatch(r"[\w\-. :/]{1,250}", tag) for tag in scalars(SESSIONS[name]()))


class FakeHparams:
    def __init__(self) -> None:
        self.rows: dict[str | None, tuple[dict[str, Any], dict[str, Any]]] = {}

    def add_hparams(
        self, hparam_dict: dict[str, Any], metric_dict: dict[str, Any], *, run_name: str | None = None
    ) -> None:
        self.rows[run_name] = (hparam_dict, metric_dict)


def test_trial_is_a_row_for_each_arm_with_every_treatment_as_a_column() -> None:
    step = Interval(value=0.02, low=0.019, high=0.021)
    arms = tuple(msgspec.structs.replace(arm, step_s=arm.step_s or step) for arm in climbed().arms if arm.speedup or
                 not arm.treatments)  # fmt: skip
    writer = FakeHparams()
    assert write_trial(writer, msgspec.structs.replace(climbed(), arms=arms)) == len(writer.rows) == len(arms)
    hparams, metrics = writer.rows["baseline"]
    assert set(hparams.values()) == {"off"}
    assert metrics["perf/speedup"] == 1.0
    assert metrics["perf/step_ms"] == pytest.approx(31.2)
    hparams, metrics = writer.rows["loader-workers=4"]
    assert hparams["loader-workers"] == "4"
    assert set(hparams) == set(writer.rows["baseline"][0])
    assert metrics["perf/speedup"] > 1.0
    assert metrics["perf/step_ms"] == pytest.approx(20.0)


def test_trial_of_which_nothing_was_measured_writes_nothing() -> None:
    writer = FakeHparams()
    trial = msgspec.structs.replace(
        broken(), arms=tuple(msgspec.structs.replace(arm, step_s=None) for arm in broken().arms)
    )
    assert write_trial(writer, trial) == 0
    assert writer.rows == {}


def test_tensorboard_reads_the_trials_rows(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        n = write_trial(writer, climbed())
    folders = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert len(folders) == n
    events = EventAccumulator(str(tmp_path / "baseline"))
    events.Reload()
    assert events.Scalars("perf/step_ms")[0].value == pytest.approx(31.2)
    assert "hparams" in events.summary_metadata["_hparams_/session_start_info"].plugin_data.plugin_name
