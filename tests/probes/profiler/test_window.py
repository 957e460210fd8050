"""Profiler windows: when they open, their status, and that everything is restored."""

from __future__ import annotations

import gc
import gzip
import json
import math
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.profilers import PyTorchProfiler
from torch.utils.data import DataLoader

from lightning_perf import PerfDoctor
from lightning_perf.errors import ConfigError
from lightning_perf.probes.profiler import recording as profiler_recording
from lightning_perf.probes.profiler import window as window_module
from lightning_perf.probes.profiler.kineto_session import is_profiler_started
from lightning_perf.probes.profiler.recording import WindowOptions, active_profiler
from lightning_perf.probes.profiler.window import REQUEST_FILE, WindowProbe
from lightning_perf.records import Session
from tests.rules.session_builder import build_trace

N_FEATURES = 4


class Tiny(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(N_FEATURES, 1)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return self.layer(batch).square().mean()

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.layer(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def data(n: int = 200) -> DataLoader:
    return DataLoader(torch.arange(2.0 * n * N_FEATURES).reshape(-1, N_FEATURES) / 1000, batch_size=2)


@pytest.fixture
def fit(tmp_path, monkeypatch):
    """Train ``n`` steps with PerfDoctor and return the session."""
    monkeypatch.chdir(tmp_path)

    def run(doctor: PerfDoctor | None, n: int = 30, *others: Callback, **arguments: Any) -> Any:
        seed_everything(3, verbose=False)
        callbacks = [*([doctor] if doctor else []), *others]
        trainer = Trainer(
            accelerator="cpu", devices=1, max_steps=n, max_epochs=-1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path, callbacks=callbacks,
            **arguments,
        )  # fmt: skip
        model = Tiny()
        trainer.fit(model, data())
        return doctor.session if doctor else model

    return run


def doctor(tmp_path: Path, schedule: Any, **profiler: Any) -> PerfDoctor:
    return PerfDoctor(schedule=schedule, profiler=profiler, out_dir=tmp_path / "out", reports=("json",))


def outcomes(session: Session) -> list[tuple[str, int, int]]:
    return [(window.status, window.first_step, window.n_steps) for window in session.windows]


@pytest.mark.parametrize(
    ("schedule", "options", "n", "expected"),
    [
        ((5, 2, 3, 1), {}, 30, [7]),
        ((5, 2, 3, 1), {}, 10, [7]),
        ((5, 2, 3, 2), {}, 30, [7, 17]),
        ((5, 2, 3, 0), {}, 30, [7, 17, 27]),
        ((0, 1, 2, 2), {}, 12, [1, 4]),
        ((2, 0, 2, 1), {}, 12, [2]),
        ((5, 2, 3, 1), {"skip_first": 8}, 30, [15]),
    ],
)
def test_windows_open_at_their_steps_when_scheduled(fit, tmp_path, schedule, options, n, expected):
    session = fit(doctor(tmp_path, schedule, **options), n)
    assert outcomes(session) == [("recorded", first, schedule[2]) for first in expected]
    assert all(len(window.trace.steps) == schedule[2] for window in session.windows)
    assert all(window.cost_s > 0 for window in session.windows)
    assert len(list((tmp_path / "out").rglob("*.pt.trace.json.gz"))) == len(expected)


@pytest.mark.parametrize(("n", "n_active"), [(4, 0), (7, 0), (9, 1)])
def test_window_is_incomplete_when_the_run_is_shorter_than_the_schedule(fit, tmp_path, n, n_active):
    session = fit(doctor(tmp_path, (5, 2, 3, 1)), n)
    ((status, _, n_steps),) = outcomes(session)
    assert (status, n_steps) == ("incomplete", n_active)
    assert "PD907" in {finding.code for finding in session.findings}
    assert active_profiler() is None


def test_no_window_opens_when_there_is_no_schedule(fit, tmp_path):
    assert fit(doctor(tmp_path, None)).windows == ()


def test_window_fails_and_everything_is_put_back_when_the_training_raises_inside(fit, tmp_path):
    class Raises(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            if args[-1] == 8:
                raise RuntimeError("boom")

    watched = doctor(tmp_path, (5, 2, 3, 1))
    with pytest.raises(RuntimeError, match="boom"):
        fit(watched, 30, Raises())
    ((status, _, _),) = outcomes(watched.session)
    assert status == "failed"
    assert "RuntimeError ended the run" in watched.session.windows[0].reason
    assert active_profiler() is None
    assert "KINETO_LOG_LEVEL" not in os.environ


def test_window_fails_with_the_reason_when_another_profiler_is_active(fit, tmp_path):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        session = fit(doctor(tmp_path, (5, 2, 3, 1)))
    assert [window.status for window in session.windows] == ["failed"]
    assert "another torch.profiler is active" in session.windows[0].reason
    assert session.probes_off == ()


def test_training_goes_on_when_lightnings_own_profiler_is_used(fit, tmp_path):
    profiler = PyTorchProfiler(
        dirpath=tmp_path, filename="own", schedule=torch.profiler.schedule(wait=20, warmup=1, active=2)
    )
    session = fit(doctor(tmp_path, (5, 2, 3, 1)), profiler=profiler)
    assert [window.status for window in session.windows] == ["failed"]
    assert "profil" in session.windows[0].reason
    assert session.run.n_steps == 30


def test_window_fails_once_when_the_profiler_cannot_start(fit, tmp_path, monkeypatch):
    monkeypatch.setattr(
        profiler_recording, "_kineto_profile", lambda *_: (_ for _ in ()).throw(RuntimeError("no CUPTI"))
    )
    session = fit(doctor(tmp_path, (5, 2, 3, 0)))
    assert [window.status for window in session.windows] == ["failed"]
    assert "no CUPTI" in session.windows[0].reason


_FAILS_TO_PREPARE = """
import sys

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel

from lightning_perf import PerfDoctor

prepare = torch.autograd.profiler._prepare_profiler


def fail(*_, **__):
    torch.autograd.profiler._prepare_profiler = prepare
    raise RuntimeError("no CUPTI")


torch.autograd.profiler._prepare_profiler = fail
doctor = PerfDoctor(schedule=(5, 2, 3, 1), out_dir=sys.argv[1], reports=(), ceilings=False)
Trainer(
    max_steps=20, limit_val_batches=0, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, callbacks=[doctor],
).fit(BoringModel())
print(doctor.session.run.n_steps, doctor.session.windows[0].reason)
"""


def test_training_goes_on_when_the_profiler_cannot_be_prepared(forkserver, tmp_path):
    # In a process of its own: torch crashes where a profiler is started and ended that was not prepared.
    script = tmp_path / "script.py"
    script.write_text(_FAILS_TO_PREPARE)
    run = forkserver.run(script, str(tmp_path / "out"))
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "20 by schedule; RuntimeError: no CUPTI"


def test_window_is_not_read_when_it_holds_too_many_events(fit, tmp_path):
    session = fit(doctor(tmp_path, (5, 2, 3, 1), max_events=10))
    (window,) = session.windows
    assert (window.status, window.trace, window.file) == ("failed", None, None)
    assert "max_events" in window.reason


SLOW_S = 0.6  # longer than all that a busy machine adds to a hundred steps


def test_profiled_steps_stay_out_of_the_statistics_when_they_are_slow(fit, tmp_path):
    class Slow(Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            if torch.autograd._profiler_enabled():
                time.sleep(SLOW_S)

    # Probes of memory, operations and modules exclude steps of their own.
    watching = PerfDoctor(
        schedule=(40, 2, 3, 1),
        out_dir=tmp_path / "out",
        reports=("json",),
        memory=False,
        arithmetic=False,
        module_depth=0,
    )
    session = fit(watching, 120, Slow())
    assert [window.status for window in session.windows] == ["recorded"]
    steady = session.steady
    # Six rows touch the window: its five steps, and the one in which it opened or closed.
    n_left_out = session.run.n_steps - steady.n_warmup_steps - steady.n_steps
    assert n_left_out <= 8
    assert n_left_out >= 5 or steady.n_warmup_steps > 40  # on a busy machine the window may be in the warm-up
    assert steady.phases["callbacks"].total_s < SLOW_S
    assert steady.step_s.p99 < SLOW_S


def test_training_is_bit_identical_when_windows_are_recorded(fit, tmp_path):
    plain = fit(None, 30)
    watched: list[Tiny] = []

    class Keeps(Callback):
        def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
            watched.append(pl_module)

    options = {"with_stack": True, "profile_memory": True, "with_flops": True}
    session = fit(doctor(tmp_path, (3, 1, 2, 0), **options), 30, Keeps())
    assert len(session.windows) == 5
    for name, value in plain.state_dict().items():
        assert torch.equal(value, watched[0].state_dict()[name]), name


def test_stacks_are_exported_when_asked_for(fit, tmp_path):
    fit(doctor(tmp_path, (3, 1, 2, 1), with_stack=True, export_stacks=True), 12)
    (stacks,) = (tmp_path / "out").rglob("*.stacks.txt")
    assert "training_step" in stacks.read_text()


def test_window_opens_when_the_user_asks_for_it(fit, tmp_path):
    watched = doctor(tmp_path, (10, 1, 2, 1))

    class Asks(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 1:
                watched.profile_now()

    session = fit(watched, 30, Asks())
    assert outcomes(session) == [("recorded", 3, 2), ("recorded", 11, 2)]
    assert [window.reason.split(";")[0] for window in session.windows] == ["requested", "by schedule"]


def windows_only(tmp_path: Path, schedule: Any) -> PerfDoctor:
    """Return a PerfDoctor in which only windows need single steps."""
    off: dict[str, Any] = {"memory": False, "arithmetic": False, "module_depth": 0}
    return PerfDoctor(schedule=schedule, out_dir=tmp_path / "out", reports=("json",), **off)


def test_window_opens_at_the_next_step_when_no_other_probe_observes_it(fit, tmp_path):
    watched = windows_only(tmp_path, (100, 1, 2, 1))

    class Asks(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 20:
                watched.profile_now()

    assert outcomes(fit(watched, 40, Asks())) == [("recorded", 22, 2)]


def test_window_opens_again_at_the_step_after_validation_when_no_other_probe_observes_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    watching = windows_only(tmp_path, (17, 1, 4, 1))
    trainer = Trainer(
        accelerator="cpu", devices=1, max_epochs=1, limit_train_batches=40, val_check_interval=20, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[watching],
        limit_val_batches=2,
    )  # fmt: skip
    trainer.fit(Tiny(), data(), data(8))
    assert watching.session is not None
    assert [(w.status, w.first_step) for w in watching.session.windows] == [("incomplete", 18), ("recorded", 21)]


def test_phases_are_marked_when_a_window_is_open(fit, tmp_path):
    fit(doctor(tmp_path, (5, 1, 2, 1)))
    (file,) = (tmp_path / "out").rglob("*.pt.trace.json.gz")
    marks = [e["name"] for e in json.loads(gzip.decompress(file.read_bytes()))["traceEvents"] if "perf" in e["name"]]
    for phase in ("data_wait", "transfer", "forward", "backward", "optimizer"):
        assert marks.count(f"perfdoctor:{phase}") >= 2, phase


def test_window_opens_in_another_stage_only_when_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for stages, n in ((("fit",), 0), (("validate",), 1)):
        watched = doctor(tmp_path / str(n), (1, 1, 2, 1), stages=stages)
        trainer = Trainer(
            accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
            callbacks=[watched], default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.validate(Tiny(), data(), verbose=False)
        assert len(watched.session.windows) == n


@pytest.mark.parametrize(("level", "after"), [(None, None), ("3", "3")])
def test_log_level_is_put_back_when_a_window_is_over(fit, tmp_path, monkeypatch, level, after):
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    if level is not None:
        monkeypatch.setenv("KINETO_LOG_LEVEL", level)
    fit(doctor(tmp_path, (2, 1, 2, 1)), 8)
    assert os.environ.get("KINETO_LOG_LEVEL") == after


# -- on fakes ------------------------------------------------------------


class FakeLoop:
    """A loop whose step time a test sets."""

    def __init__(self, median_s: float = 0.01, wall_s: float = 1e6) -> None:
        self.trainer = SimpleNamespace(profiler=None)
        self.median_s = median_s
        self.slowest_s: float | None = median_s
        self.wall_s = wall_s
        self.passed_s = wall_s
        self.main = SimpleNamespace(
            recent_median_ns=lambda: self.median_s * 1e9,
            recent_slowest_ns=lambda: self.slowest_s and self.slowest_s * 1e9,
            n_steps=0,
            next_step=0,
        )
        self.marks: list[Any] = []
        self.depth = 0

    def profiling(self, mark: Any) -> None:
        self.depth += 1 if mark else -1
        if mark:
            self.marks.append(mark)

    def expected_wall_s(self, median_step_ns: float) -> float:
        return self.wall_s

    def wall_ns(self) -> int:
        return int(self.passed_s * 1e9)


class FakeRecording:
    """A window that records nothing, in no time."""

    cost_s = 0.2

    def __init__(
        self, options: WindowOptions, device: Any, first_step: int, reason: str, most_step_s: float = math.inf
    ) -> None:
        self.first_step, self.reason, self.n_done = first_step + options.warmup, reason, 0
        self.most_step_s = most_step_s
        self._warmup, self._n = options.warmup, options.warmup + options.active

    @property
    def n_active(self) -> int:
        return max(0, self.n_done - self._warmup)

    def start(self) -> None:
        pass

    @property
    def is_in_last_step(self) -> bool:
        return self.n_done == self._n - 1

    def step(self) -> bool:
        self.n_done += 1
        return self.n_done >= self._n

    def n_events(self) -> int:
        return 1

    def trace_record(self) -> Any:
        return build_trace({}, is_cpu=True)

    def export(self, folder: Path, rank: int, with_stacks: bool) -> str:
        return "kept.pt.trace.json.gz"

    def abandon(self) -> None: ...


def window_probe(
    loop: FakeLoop, folder: Path, options: WindowOptions, device: str = "cpu", is_worth: bool = True
) -> WindowProbe:
    run: Any = SimpleNamespace(
        loop=loop, probes=SimpleNamespace(switch_off=lambda name, error: None), is_worth_keeping=lambda trace: is_worth,
        trainer=SimpleNamespace(global_rank=0, strategy=SimpleNamespace(root_device=SimpleNamespace(type=device))),
    )  # fmt: skip
    return WindowProbe(run, options, folder)


@pytest.fixture
def made(monkeypatch, tmp_path):
    monkeypatch.setattr(window_module, "Recording", FakeRecording)

    def make(loop: FakeLoop, is_worth: bool = True, **options: Any) -> WindowProbe:
        return window_probe(loop, tmp_path, WindowOptions(**options), is_worth=is_worth)

    return make


def one_step(probe: WindowProbe) -> None:
    """Notify the probe as PerfDoctor does: only of steps it requests, asking for the next one after each."""
    main = probe._loop.main
    if main.n_steps >= main.next_step:
        probe.step_begins()
        main.n_steps += 1
        main.next_step = probe.next_step
    else:
        main.n_steps += 1


def ask(probe: WindowProbe) -> None:
    """Request a window as ``PerfDoctor.profile_now`` does."""
    probe.request()
    probe._loop.main.next_step = 0


def run_steps(probe: WindowProbe, n: int) -> None:
    for _ in range(n):
        one_step(probe)


def test_auto_opens_one_window_when_the_run_is_long_enough(made):
    loop = FakeLoop()
    probe = made(loop)
    run_steps(probe, 60)
    assert probe.windows == []
    run_steps(probe, 2000)
    assert [window.status for window in probe.windows] == ["recorded"]
    assert "steady state" in probe.windows[0].reason
    assert loop.depth == 0


def test_step_of_an_automatic_window_may_take_little_longer(made):
    loop = FakeLoop(wall_s=40.0)
    probe = made(loop)
    run_steps(probe, 62)
    assert probe._recording.most_step_s == pytest.approx(0.01 + 0.04)  # a tenth of what windows may cost
    loop = FakeLoop()
    for loop.slowest_s, usual_s in ((0.03, 0.03), (None, 0.02)):
        probe = made(loop)
        loop.main.n_steps = loop.main.next_step = 0
        run_steps(probe, 62)
        assert probe._recording.most_step_s == pytest.approx(usual_s + 0.1)
    ask(asked := made(FakeLoop()))
    run_steps(asked, 2)
    assert asked._recording.most_step_s == math.inf


def test_window_ends_when_recording_slows_a_step_down(fit, tmp_path, monkeypatch):
    monkeypatch.setattr(WindowProbe, "_most_step_s", lambda self: 0.0)
    (window,) = fit(doctor(tmp_path, (5, 2, 3, 1))).windows
    assert (window.status, window.n_steps, window.trace.n_events > 0) == ("recorded", 1, True)
    assert "ended early" in window.reason


def test_auto_opens_none_when_the_run_is_too_short(made):
    # 0.3 s and three steps of 0.01 s are 1 % of 33 s.
    short, long = made(FakeLoop(wall_s=32.9)), made(FakeLoop(wall_s=33.1))
    run_steps(short, 500)
    run_steps(long, 500)
    assert (len(short.windows), len(long.windows)) == (0, 1)


def test_auto_opens_another_when_the_step_changes(made):
    loop = FakeLoop()
    probe = made(loop)
    run_steps(probe, 500)
    loop.median_s = 0.0129
    run_steps(probe, 1000)
    assert len(probe.windows) == 1
    loop.median_s = 0.0131
    run_steps(probe, 1000)
    assert [window.reason.split(" from")[0] for window in probe.windows][1:] == ["the median step changed"]


def test_auto_opens_no_other_when_the_step_changes_for_a_moment_only(made):
    loop = FakeLoop()
    probe = made(loop)
    run_steps(probe, 500)
    run_steps(probe, 4000)  # from here on medians are checked every 512 steps
    for _ in range(5):
        loop.median_s = 0.02
        run_steps(probe, 512)
        loop.median_s = 0.01
        run_steps(probe, 512)
    assert len(probe.windows) == 1


def test_auto_opens_no_other_when_too_little_time_has_passed(made, monkeypatch):
    monkeypatch.setattr(FakeRecording, "cost_s", 0.5)
    loop = FakeLoop()  # promises to run for days
    probe = made(loop)
    run_steps(probe, 500)
    loop.median_s, loop.passed_s = 0.02, 90.0
    run_steps(probe, 1500)
    assert len(probe.windows) == 1
    loop.passed_s = 110.0  # a hundredth of it pays for two windows of half a second, and for reading them
    run_steps(probe, 1500)
    assert len(probe.windows) == 2


def test_auto_stops_when_it_has_opened_enough(made):
    loop = FakeLoop()
    probe = made(loop)
    for i in range(10):
        loop.median_s = 0.01 * 2**i
        run_steps(probe, 1500)  # medians are checked every 512 steps at most
    assert len(probe.windows) == 4


def test_unrequested_file_is_kept_only_when_it_has_data(made):
    assert _only(made(FakeLoop(), is_worth=False)).file is None
    assert _only(made(FakeLoop(), is_worth=True)).file is not None
    assert _only(made(FakeLoop(), is_worth=False, wait=1)).file is not None


def test_requested_file_is_kept_when_it_led_to_no_finding(made):
    probe = made(FakeLoop(wall_s=0.0), is_worth=False)
    ask(probe)
    assert _only(probe).file is not None


def _only(probe: WindowProbe) -> Any:
    run_steps(probe, 500)
    (window,) = probe.windows
    return window


def test_window_opens_when_the_request_file_appears(made, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(window_module.time, "monotonic", lambda: now[0])
    probe = made(FakeLoop(wall_s=0.0))
    run_steps(probe, 200)
    (tmp_path / REQUEST_FILE).touch()
    run_steps(probe, 200)
    assert probe.windows == []  # checked not at every step, and at most every two seconds
    now[0] = 3.0
    run_steps(probe, 200)
    assert [window.reason for window in probe.windows] == [f"{REQUEST_FILE} was found"]
    assert not (tmp_path / REQUEST_FILE).exists()


def test_request_is_kept_when_a_window_is_open(made):
    probe = made(FakeLoop(), wait=2, warmup=1, active=2, repeat=1)
    run_steps(probe, 4)
    ask(probe)
    run_steps(probe, 20)
    assert [window.reason for window in probe.windows] == ["by schedule", "requested"]


def test_nothing_opens_when_the_run_is_over(made):
    probe = made(FakeLoop())
    probe.close()
    ask(probe)
    run_steps(probe, 10)
    assert probe.windows == []


def test_device_window_is_empty_when_no_device_work_was_seen(made):
    probe = made(FakeLoop(), wait=1)
    probe._device = SimpleNamespace(type="cuda")
    run_steps(probe, 20)
    assert [window.status for window in probe.windows] == ["empty"]


class FailingRecording(FakeRecording):
    """A window whose profiler raises at the step ``fails_at``, counted from 1."""

    fails_at = 0
    n_abandoned = 0

    def step(self) -> bool:
        is_complete = super().step()
        if self.n_done == type(self).fails_at:
            raise RuntimeError("CUPTI_ERROR")
        return is_complete

    def abandon(self) -> None:
        type(self).n_abandoned += 1


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_window_fails_once_and_is_left_when_its_profiler_raises_in_a_step(made, monkeypatch, fails_at):
    monkeypatch.setattr(window_module, "Recording", FailingRecording)
    monkeypatch.setattr(FailingRecording, "fails_at", fails_at)
    monkeypatch.setattr(FailingRecording, "n_abandoned", 0)
    loop = FakeLoop()
    probe = made(loop, wait=2, warmup=1, active=2, repeat=0)
    run_steps(probe, 30)
    probe.close()
    ((status, n_steps, reason),) = [(window.status, window.n_steps, window.reason) for window in probe.windows]
    assert (status, n_steps) == ("failed", 0)
    assert "RuntimeError: CUPTI_ERROR" in reason
    assert (loop.depth, FailingRecording.n_abandoned) == (0, 1)


def test_window_fails_and_is_left_when_the_last_step_raises_at_the_end_of_the_run(made, monkeypatch):
    monkeypatch.setattr(window_module, "Recording", FailingRecording)
    monkeypatch.setattr(FailingRecording, "fails_at", 3)
    monkeypatch.setattr(FailingRecording, "n_abandoned", 0)
    loop = FakeLoop()
    probe = made(loop, wait=2, warmup=1, active=2)
    run_steps(probe, 5)
    probe.close()
    probe.close()
    assert [window.status for window in probe.windows] == ["failed"]
    assert (loop.depth, FailingRecording.n_abandoned) == (0, 1)


def test_training_goes_on_measured_when_the_profiler_raises(fit, tmp_path, monkeypatch):
    def broken(profile: Any) -> None:
        raise RuntimeError("CUPTI_ERROR")

    monkeypatch.setattr(torch.profiler.profile, "step", broken)
    session = fit(doctor(tmp_path, (5, 1, 2, 1)), 30)
    assert [window.status for window in session.windows] == ["failed"]
    assert session.probes_off == ()
    assert session.steady is not None
    assert active_profiler() is None


def test_nsys_window_is_refused_at_its_opening_when_there_is_no_cuda(fit, tmp_path):
    session = fit(doctor(tmp_path, (5, 1, 2, 0), emit="nsys"), 80)
    assert [window.status for window in session.windows] == ["failed"]
    assert "needs a CUDA device, this run is on cpu" in session.windows[0].reason
    assert session.probes_off == ()
    assert session.steady is not None
    assert session.steady.n_steps >= 15  # the rest is warm-up or sampled


def test_nsys_gets_exactly_the_active_steps_when_it_captures(monkeypatch, tmp_path):
    calls: list[str] = []
    runtime = SimpleNamespace(
        cudaProfilerStart=lambda: calls.append("start"), cudaProfilerStop=lambda: calls.append("stop")
    )
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda.nvtx, "mark", lambda name: None)
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    loop = FakeLoop()
    options = WindowOptions(wait=3, warmup=2, active=2, emit="nsys")
    probe = window_probe(loop, tmp_path, options, device="cuda")
    for _ in range(12):
        calls.append("step")
        one_step(probe)
    begin, end = calls.index("start"), calls.index("stop")
    assert calls[:begin].count("step") == 6  # the sixth call opens the range before the first active step runs
    assert calls[begin:end].count("step") == 2
    (window,) = probe.windows
    assert (window.status, window.first_step, window.file) == ("recorded", 5, None)
    assert loop.depth == 0


@pytest.mark.parametrize(("ranks", "is_open"), [("all", True), ((0,), True), ((1, 2), False)])
def test_rank_records_when_it_was_chosen(fit, tmp_path, ranks, is_open):
    session = fit(doctor(tmp_path, (2, 1, 2, 1), ranks=ranks), 8)
    assert bool(session.windows) == is_open


@pytest.mark.parametrize(
    ("profiler", "expected"),
    [
        ({"wait": 3}, "expected a dict with some of"),
        ({"ranks": -1}, 'expected "all" or a list of at least one rank'),
        ({"ranks": []}, 'expected "all" or a list of at least one rank'),
        ({"stages": []}, "expected a list of at least one of fit, validate"),
        ({"stages": [["fit"]]}, "expected a list of at least one of fit, validate"),
        ({"stages": ["fit", "train"]}, "expected a list of at least one of fit, validate"),
        ({"emit": "x"}, "expected"),
        ({"emit": ["nsys"]}, "expected"),
        ({"with_stack": 1}, "expected True or False"),
        ({"export_stacks": True}, "expected 'with_stack': True beside it"),
        ([], "expected a dict"),
        ({"max_events": 0}, "expected a whole number above 0"),
    ],
)
def test_options_are_refused_when_they_are_not_known(profiler, expected):
    with pytest.raises(ConfigError, match=expected):
        PerfDoctor(profiler=profiler)


# -- validation within a window ------------------------------------------------------------


def run_with_validation(probe: WindowProbe, n: int, every: int) -> None:
    for number in range(1, n + 1):
        one_step(probe)
        if number % every == 0:
            probe.validation_begins()
            probe._loop.main.next_step = 0


def test_window_is_opened_once_more_when_validation_cut_it_off(made):
    loop = FakeLoop()
    probe = made(loop, wait=7, warmup=1, active=4, repeat=1)
    run_with_validation(probe, 40, every=10)
    assert [(window.status, window.first_step) for window in probe.windows] == [("incomplete", 8), ("recorded", 11)]
    assert "validation began inside the window" in probe.windows[0].reason
    assert loop.depth == 0


def test_window_is_complete_when_validation_follows_its_last_step(made):
    probe = made(FakeLoop(), wait=5, warmup=1, active=4, repeat=1)
    run_with_validation(probe, 40, every=10)
    assert [(window.status, window.first_step) for window in probe.windows] == [("recorded", 6)]


def test_window_is_tried_only_twice_when_there_is_no_room_between_validations(made):
    probe = made(FakeLoop(), wait=2, warmup=1, active=4, repeat=2)
    run_with_validation(probe, 60, every=3)
    assert [window.status for window in probe.windows] == ["incomplete"] * 4


def test_auto_window_is_opened_once_more_when_validation_cut_it_off(made):
    probe = made(FakeLoop())
    run_with_validation(probe, 2000, every=62)
    assert [window.status for window in probe.windows] == ["incomplete", "recorded"]


def test_window_of_a_changed_step_is_opened_once_more_when_validation_cut_it_off(made):
    loop = FakeLoop()
    probe = made(loop)
    run_steps(probe, 500)
    loop.median_s = 0.02
    while probe._recording is None and loop.main.n_steps < 5000:
        one_step(probe)
    probe.validation_begins()
    loop.main.next_step = 0
    run_steps(probe, 600)
    assert [window.status for window in probe.windows] == ["recorded", "incomplete", "recorded"]
    assert "the median step changed" in probe.windows[2].reason


@pytest.mark.parametrize("options", [{"wait": 1000, "warmup": 1, "active": 4, "repeat": 1}, {}], ids=["plan", "auto"])
def test_window_asked_for_is_opened_once_more_when_validation_cut_it_off(made, options):
    probe = made(FakeLoop(wall_s=0.0), **options)
    run_with_validation(probe, 8, every=10)
    ask(probe)
    run_with_validation(probe, 1, every=1)
    run_with_validation(probe, 20, every=100)
    assert [window.status for window in probe.windows] == ["incomplete", "recorded"]


def test_no_validation_is_recorded_when_one_falls_into_a_window(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = Trainer(
        accelerator="cpu", devices=1, max_epochs=2, limit_train_batches=10, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[watching := doctor(tmp_path, (7, 1, 4, 1))],
    )  # fmt: skip
    trainer.fit(Tiny(), data(), data(8))
    assert watching.session is not None
    assert [window.status for window in watching.session.windows] == ["incomplete", "recorded"]
    trace = watching.session.windows[1].trace
    assert trace is not None
    assert len(trace.steps) == 4
    assert watching.session.validation is not None


def test_traces_of_early_windows_are_released(made, monkeypatch):
    monkeypatch.setattr(window_module, "_MAX_TRACES", 3)
    probe = made(FakeLoop(), wait=2, warmup=0, active=1, repeat=0)
    run_steps(probe, 40)
    assert len(probe.windows) > 8
    assert [window.trace is not None for window in probe.windows] == [False] * (len(probe.windows) - 3) + [True] * 3


def test_traces_of_early_windows_are_released_when_validation_ends_some(made, monkeypatch):
    monkeypatch.setattr(window_module, "_MAX_TRACES", 3)
    probe = made(FakeLoop(), wait=2, warmup=0, active=2, repeat=0)
    for every in (100, 7, 100, 5, 100, 9, 100):
        run_with_validation(probe, 20, every)
    assert {window.status for window in probe.windows} == {"recorded", "incomplete"}
    assert not any(window.trace is not None for window in probe.windows[:-3])


def test_a_profiler_counts_as_started_when_objects_are_frozen_and_it_cannot_be_found():
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule) as own:
        own.step()  # warms up
        gc.freeze()
        try:
            assert is_profiler_started()
        finally:
            gc.unfreeze()
    assert not is_profiler_started()
