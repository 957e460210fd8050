"""The sampler of the training thread's stack, on frames and clocks that the test makes."""

from __future__ import annotations

import abc
import dis
import gc
import json
import os
import sys
import threading
import time
from itertools import count
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
import torchmetrics

from lightning_perf.probes import atomic_reads
from lightning_perf.probes.host_lines import calls, sampler, stacks
from lightning_perf.probes.host_lines.calls import OwnCode, _module_of
from lightning_perf.probes.host_lines.profile import PhaseSamples, ProfileBuilder
from lightning_perf.probes.host_lines.sampler import LineSampler
from lightning_perf.probes.host_lines.stacks import Stack, StackReader, frames_of
from lightning_perf.probes.telemetry.pauses import GarbagePauses
from lightning_perf.probes.timeline.loop import LoopTimer
from lightning_perf.records import HostPhase
from tests.fakes import FakeClock

LIGHTNING_FILE = os.path.abspath(__import__("lightning").pytorch.__file__)


def as_lightning(function: Any) -> Any:
    """The function, as if it was defined in Lightning."""
    code = function.__code__.replace(co_filename=LIGHTNING_FILE)
    return type(function)(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)


def run_by_lightning(function: Any, *args: Any) -> Any:
    return function(*args)


run_by_lightning = as_lightning(run_by_lightning)


def current() -> FrameType:
    return sys._getframe(1)


def helper() -> FrameType:
    return current()


def training_step() -> FrameType:
    return helper()


def stack_of(frame: FrameType, reader: StackReader | None = None) -> Stack | None:
    return (reader or StackReader()).read(frames_of(1, lambda: {1: frame}))


def lines(frame: FrameType) -> list[str]:
    stack = stack_of(frame)
    return [code.co_name for code, _, _ in stack.lines]


def test_reader_keeps_the_users_frames_below_lightning_when_a_script_calls_it():
    assert lines(run_by_lightning(training_step)) == ["training_step", "helper"]


def test_lines_are_those_of_the_frames():
    def called():
        first = [current()]
        return first[0]

    frame = run_by_lightning(called)
    stack = stack_of(frame)
    assert [line for _, _, line in stack.lines] == [frame.f_lineno] == [called.__code__.co_firstlineno + 2]


def test_line_is_the_functions_when_code_has_no_lines():
    code = training_step.__code__.replace(co_linetable=b"")
    assert calls.line_of(code, 2) == code.co_firstlineno


def test_reader_forgets_code_when_there_is_too_much_of_it(monkeypatch):
    monkeypatch.setattr(stacks, "_MAX_CODES", 3)
    frame, reader = run_by_lightning(training_step), StackReader()
    assert stack_of(frame, reader) == stack_of(frame, reader) == stack_of(frame)
    assert len(reader._known) <= 3


def test_line_is_the_condition_when_the_jump_at_the_end_of_a_loop_has_none():
    def smallest(rows):
        best = None
        for row in rows:
            for value in row:
                if best is None or value < best:
                    best = value
        return best

    code = smallest.__code__
    first = code.co_firstlineno
    without_line = [begin for begin, _, line in code.co_lines() if line is None]
    assert {calls.line_of(code, offset) - first for offset in without_line} <= {3, 4}
    assert calls.line_of(code, len(code.co_code) - 2) == first + 6


def test_reader_returns_none_when_lightning_is_not_on_the_stack():
    assert stack_of(training_step()) is None


def test_reader_names_the_library_function_when_a_line_calls_one():
    seen: list[Any] = []
    reader = StackReader()

    class Watching(json.JSONDecoder):
        def decode(self, *_: Any) -> None:
            # as if json's own code ran: what this test's frame would add is left out
            seen.append(stack_of(sys._getframe(1), reader))

    def parse() -> Any:
        return json.loads("{}", cls=Watching)

    run_by_lightning(parse)
    (stack,) = seen
    assert [code.co_name for code, _, _ in stack.lines] == ["parse"]
    assert (stack.leaf, calls.library_call(stack.below, reader.modules[stack.below])) == ("other", "json.loads")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code has no qualified name")
def test_metrics_are_named_by_the_method_that_is_called():
    metric = torchmetrics.SumMetric()
    codes = [getattr(metric, name).__code__ for name in ("update", "compute")]
    names = [calls.library_call(code, "torchmetrics.metric") for code in codes]
    assert names == ["torchmetrics.Metric.update", "torchmetrics.Metric.compute"]


LIBRARY = """
import torch

def decorated(function):
    def wrapper(*args):
        return function(*args)
    return wrapper

class Layer(torch.nn.Module):
    @decorated
    def forward(self, function):
        return function()

@torch.no_grad()
def update(function):
    return function()
"""


@pytest.mark.parametrize(("called", "name"), [("Layer()", "forward"), ("update", "update")])
def test_reader_names_the_function_when_a_library_decorates_it(called, name):
    names = {"__name__": "library"}
    exec(compile(LIBRARY, json.__file__, "exec"), names)
    function = eval(called, names)
    stack = stack_of(run_by_lightning(lambda: function(current)))
    assert (len(stack.lines), stack.below.co_name) == (1, name)


def planted(folder: Path, source: str, **names: Any) -> dict[str, Any]:
    """Run source code from a file, where its lines can be read; return its global names."""
    file = folder / "planted.py"
    file.write_text(source)
    exec(compile(source, str(file), "exec"), names)
    return names


def test_library_line_is_an_operator_when_it_calls_one_of_torch(tmp_path):
    names = planted(tmp_path, "import torch\n\ndef activate(x):\n    return torch.relu(x)\n", __name__="library")
    activate = names["activate"].__code__
    calls_relu = next(i.offset for i in dis.get_instructions(activate) if "CALL" in i.opname and i.opname != "PRECALL")
    mine = training_step.__code__
    stack = stacks.Stack(((mine, -1, 10),), activate, "other", (activate, calls_relu, 4))
    reader = StackReader()
    reader.globals_of[activate] = names
    phase = PhaseSamples()
    phase.add(stack, 1e6, 0.0, 0.0, 1)
    assert profiled(phase, reader).operator_fraction == 1.0


@pytest.mark.parametrize("imports", ["import torch", "import json"])
def test_reader_keeps_the_librarys_frame_when_it_may_call_operators(imports, monkeypatch):
    names = {"__name__": "library", "current": current}
    exec(compile(f"{imports}\ndef run():\n    return current()\n", json.__file__, "exec"), names)
    monkeypatch.setitem(globals(), "helper", names["run"])
    frame = run_by_lightning(training_step)
    stack = StackReader().read(list(frames_of(1, lambda: {1: frame})))
    assert (stack.leaf, stack.inner is not None) == ("other", imports == "import torch")


@pytest.mark.parametrize("file", ["<string>", ""])
def test_reader_reads_generated_code_as_its_modules_when_it_has_no_file(file):
    source = "def made():\n    return current()\n"
    theirs = {"current": current, "__file__": LIGHTNING_FILE, "__name__": "lightning.pytorch"}
    exec(compile(source, file, "exec"), theirs)
    assert lines(run_by_lightning(theirs["made"])) == []


def test_method_that_a_library_compiled_is_charged_to_the_line_that_calls_it(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    proxy: dict[str, Any] = {"current": current}
    exec("def get():\n    return current()\n", proxy)  # as multiprocessing's for the methods of a manager's list
    monkeypatch.setitem(globals(), "helper", proxy["get"])
    assert lines(run_by_lightning(training_step)) == ["training_step"]


def first() -> None:
    sum(range(20))


def second() -> None:
    sum(range(20))


def alternate(stop: threading.Event) -> None:
    while not stop.is_set():
        first()
        second()


def test_nothing_is_collected_while_frames_are_read_when_that_is_not_safe(monkeypatch):
    monkeypatch.setattr(atomic_reads, "_COLLECTS_IN_CALLS", True)
    enabled: list[bool] = []

    def current_frames() -> dict[int, FrameType]:
        enabled.append(gc.isenabled())
        if len(enabled) == 2:
            raise RuntimeError("planted")
        return {1: sys._getframe()}

    assert frames_of(1, current_frames)[0][0].co_name == "current_frames"
    assert gc.isenabled()
    with pytest.raises(RuntimeError):
        frames_of(1, current_frames)
    assert gc.isenabled()
    gc.disable()
    try:
        frames_of(1, current_frames)
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert enabled == [False, False, False]


def test_stack_is_of_one_moment_when_its_thread_runs_on():
    stop = threading.Event()
    thread = threading.Thread(target=run_by_lightning, args=(alternate, stop))
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    reader = StackReader()
    seen: set[tuple[str, int]] = set()
    try:
        thread.start()
        n, until = 0, time.monotonic() + 60  # until both were seen, however rarely this thread runs
        while (n := n + 1) < 3000 or (len(seen) < 2 and time.monotonic() < until):
            stack = reader.read(frames_of(thread.ident or 0, sys._current_frames))
            if stack is not None and len(stack.lines) == 2:
                (_, _, line), (called, _, _) = stack.lines
                seen.add((called.co_name, line - alternate.__code__.co_firstlineno))
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(usual_s)
    assert seen == {("first", 2), ("second", 3)}


def own_code_of_caller() -> OwnCode:
    frame = sys._getframe(2)
    return OwnCode(frame.f_code, frame.f_lasti, frame.f_lineno, frame.f_globals)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="instructions have no columns before Python 3.11")
@pytest.mark.parametrize(
    ("source", "names", "call", "is_operator"),
    [
        ("module.probe()", {"module": json}, "module.probe", False),
        ("module.probe()", {"module": torch}, "module.probe", True),
        ("module.tensor()", {"module": torch}, "module.tensor", None),  # of a tensor, or of Python's lists
        ("table.probe()", {"table": torch.zeros(1)}, "table.probe", True),
        ("pattern.probe()", {"pattern": SimpleNamespace()}, "pattern.probe", False),
        ("self.items.probe()", {}, "items.probe", False),  # tensors have no such method
        ("self.items.split()", {}, "items.split", None),  # tensors and strings have it
    ],
)
def test_own_code_names_the_call_when_a_line_makes_one(source, names, call, is_operator, tmp_path, monkeypatch):
    seen: list[OwnCode] = []

    def probe() -> None:
        seen.append(own_code_of_caller())

    for module in names.values():
        monkeypatch.setattr(module, call.rpartition(".")[2], probe, raising=False)
    space = planted(tmp_path, f"def run(self):\n    x = 1; {source}\n", **names)
    space["run"](SimpleNamespace(items=SimpleNamespace(probe=probe, split=probe)))
    assert (seen[0].call, seen[0].is_operator) == (call, is_operator)


def test_timing_decides_whether_a_number_is_a_tensors_when_it_is_converted(tmp_path):
    class Text:
        def __float__(self) -> float:
            seen.append(own_code_of_caller())
            return 0.0

    seen: list[OwnCode] = []
    planted(tmp_path, "def run(row):\n    return [float(text) for text in row]\n")["run"]([Text()])
    assert (seen[0].call, seen[0].is_operator) == ("float", None)


def test_own_code_runs_nothing_of_a_global_object_when_that_computes_its_class(tmp_path):
    class Proxy:
        @property
        def __class__(self) -> type:  # type: ignore[override]
            raise RuntimeError("the proxy refers to nothing")

        def __call__(self) -> OwnCode:
            return own_code_of_caller()

    own = planted(tmp_path, "def run():\n    return proxy()\n", proxy=Proxy())["run"]()
    assert (own.call, own.is_operator) == ("proxy", False)


@pytest.mark.parametrize(
    ("text", "name"),
    [("a.b(c(d))", "a.b"), ("sorted(x)", "sorted"), ("x[0].sort()", ".sort"), ("if ready(x):", "ready")],
)
def test_outermost_call_is_named_when_calls_are_nested(text, name):
    call = next(node for node in calls._nodes(text) if type(node).__name__ == "Call")
    assert calls._dotted(call.func) == name


def test_file_is_relative_when_it_is_below_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert calls.shown_file(str(tmp_path / "model.py")) == "model.py"
    assert calls.shown_file(json.__file__) == "json/__init__.py"


# -- adding up --------------------------------------------------------------------------------------------------------


def samples(*stacks_of: tuple[tuple[tuple[Any, int], ...], float, int]) -> PhaseSamples:
    """Samples of stacks, each as ((function, line), …), milliseconds in all, how many."""
    phase = PhaseSamples()
    for path, ms, n in stacks_of:
        stack = stacks.Stack(tuple((f.__code__, -1, line) for f, line in path), None, "user")
        for _ in range(n):
            phase.add(stack, ms * 1e6 / n, 0.0, 0.0, 1)
    return phase


def profiled(phase: PhaseSamples, reader: StackReader | None = None) -> HostPhase:
    """Return the record of the samples of one phase."""
    return ProfileBuilder(reader or StackReader()).build({"forward": phase}, {}, (0, 9), 0.0, None).phases["forward"]


def found(phase: PhaseSamples) -> list[tuple[str, int, float]]:
    return [(line.function, line.line, round(line.share, 3)) for line in profiled(phase).lines]


def test_line_of_the_function_called_is_named_when_it_holds_the_time():
    phase = samples((((training_step, 10), (helper, 5)), 90, 45), (((training_step, 11),), 10, 5))
    assert found(phase) == [("helper", 5, 0.9), ("training_step", 11, 0.1)]


def test_lines_of_the_hook_itself_are_kept_beside_those_of_functions():
    phase = samples((((training_step, 10), (helper, 5)), 90, 45), (((training_step, 11),), 10, 5))
    outer = profiled(phase).outer_lines
    assert [(line.line, line.call, round(line.share, 3)) for line in outer] == [(10, "helper", 0.9), (11, "", 0.1)]


def test_lines_of_the_hook_with_little_time_are_left_out():
    phase = samples((((training_step, 10),), 995, 50), (((training_step, 11),), 5, 5))
    assert [line.line for line in profiled(phase).outer_lines] == [10]


def test_mean_step_of_a_line_is_weighted_by_time():
    phase = PhaseSamples()
    for line, ms, step in ((10, 1, 0), (10, 3, 100), (11, 4, 10)):
        phase.add(stacks.Stack(((training_step.__code__, -1, line),), None, "user"), ms * 1e6, 0.0, 0.0, step)
    found = profiled(phase)
    assert {line.line: line.mean_step for line in found.lines} == {10: 75.0, 11: 10.0}
    assert {line.line: line.n_steps for line in found.lines} == {10: 2, 11: 1}
    assert (found.mean_step, found.n_steps) == (42.5, 3)


def test_line_is_known_with_the_one_that_calls_its_function_unless_several_do():
    def called_at(*paths):
        return [line.called_at for line in profiled(samples(*paths)).lines]

    site = os.path.basename(__file__)
    assert called_at((((training_step, 10), (helper, 5)), 90, 45)) == [f"{site}:10"]
    assert called_at((((training_step, 10), (helper, 5)), 90, 45), (((training_step, 11), (helper, 5)), 80, 40)) == [""]
    assert called_at((((training_step, 10),), 90, 45)) == [""]


def test_line_comes_with_the_one_around_it_that_takes_much_longer():
    def around(*paths, operators=None):
        phase = samples(*paths)
        for path, ms, n in operators or ():
            stack = stacks.Stack(tuple((f.__code__, -1, line) for f, line in path), None, stacks.OPERATOR)
            for _ in range(n):
                phase.add(stack, ms * 1e6 / n, 0.0, 0.0, 1)
        lines = profiled(phase).lines
        return {line.line: line.within and (line.within.line, round(line.within.share, 3)) for line in lines}

    first, second = (((training_step, 10), (helper, 5)), 30, 15), (((training_step, 10), (helper, 6)), 25, 12)
    rest = (((training_step, 11),), 45, 22)
    assert around(first, second, rest) == {11: None, 5: (10, 0.55), 6: (10, 0.55)}
    assert around((first[0], 40, 20), (second[0], 10, 5), rest)[5] is None  # 50 ms are not 1.5 times as long as 40
    others = [(((training_step, 10), (helper, 7)), 56, 28)]
    assert around(first, (second[0], 25, 12), operators=others)[5] is None  # line 10 runs mostly operators
    model = [(((training_step, 10), (training_step, 3)), 20, 10)]  # line 10 is a shared step, line 4 all else in it
    augmented = tuple((((training_step, 10), (training_step, 4), *path[0][1:]), *path[1:]) for path in (first, second))
    assert around(*augmented, operators=model)[5] == (4, 0.733)
    deeper = (((training_step, 12), (training_step, 10), (helper, 5)), 30, 15)
    assert around(deeper, (((training_step, 12), (training_step, 10), (helper, 6)), 25, 12))[5] == (12, 1.0)


def test_line_of_the_function_called_is_named_when_it_holds_the_time_outside_operators():
    def with_operators(ms, share_of_host):
        host, rest = share_of_host * 100, (1 - share_of_host) * 50
        others = ((((training_step, 10), (helper, line)), rest, 20) for line in (6, 11))
        phase = samples((((training_step, 10), (helper, 5)), host, 50), *others)
        for line in (7, 8, 9):
            stack = stacks.Stack(((training_step.__code__, -1, 10), (helper.__code__, -1, line)), None, stacks.OPERATOR)
            for _ in range(20):
                phase.add(stack, ms * 1e6 / 60, 0.0, 0.0, 1)
        return [(line, name) for name, line, _ in found(phase)]

    assert (5, "helper") in with_operators(200, 0.8)
    assert with_operators(200, 0.4) == [(10, "training_step")]
    assert with_operators(600, 0.8) == [(10, "training_step")]  # of which operators take nearly all


def test_calling_line_is_named_when_the_function_called_has_many_cheap_lines():
    paths = [(((training_step, 10), (helper, line)), 10, 5) for line in range(20, 30)]
    assert found(samples(*paths)) == [("training_step", 10, 1.0)]


def test_lines_share_no_time_when_their_shares_are_added():
    paths = [(((training_step, 10), (helper, line)), ms, 5) for line, ms in ((1, 60), (2, 30), (3, 10))]
    assert sum(share for *_, share in found(samples(*paths))) == pytest.approx(1.0)


def test_effective_samples_are_few_when_one_call_holds_most_of_the_time():
    phase = samples((((helper, 1),), 900, 1), (((training_step, 1),), 100, 50))
    assert profiled(phase).n_samples == 51
    assert profiled(phase).n_effective < 2


def test_memory_is_bounded_when_every_stack_is_another(monkeypatch):
    monkeypatch.setattr("lightning_perf.probes.host_lines.profile.MAX_STACKS", 8)
    phase = samples(*((((training_step, 1), (helper, line)), 1, 1) for line in range(1000)))
    assert len(phase.stacks) <= 9
    assert phase.n == 1000


# -- the thread -------------------------------------------------------------------------------------------------------


class Loop:
    """The part of a run that the sampler reads."""

    current_phase = LoopTimer.current_phase

    def __init__(self) -> None:
        current = SimpleNamespace(phase=2)
        self.main = SimpleNamespace(n_steps=10, is_left_out=False, recent_median_ns=lambda: 1e9)
        self.validation = SimpleNamespace(phase_ns=[0])
        self.is_profiling = False
        self.timeline = SimpleNamespace(
            phase_listener=None, is_frozen=False, current=current, phase_ns=[1], last_ns=0, phase=lambda: "forward"
        )


def run_of() -> Any:
    return SimpleNamespace(loop=Loop(), probes=SimpleNamespace(find=lambda kind: None))


class Clock(FakeClock):
    late_ns = 0

    def sleep(self, seconds: float) -> None:
        self.now += int(seconds * 1e9) + self.late_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def line_sampler(clock: Clock) -> LineSampler:
    frame = run_by_lightning(training_step)
    ident = threading.get_ident()
    return LineSampler(run_of(), now_ns=clock, frames=lambda: {ident: frame}, sleep=clock.sleep)


def test_late_sample_covers_the_bursts_of_its_delay_when_a_call_held_the_gil(line_sampler, clock):
    clock.late_ns = 200_000_000
    line_sampler.burst()
    profile = line_sampler.profile(None)
    assert profile.n_samples == 1
    bursts_share = sampler._BURST_NS / (sampler._BURST_NS + sampler._REST_S * 1e9)
    assert profile.sampled_s == pytest.approx(0.2 * bursts_share + sampler.PAUSE_S, abs=0.03)
    assert profile.phases["forward"].lines[0].function == "helper"


@pytest.mark.parametrize(("held_ms", "other_ms"), [(30, 10), (20, 20), (60, 3), (3, 60)])
def test_share_of_a_call_is_its_time_when_the_call_holds_the_lock_at_wake_ups(held_ms, other_ms, monkeypatch):
    """The clock simulates a thread that alternates between a C call, in which the sampler cannot wake, and a sleep."""
    monkeypatch.setattr(sampler, "MAX_SHARE", 1.0)
    held_ns, period_ns = held_ms * 1_000_000, (held_ms + other_ms) * 1_000_000
    frames, ident = {True: run_by_lightning(training_step), False: run_by_lightning(helper)}, threading.get_ident()

    class Calls(FakeClock):
        def sleep(self, seconds: float) -> None:
            self.now += int(seconds * 1e9)
            self.now += max(0, held_ns - self.now % period_ns)

    clock = Calls()
    own = LineSampler(
        run_of(), now_ns=clock, frames=lambda: {ident: frames[clock.now % period_ns == held_ns]}, sleep=clock.sleep
    )
    for _ in range(1_500):
        clock.sleep(own.burst())
    phase = own._phases["forward"]
    seen_ns = sum(sums.ns for stack, sums in phase.stacks.items() if len(stack.lines) == 2)
    assert seen_ns / phase.ns == pytest.approx(held_ns / period_ns, abs=0.03)


def test_share_of_a_call_is_its_time_when_the_cost_limits_sampling(monkeypatch):
    """A call during which no samples are taken costs nothing: bursts are nevertheless no more frequent in it."""
    monkeypatch.setattr(sampler, "_ENOUGH_SAMPLES", 0)
    monkeypatch.setattr(sampler, "_sharpen_timers", lambda: None)
    held_ns, period_ns, cost_ns = 500_000_000, 10_000_000_000, 40_000
    frames, ident = {True: run_by_lightning(training_step), False: run_by_lightning(helper)}, threading.get_ident()

    class Calls(FakeClock):
        cpu_ns = 0

        def sleep(self, seconds: float) -> None:
            self.cpu_ns += cost_ns
            self.now += int(seconds * 1e9)
            self.now += max(0, held_ns - self.now % period_ns)

    clock = Calls()
    monkeypatch.setattr(sampler, "time", SimpleNamespace(thread_time_ns=lambda: clock.cpu_ns, process_time_ns=clock))
    own = LineSampler(
        run_of(), now_ns=clock, frames=lambda: {ident: frames[clock.now % period_ns == held_ns]}, sleep=clock.sleep
    )
    while clock.now < 2_000_000_000_000:
        clock.sleep(own.burst())
    phase = own._phases["forward"]
    seen_ns = sum(sums.ns for stack, sums in phase.stacks.items() if len(stack.lines) == 2)
    assert seen_ns / phase.ns == pytest.approx(held_ns / period_ns, abs=0.02)
    assert own.cost_ns / clock.now <= sampler._LATER_SHARE


@pytest.mark.parametrize("is_suspended", [True, False])
def test_delay_counts_for_no_line_when_the_process_was_suspended(is_suspended, line_sampler, clock, monkeypatch):
    monkeypatch.setattr(time, "process_time_ns", int if is_suspended else clock)
    clock.sleep(line_sampler.burst())
    clock.advance(3600)
    clock.sleep(line_sampler.burst())
    line_sampler.burst()
    assert (line_sampler.profile(None).sampled_s < 1) is is_suspended


@pytest.mark.parametrize(("before_ms", "in_call_ms", "part"), [(200, 0, 1.0), (0, 200, 0.5)])
def test_collection_is_not_charged_to_a_line_when_it_delays_a_sample(before_ms, in_call_ms, part, clock):
    clock.now = 1  # 0 means that no collection is under way
    pauses, run, ident = GarbagePauses(clock), run_of(), threading.get_ident()
    run.probes.find = lambda kind: pauses
    frame = run_by_lightning(training_step)

    def collect(milliseconds: int) -> None:
        pauses._on_collection("start", {})
        clock.advance(milliseconds / 1e3)
        pauses._on_collection("stop", {})

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        collect(in_call_ms)
        clock.advance(in_call_ms / 1e3)

    own = LineSampler(run, now_ns=clock, frames=lambda: {ident: frame}, sleep=sleep)
    collect(before_ms)
    own.burst()
    (sums,) = own._phases["forward"].stacks.values()
    delays_ns = own._phases["forward"].ns - sums.n * sampler.PAUSE_S * 1e9
    assert sums.gc_ns / delays_ns == pytest.approx(part, abs=0.05)


def test_slow_step_is_separate_when_it_lasts_three_times_the_median(line_sampler, clock):
    line_sampler.burst()
    assert line_sampler.profile(None).slow_steps == {}
    line_sampler._loop.timeline.phase_ns = [3_000_000_000]
    line_sampler.burst()
    profile = line_sampler.profile(None)
    assert profile.slow_steps["forward"].lines[0].function == "helper"
    assert profile.slow_steps["forward"].n_samples < profile.n_samples


def test_step_is_not_sampled_when_perfdoctor_slows_it(line_sampler):
    line_sampler._loop.main.is_left_out = True
    line_sampler.burst()
    assert line_sampler.profile(None) is None


def test_sampling_rests_when_the_step_is_disturbed_before_the_burst(line_sampler, clock):
    clock.sleep(line_sampler.burst())
    line_sampler._loop.main.is_left_out = True
    assert line_sampler.burst() > sampler._REST_S / 2 - sampler._EARLY_S


def test_sampling_rests_longer_when_it_costs_more_than_its_share(line_sampler, monkeypatch):
    monkeypatch.setattr(
        sampler, "time", SimpleNamespace(thread_time_ns=count(0, 5_000_000).__next__, process_time_ns=int)
    )
    line_sampler.burst()
    assert line_sampler.burst() >= 0.5 * 5e-3 / sampler.MAX_SHARE - sampler._EARLY_S


def test_sampling_ends_when_the_stack_shows_that_the_run_is_over(clock):
    ident, frame = threading.get_ident(), training_step()
    own = LineSampler(run_of(), now_ns=clock, frames=lambda: {ident: frame}, sleep=clock.sleep)
    for _ in range(sampler._MAX_BURSTS_OUTSIDE - 1):
        own.burst()
    assert not own._background.stopping.is_set()
    own.burst()
    assert own._background.stopping.is_set()


def test_sampling_ends_when_the_training_thread_is_gone(clock):
    own = LineSampler(run_of(), now_ns=clock, frames=dict, sleep=clock.sleep)
    own.burst()
    assert own._background.stopping.is_set()


def test_thread_ends_when_the_sampler_is_garbage_collected():
    own = LineSampler(run_of())
    own.start()
    thread = own._background.thread
    del own
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()


def test_switch_interval_is_as_before_when_sleeping_raises():
    usual = sys.getswitchinterval()

    def fails(_: float) -> None:
        assert sys.getswitchinterval() == pytest.approx(sampler.SWITCH_S)
        raise OSError

    with pytest.raises(OSError):
        sampler._wait(fails, 1.0)
    assert sys.getswitchinterval() == usual


def test_switch_interval_stays_when_someone_else_set_it_meanwhile():
    usual = sys.getswitchinterval()
    try:
        sampler._wait(lambda _: sys.setswitchinterval(0.02), 1.0)
        assert sys.getswitchinterval() == pytest.approx(0.02)
    finally:
        sys.setswitchinterval(usual)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_switch_interval_is_the_usual_one_when_a_process_is_forked_during_a_burst():
    sampler._register_fork()
    answers: list[int] = []

    def forks(_: float) -> None:
        child = os.fork()
        if child == 0:
            os._exit(round(sys.getswitchinterval() * 1e3))
        answers.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    usual = sys.getswitchinterval()
    sampler._wait(forks, 1.0)
    assert answers == [round(usual * 1e3)]


def test_reason_is_reported_when_the_interpreter_has_no_gil(monkeypatch):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    own = LineSampler(run_of())
    own.start()
    assert own._background.thread is None
    assert "global lock" in own.missing["host_profile"]


# -- the collector ----------------------------------------------------------------------------------------------------


def collects() -> None:
    gc.collect()


def test_garbage_collection_counts_for_the_line_that_calls_it():
    pauses = GarbagePauses(time.perf_counter_ns, phase=lambda: "forward")
    pauses.start()
    try:
        collects()
    finally:
        pauses.close()
    record = pauses.record()
    asked = [one for one in record.asked if one.function == "collects"]
    assert [(one.n, one.phase, one.line) for one in asked] == [(1, "forward", collects.__code__.co_firstlineno + 1)]
    assert pauses.automatic_ns <= pauses.total_ns - round(asked[0].total_s * 1e9) + 1000


def test_automatic_collection_counts_when_its_end_is_not_counted_yet(clock):
    clock.now = 1
    pauses = GarbagePauses(clock)
    pauses._on_collection("start", {"generation": 2})
    clock.now += 300_000_000
    assert pauses.automatic_so_far_ns() == 0.3e9
    pauses._on_collection("stop", {"generation": 2})
    clock.now += 100_000_000
    assert pauses.automatic_so_far_ns() == pauses.automatic_ns == 0.3e9


def test_collection_is_automatic_when_it_is_not_called():
    pauses = GarbagePauses(time.perf_counter_ns, phase=lambda: "backward")
    pauses.start()
    try:
        keep = [[i] for i in range(5000)]
    finally:
        pauses.close()
    record = pauses.record()
    assert keep
    assert record.asked == ()
    assert set(record.automatic_by_phase_s) == {"backward"}


def test_pauses_count_objects_once_when_collections_do_not_go_on(monkeypatch):
    counted = []
    pauses = GarbagePauses(time.perf_counter_ns, counted_s=lambda: 1.0)
    pauses._generations[2] = [1, 10**9, 10**9]
    pauses.total_ns = 10**9
    monkeypatch.setattr(gc, "get_objects", lambda: counted.append(1) or [1, 2])
    assert [pauses.record().n_objects for _ in range(3)] == [2, 2, 2]
    assert len(counted) == 1
    pauses.total_ns = 3 * 10**9
    pauses.record()
    assert len(counted) == 2


def test_thread_is_joined_when_an_interrupt_ended_the_first_attempt(monkeypatch):
    own = LineSampler(run_of())
    own.start()
    thread = own._background.thread

    joined: list[int] = []
    join = thread.join

    def interrupted_once(timeout_s: float) -> None:
        joined.append(1)
        if len(joined) == 1:
            raise KeyboardInterrupt
        join(timeout_s)

    monkeypatch.setattr(thread, "join", interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        own.close()
    own.close()
    assert len(joined) == 2
    assert not thread.is_alive()


def test_module_is_named_without_running_code_of_the_user() -> None:
    class Computes(type):
        @property
        def __module__(cls) -> str:
            raise RuntimeError("computed")

    made = Computes("made", (), {"__module__": "train", "__call__": lambda self: None})
    targets = (torch, torch.nn.functional.relu, abc.ABC, torch.nn.ReLU(), len, 3, made, made())
    modules = ("torch", "torch.nn.functional", "abc", "torch.nn.modules.activation", "builtins", "", "train", "train")
    assert tuple(map(_module_of, targets)) == modules
