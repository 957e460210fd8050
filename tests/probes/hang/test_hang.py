"""The hang watch, on a clock and stacks that the test makes."""

from __future__ import annotations

import gc
import linecache
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from lightning_perf.probes.hang import watch, workers
from lightning_perf.probes.hang.watch import SLOW_FACTOR, HangWatch, RankFiles
from lightning_perf.probes.timeline.loop import LoopTimer
from lightning_perf.probes.timeline.spans import OWN
from lightning_perf.records import Hang, RankState, files
from lightning_perf.reports.sections.hang import hang_text
from tests.probes.host_lines.test_host_lines import as_lightning, current

AFTER_S = 60.0
POLL_S = AFTER_S / 12


def stack(*called: tuple[str, str]) -> FrameType:
    """The innermost frame of a training step that calls functions of these names, each ``(module, function)``."""
    call: Any = current
    for module, function in reversed(called):
        names = {"__name__": module, "call": call}
        exec(compile(f"def {function}():\n    return call()\n", f"/site-packages/{module}.py", "exec"), names)
        call = names[function]

    def training_step() -> Any:
        return call()

    def run() -> Any:
        return training_step()

    return as_lightning(run)()


class Run:
    """A training on a clock; time passes in polls of the watch."""

    def __init__(self, files: RankFiles | None = None) -> None:
        self.now_s = 0.0
        self.n_moves = 0
        self.shown: list[tuple[Hang, str]] = []
        self.frame: FrameType | None = stack()
        self.others: dict[int, FrameType] = {}
        self.median_ns: float | None = 1e8
        self.timeline = SimpleNamespace(
            current=SimpleNamespace(phase=2), phase=lambda: self.phase, phase_ns=[], last_ns=0, phase_listener=None
        )
        self.phase = "forward"
        self.loop: Any = SimpleNamespace(
            main=SimpleNamespace(n_steps=10, recent_median_ns=lambda: self.median_ns),
            validation=SimpleNamespace(n_steps=0, phase_ns=[1]),
            timeline=self.timeline,
            current_phase=lambda: LoopTimer.current_phase(self.loop),
            is_profiling=False,
            stage="fit",
        )
        run: Any = SimpleNamespace(loop=self.loop, show_hang=self.show)
        self.watch = HangWatch(run, AFTER_S, files, lambda: self.now_s, self.frames)

    def frames(self) -> dict[int, FrameType]:
        own = {} if self.frame is None else {threading.get_ident(): self.frame}
        return {**own, **self.others}

    def show(self, hang: Hang, stacks: str) -> Hang:
        self.shown.append((hang, stacks))
        return hang

    def stays(self, seconds: float) -> None:
        """Let time pass in which nothing moves."""
        for _ in range(round(seconds / POLL_S)):
            self.now_s += POLL_S
            self.watch.poll()

    def moves(self) -> None:
        """End a step."""
        self.loop.main.n_steps += 1
        self.timeline.last_ns += 1
        self.stays(POLL_S)


@pytest.fixture
def run() -> Run:
    made = Run()
    made.moves()
    return made


def test_hang_is_reported_once_when_nothing_moves(run: Run) -> None:
    run.stays(AFTER_S - POLL_S)
    assert run.shown == []
    run.stays(3600)
    ((hang, stacks),) = run.shown
    assert (hang.phase, hang.n_steps, hang.quiet_s, hang.median_step_s) == ("forward", 11, AFTER_S, 0.1)
    assert hang.where.endswith(" in training_step")
    assert hang.code == "return call()"
    assert "in training_step" in stacks.partition("Thread")[2]
    assert run.watch.record() == (hang,)


def test_hang_has_its_length_when_the_training_moves_again(run: Run) -> None:
    run.stays(90)
    run.moves()
    assert [hang.lasted_s for hang in run.watch.record()] == [90.0]


def test_hang_has_its_length_when_the_run_ends_before_the_next_check(run: Run) -> None:
    run.stays(90)
    run.watch.run_ends(None)
    assert [hang.lasted_s for hang in run.watch.record()] == [90.0]


def test_same_place_is_not_reported_again_when_it_hangs_again(run: Run) -> None:
    run.stays(AFTER_S)
    run.moves()
    run.stays(10 * AFTER_S)
    assert len(run.shown) == 1
    assert [hang.quiet_s for hang in run.watch.record()] == [AFTER_S, 2 * AFTER_S]
    run.moves()
    run.phase = "callbacks"
    run.stays(100 * AFTER_S)
    assert [hang.phase for hang, _ in run.shown] == ["forward", "callbacks"]


def test_limit_is_twice_the_longest_pause_when_a_pause_ended(run: Run) -> None:
    run.stays(50)
    run.moves()
    run.stays(95)
    assert run.shown == []
    run.stays(POLL_S)
    assert run.shown[0][0].limit_s == 100.0


@pytest.mark.parametrize(
    ("change", "limit_s"),
    [
        (lambda run: setattr(run, "median_ns", 4e9), 80.0),
        (lambda run: setattr(run, "median_ns", None), 300.0),
        (lambda run: setattr(run.loop, "is_profiling", True), 300.0),
        (lambda run: setattr(run.timeline, "phase_listener", object()), 300.0),
    ],
    ids=["slow steps", "first step", "profiled step", "sampled step"],
)
def test_limit_is_longer_when_steps_are_slow(run: Run, change: Any, limit_s: float) -> None:
    change(run)
    run.stays(limit_s - POLL_S)
    assert run.shown == []
    run.stays(POLL_S)
    assert run.shown[0][0].limit_s == limit_s


KNOWN = {
    "checkpoint": lambda run: setattr(run, "phase", "checkpoint"),
    "PerfDoctor itself": lambda run: setattr(run.timeline.current, "phase", OWN),
    "breakpoint": lambda run: setattr(run, "frame", stack(("pdb", "interaction"), ("cmd", "cmdloop"))),
    "IPython's debugger": lambda run: setattr(run, "frame", stack(("IPython.core.debugger", "interaction"))),
    "debugger of an IDE": lambda run: setattr(run, "frame", stack(("_pydevd_bundle.pydevd_frame", "do_wait_suspend"))),
    "input": lambda run: setattr(run, "frame", asking()),
    "input in a notebook": lambda run: setattr(run, "frame", stack(("ipykernel.kernelbase", "_input_request"))),
    "password": lambda run: setattr(run, "frame", stack(("getpass", "unix_getpass"))),
    "compile": lambda run: setattr(run, "frame", stack(("torch._dynamo.convert_frame", "_compile"))),
    "compile of the backward pass": lambda run: another_thread(run, ("torch._inductor.compile_fx", "compile_fx")),
    "breakpoint in another thread": lambda run: another_thread(run, ("pdb", "interaction")),
    "save": lambda run: setattr(run, "frame", stack(("torch.serialization", "save"))),
}


def asking() -> FrameType:
    """The frame of a training step that waits in ``input()``, here for a lock."""
    source = ["def training_step():\n", "    return input()\n"]
    linecache.cache["/scripts/train.py"] = (1, None, source, "/scripts/train.py")
    lock = threading.Lock()
    names: dict[str, Any] = {"input": lock.acquire, "__name__": "train"}
    exec(compile("".join(source), "/scripts/train.py", "exec"), names)
    lock.acquire()
    thread = threading.Thread(target=as_lightning(lambda: names["training_step"]()), daemon=True)
    thread.start()
    while (frame := sys._current_frames()[thread.ident or 0]).f_code.co_name != "training_step":
        time.sleep(0.001)
    return frame


def another_thread(run: Run, called: tuple[str, str]) -> None:
    thread = threading.Thread(target=time.sleep, args=(0,))
    thread.start()
    thread.join()
    run.others[thread.ident or 0] = stack(called)
    run.other = SimpleNamespace(ident=thread.ident, name="another")  # type: ignore[attr-defined]


def is_in_validation(run: Run) -> None:
    run.timeline.phase_ns = run.loop.validation.phase_ns  # also in the sanity check


def is_only_validated(run: Run) -> None:
    run.loop.stage = "validate"


@pytest.mark.parametrize("change", [is_in_validation, is_only_validated])
def test_hang_outside_of_training_is_reported_after_five_times_the_limit(run: Run, change: Any) -> None:
    change(run)
    run.stays(SLOW_FACTOR * AFTER_S - POLL_S)
    assert run.shown == []
    run.stays(POLL_S)
    ((hang, _),) = run.shown
    assert hang.limit_s == SLOW_FACTOR * AFTER_S


@pytest.mark.parametrize("change", [is_in_validation, is_only_validated])
def test_evaluation_on_several_ranks_is_not_reported(tmp_path: Path, change: Any) -> None:
    run = Run(RankFiles(tmp_path, 0, 2))
    change(run)
    run.stays(20 * AFTER_S)
    assert run.shown == []


@pytest.mark.parametrize("change", KNOWN.values(), ids=KNOWN)
def test_nothing_is_reported_when_a_pause_is_expected(run: Run, change: Any, monkeypatch: Any) -> None:
    change(run)
    if run.others:
        known = threading.enumerate()
        monkeypatch.setattr(threading, "enumerate", lambda: [*known, run.other])  # type: ignore[attr-defined]
    run.stays(20 * AFTER_S)
    assert run.shown == []
    run.phase, run.frame, run.others = "callbacks", stack(), {}
    run.timeline.phase_ns, run.timeline.current.phase = [], 2
    run.moves()
    run.stays(AFTER_S)
    assert len(run.shown) == 1


def test_nothing_is_reported_when_the_process_or_machine_was_suspended(run: Run) -> None:
    run.stays(AFTER_S / 2)
    run.now_s += 24 * 3600
    run.watch.poll()
    run.stays(AFTER_S / 2 - 3 * POLL_S)
    assert run.shown == []
    run.stays(2 * POLL_S)
    assert len(run.shown) == 1


def test_watch_ends_when_the_training_thread_has_left_lightning(run: Run) -> None:
    run.frame = current()
    run.stays(AFTER_S)
    assert run.shown == []
    assert run.watch._background.stopping.is_set()


def test_hang_did_not_end_when_an_error_ended_the_run(run: Run) -> None:
    run.stays(90)
    run.timeline.last_ns += 1  # the phase is left as the error passes through
    run.stays(POLL_S)
    run.watch.run_ends(KeyboardInterrupt())
    assert [(hang.lasted_s, hang.quiet_s) for hang in run.watch.record()] == [(None, 90.0)]


def test_thread_ends_when_nothing_references_its_watch() -> None:
    made = Run()
    made.watch.poll_s = 0.01
    made.watch.start()
    thread = made.watch._background.thread
    assert thread is not None
    file = made.watch._workers._file
    del made
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()
    assert file is None or not _is_open(file)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="workers write their stacks on Linux only")
def test_file_stays_open_when_the_run_of_another_thread_begins_and_ends() -> None:
    first, second = workers.Workers(), workers.Workers()
    first.open()
    second.open()
    files = [first._file, second._file]
    assert None not in files
    assert all(map(_is_open, files))
    second.close()
    assert [_is_open(file) for file in files] == [True, False]
    first.close()
    first.close()
    assert not any(map(_is_open, files))
    assert workers._output is None


def _is_open(file: Any) -> bool:
    try:
        return "lightning-perf stacks" in os.readlink(f"/proc/self/fd/{file}")
    except OSError:
        return False


# -- ranks ------------------------------------------------------------------------------------------------------------


def test_ranks_are_listed_with_their_lines_when_they_exchange_files(tmp_path: Path) -> None:
    others = RankFiles(tmp_path, 1, 3)
    others.write(9, "callbacks", where="train.py:3 in save")
    run = Run(RankFiles(tmp_path, 0, 3))
    run.moves()
    run.stays(AFTER_S)
    ((hang, _),) = run.shown
    assert [(one.rank, one.n_steps, one.phase) for one in hang.ranks] == [(0, 11, "forward"), (1, 9, "callbacks")]
    assert hang.ranks[0].where.endswith("in training_step")
    assert "rank 1   callbacks after 9 steps at train.py:3 in save" in hang_text(hang)
    run.watch.close()
    others.remove()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_reported_when_another_rank_is_at_a_breakpoint(tmp_path: Path) -> None:
    other = RankFiles(tmp_path, 1, 2)
    other.write(9, "forward", busy="a debugger")
    run = Run(RankFiles(tmp_path, 0, 2))
    run.moves()
    run.stays(10 * AFTER_S)
    assert run.shown == []
    other.write(9, "forward")
    run.stays(POLL_S)
    assert len(run.shown) == 1


def test_rank_writes_no_file_when_the_disk_is_almost_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_free_bytes", lambda folder: files.RESERVE_BYTES - 1)
    RankFiles(tmp_path, 0, 2).write(9, "forward")
    assert list(tmp_path.iterdir()) == []


def test_rank_counts_as_unknown_when_its_file_is_incomplete(tmp_path: Path) -> None:
    (tmp_path / "hang_watch").mkdir()
    (tmp_path / "hang_watch" / "rank1.json").write_text('{"rank": 1')
    assert RankFiles(tmp_path, 0, 2).read() == ()


def test_rank_is_read_again_when_it_was_writing_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = RankFiles(tmp_path, 1, 2)
    other.write(9, "forward")
    (tmp_path / "hang_watch" / "rank1.json").write_bytes(b"")
    monkeypatch.setattr(watch.time, "sleep", lambda _: other.write(10, "forward"))
    assert [one.n_steps for one in RankFiles(tmp_path, 0, 2).read()] == [10]


# -- the block on the screen ------------------------------------------------------------------------------------------


def test_ranks_at_other_places_are_shown_when_there_are_many() -> None:
    ranks = [RankState(rank=rank, n_steps=9 + (rank != 70), phase="backward") for rank in range(100)]
    text = hang_text(Hang(n_steps=10, phase="backward", quiet_s=61, limit_s=60, ranks=tuple(ranks)))
    assert "rank 70  backward after 9 steps" in text
    assert text.count("  rank ") == 8


def test_worker_line_is_the_innermost_one_of_the_user() -> None:
    text = (
        f'Current thread 0x1 (most recent call first):\n  File "{threading.__file__}", line 5 in wait\n'
        f'  File "{__file__}", line 7 in __getitem__\n  File "/site-packages/torch/worker.py", line 9 in _worker_loop\n'
        f'  File "{__file__}", line 1 in <module>\n'
    )
    assert workers._users_line(text).endswith("test_hang.py:7 in __getitem__")
    assert workers._users_line(text.partition("__getitem__\n")[2]) == ""


def test_time_outside_of_a_users_loop_is_no_hang(run: Run) -> None:
    run.watch.loops.add((lambda: None).__code__)
    run.frame = current()  # not within Lightning, nor within a loop: a notebook that waits for its next cell
    run.stays(10 * AFTER_S)
    run.frame, run.phase = stack(), "epoch_boundary"  # between two loops
    run.stays(10 * AFTER_S)
    assert run.shown == []
    run.moves()
    run.phase = "forward"
    run.stays(2 * AFTER_S)
    assert len(run.shown) == 1
