"""Lines that make the host wait, and loops over tensors, planted in real trainings on a CPU."""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.data import DataLoader

from lightning_perf import PerfDoctor
from lightning_perf.probes.model import ceilings
from lightning_perf.probes.sampled_steps import probe as sampled_steps
from lightning_perf.records import Session, SyncCall

from .conftest import Make, assert_nothing_left

N_STEPS, BATCH, WIDTH = 16, 64, 8
ROUND_S = 0.001  # of a planted loop, so that it is the step's main cost on a busy machine too
HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def _early_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled_steps, "ROUNDS", (4,))
    monkeypatch.setattr(sampled_steps, "MAX_SHARE", float("inf"))


class Planted(LightningModule):
    """A small network in which one line is planted."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.first, self.act, self.drop, self.last = (
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(True),
            nn.Dropout(),
            nn.Linear(8, 1),
        )
        self.fault = fault
        self.total = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.act(self.first(x)))
        if self.fault == "mask":
            x = x + x[x > 0].mean()  # mask
        if self.fault == "nonzero":
            x = x + x.nonzero().shape[0]  # nonzero
        if self.fault == "loop":
            total = torch.zeros(())
            for i in range(len(x)):
                time.sleep(ROUND_S)
                total = total + x[i].sum()  # loop
            x = x + total
        if self.fault == "rows":
            total = torch.zeros(())
            for row in x:  # rows
                time.sleep(ROUND_S)
                total = total + row.sum()
            x = x + total
        if self.fault == "unbound":
            total = torch.zeros(())
            for row in x.unbind(0):  # unbound
                time.sleep(ROUND_S)
                total = total + row.sum()
            x = x + total
        if self.fault == "frames":
            rows = x.unbind(0)
            x = self._many(x) + torch.stack(rows)
        if self.fault == "layers":
            for _ in range(12):
                x = self._attended(x)
        return self.last(x)

    def _many(self, x: torch.Tensor) -> torch.Tensor:
        return x.cos().sin().cos().sin().cos().sin().cos().sin().cos().sin().cos().sin()

    def _attended(self, x: torch.Tensor) -> torch.Tensor:
        return x + x[:, 0].mean() + x[:, 1].mean()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = self(batch).square().mean()
        if self.fault == "item":
            self.total += loss.item()  # item
        if self.fault == "print":
            print(loss)  # print
        if self.fault == "bool" and loss > 1e9:  # bool
            loss = loss * 2
        if self.fault == "tolist":
            self.last.bias.tolist()  # tolist
        if self.fault == "cpu":
            loss.detach().cpu()  # cpu
        if self.fault == "numpy":
            loss.detach().numpy()  # numpy
        if self.fault == "format":
            f"{loss:.3f}"  # format
        if self.fault == "sometimes" and batch_idx == 12:
            loss.item()
        self.log("loss", loss, prog_bar=True, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def line_of(mark: str) -> int:
    lines, first = inspect.getsourcelines(Planted)
    return first + next(i for i, line in enumerate(lines) if line.rstrip().endswith(f"# {mark}"))


def fitted(
    make_trainer: Make, model: LightningModule, *callbacks: Any, is_clipped: bool = True, **arguments: Any
) -> Session:
    torch.manual_seed(3)
    doctor = PerfDoctor(schedule=None, reports=(), memory=False, device_stats=False)
    loader = DataLoader(torch.randn(N_STEPS * BATCH, WIDTH), batch_size=BATCH)
    make_trainer(doctor, *callbacks, gradient_clip_val=1.0 if is_clipped else None, **arguments).fit(model, loader)
    assert doctor.session is not None
    assert doctor.session.probes_off == ()
    return doctor.session


def own_calls(session: Session) -> list[SyncCall]:
    assert session.sync_calls is not None, session.missing
    return [call for call in session.sync_calls.calls if call.owner == "user"]


@pytest.mark.parametrize(
    ("fault", "operator", "function"),
    [
        ("item", "item", "training_step"),
        ("print", "print(tensor)", "training_step"),
        ("bool", "bool(tensor)", "training_step"),
        ("tolist", "tolist", "training_step"),
        ("cpu", "cpu", "training_step"),
        ("numpy", "numpy", "training_step"),
        ("format", "format(tensor)", "training_step"),
        ("mask", "boolean mask", "forward"),
        ("nonzero", "nonzero", "forward"),
    ],
)
def test_line_is_named_when_it_makes_the_host_wait(make_trainer, fault, operator, function, capsys):
    session = fitted(make_trainer, Planted(fault))
    (call,) = own_calls(session)
    assert (call.operator, Path(call.file).name, call.line, call.function) == (operator, HERE, line_of(fault), function)
    assert call.per_step == 1
    assert call.phase == "forward"
    assert call.code.endswith(f"# {fault}")
    (finding,) = (finding for finding in session.findings if finding.code == "PD501")
    assert f"{function} ({HERE}:{line_of(fault)})" in finding.summary
    assert "on a GPU" in finding.summary


@pytest.mark.parametrize("fault", ["", "sometimes", "layers"])
def test_no_line_is_reported_when_no_user_line_waits(make_trainer, fault):
    session = fitted(make_trainer, Planted(fault))
    assert own_calls(session) == []
    assert session.sync_calls is not None
    assert session.sync_calls.loops == ()
    assert not {"PD501", "PD304"} & {finding.code for finding in session.findings}
    assert {call.owner for call in session.sync_calls.calls} == {"lightning"}  # its progress bar's metrics


@pytest.mark.parametrize(("fault", "operator"), [("loop", "select"), ("rows", "unbind"), ("unbound", "unbind")])
def test_loop_is_named_when_python_takes_a_tensor_apart(make_trainer, fault, operator):
    session = fitted(make_trainer, Planted(fault))
    assert session.sync_calls is not None
    (loop,) = session.sync_calls.loops
    assert (Path(loop.file).name, loop.line, loop.function) == (HERE, line_of(fault), "forward")
    assert (loop.operator, loop.repeats) == (operator, BATCH)
    assert BATCH <= loop.operators_per_step < session.sync_calls.operators_per_step / 2
    assert 0 < loop.share <= 1
    assert loop.phase == "forward"
    (finding,) = (finding for finding in session.findings if finding.code == "PD304")
    assert f"forward ({HERE}:{line_of(fault)})" in finding.summary


def test_tensor_that_is_taken_apart_without_a_loop_is_none(make_trainer):
    session = fitted(make_trainer, Planted("frames"))
    assert session.sync_calls is not None
    assert session.sync_calls.loops == ()


class Rows(Callback):
    """Takes a tensor apart in a hook."""

    def __init__(self, hook: str) -> None:
        setattr(self, hook, self._take_apart)

    def _take_apart(self, trainer: Any, *rest: Any) -> None:
        for row in torch.ones(16, 4):
            time.sleep(ROUND_S)
            row.sum()


@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_after_backward", "on_before_optimizer_step"])
def test_loop_is_the_callbacks_when_a_hook_takes_a_tensor_apart(make_trainer, hook):
    session = fitted(make_trainer, Planted(), Rows(hook))
    assert session.sync_calls is not None
    assert [loop.phase for loop in session.sync_calls.loops] == ["callbacks"]
    codes = [finding.code for finding in session.findings]
    assert "PD504" in codes
    assert "PD304" not in codes


class RowByRow(torch.optim.SGD):
    """Takes a tensor apart in its step."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        for row in torch.ones(16, 4):
            time.sleep(ROUND_S)
            row.sum()
        return loss


class ByHand(Planted):
    """Manual optimization."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.manual_backward(self(batch).square().mean())
        self.optimizers().step()
        self.optimizers().zero_grad()


@pytest.mark.parametrize("model", [Planted, ByHand])
def test_loop_is_the_optimizers_when_its_step_takes_a_tensor_apart(make_trainer, monkeypatch, model):
    monkeypatch.setattr(model, "configure_optimizers", lambda self: RowByRow(self.parameters(), lr=1e-3))
    session = fitted(make_trainer, model(), is_clipped=model is Planted)
    assert session.sync_calls is not None
    assert {loop.phase for loop in session.sync_calls.loops} == {"optimizer"}
    (finding,) = (finding for finding in session.findings if finding.code == "PD304")
    assert set(finding.claims) == {"optimizer"}
    assert f"step ({HERE}:" in finding.summary


def test_loop_is_reported_by_phase_when_two_phases_share_it(make_trainer):
    for _ in range(3):  # a pause of the machine may fall into the shorter one
        session = fitted(make_trainer, Shared(), Sharing())
        assert session.sync_calls is not None
        shares = {loop.phase: loop.share for loop in session.sync_calls.loops}
        assert set(shares) == {"callbacks", "forward"}
        if shares["forward"] > 2 * shares["callbacks"]:
            break
    assert shares["forward"] > 2 * shares["callbacks"]


def taken_apart(n: int) -> None:
    for row in torch.ones(n, 4):
        time.sleep(ROUND_S)
        row.sum()


class Sharing(Callback):
    def on_train_batch_start(self, *args: Any) -> None:
        taken_apart(12)


class Shared(Planted):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        taken_apart(60)
        return super().forward(x)


class Keeps(Callback):
    """Writes down what is in place when a step is over."""

    def __init__(self) -> None:
        self.modes: list[Any] = []

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        self.modes.append(_get_current_dispatch_mode())


@pytest.mark.parametrize("fault", ["", "item", "mask", "loop", "print", "numpy"])
def test_training_is_bit_identical_when_steps_are_sampled(make_trainer, fault, capsys):
    def weights(*callbacks: Any) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = Planted(fault)
        loader = DataLoader(torch.randn(N_STEPS * BATCH, WIDTH), batch_size=BATCH, shuffle=True)
        make_trainer(*callbacks, gradient_clip_val=1.0, max_epochs=2).fit(model, loader)
        return [*(p.detach() for p in model.parameters()), torch.get_rng_state()]

    doctor = PerfDoctor(schedule=None, reports=())
    watched, plain = weights(doctor), weights()
    assert doctor.session is not None
    assert doctor.session.sync_calls is not None
    assert all(torch.equal(one, other) for one, other in zip(watched, plain, strict=True))


def test_everything_is_restored_when_steps_were_sampled(make_trainer):
    methods = {name: vars(torch.Tensor).get(name) for name in ("tolist", "numpy", "cpu")}
    prints = torch._tensor_str._str
    keeps, doctor = Keeps(), PerfDoctor(schedule=None, reports=())
    trainer = make_trainer(doctor, keeps)
    profiler = trainer.profiler
    trainer.fit(Planted(), DataLoader(torch.randn(N_STEPS * BATCH, WIDTH), batch_size=BATCH))
    assert len([mode for mode in keeps.modes if mode is not None]) == 2  # the steps sampled by operator
    assert _get_current_dispatch_mode() is None
    assert {name: vars(torch.Tensor).get(name) for name in methods} == methods
    assert torch._tensor_str._str is prints
    assert_nothing_left(trainer, profiler)


def test_everything_is_restored_when_a_sampled_step_raises(make_trainer):
    class Breaks(Planted):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            if _get_current_dispatch_mode() is not None:
                raise RuntimeError("planted")
            return super().training_step(batch, batch_idx)

    methods = {name: vars(torch.Tensor).get(name) for name in ("tolist", "numpy", "cpu")}
    with pytest.raises(RuntimeError, match="planted"):
        fitted(make_trainer, Breaks())
    assert _get_current_dispatch_mode() is None
    assert {name: vars(torch.Tensor).get(name) for name in methods} == methods


def test_sampled_steps_are_in_no_statistic_when_they_take_long(make_trainer):
    class Slow(Planted):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            time.sleep(0.3 if _get_current_dispatch_mode() is not None else 0.0)
            return super().training_step(batch, batch_idx)

    session = fitted(make_trainer, Slow())
    assert session.sync_calls is not None
    assert session.sync_calls.step_s >= 0.3
    assert session.steady is not None
    assert session.steady.step_s.p99 < 0.3


@pytest.mark.parametrize(("max_share", "n"), [(0.0, 1), (float("inf"), 2)])
def test_second_look_of_a_round_is_taken_where_the_first_was_cheap(make_trainer, monkeypatch, max_share, n):
    monkeypatch.setattr(sampled_steps, "ROUNDS", (4, 10))
    monkeypatch.setattr(sampled_steps, "MAX_SHARE", max_share)
    session = fitted(make_trainer, Planted("item"))
    assert session.sync_calls is not None
    assert session.sync_calls.n_steps == 2 * n
    assert [call.per_step for call in own_calls(session)] == [1]


def test_no_step_is_sampled_when_the_depth_is_none(make_trainer):
    doctor = PerfDoctor(schedule=None, reports=(), memory=False, module_depth=0)
    make_trainer(doctor).fit(Planted(), DataLoader(torch.randn(N_STEPS * BATCH, WIDTH), batch_size=BATCH))
    assert doctor.session is not None
    assert doctor.session.sync_calls is None
    assert doctor.session.missing["sync_calls"] == "module_depth=0"


def test_users_dispatch_mode_continues_when_it_is_above_ours(make_trainer):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counts(TorchDispatchMode):
        n = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Counts.n += 1
            return func(*args, **(kwargs or {}))

    class Enters(Callback):
        mode: Counts | None = None

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if self.mode is None and _get_current_dispatch_mode() is not None:
                self.mode = Counts()
                self.mode.__enter__()
            elif self.mode is not None and batch_idx == N_STEPS - 2:
                self.mode.__exit__(None, None, None)

    session = fitted(make_trainer, Planted(), Enters())
    assert session.run.status == "finished"
    assert Counts.n > 0


def test_sampling_stops_with_one_warning_when_it_fails(make_trainer, monkeypatch: pytest.MonkeyPatch):
    def broken(*args: Any) -> Callable[..., None]:
        raise ValueError("planted")

    monkeypatch.setattr(sampled_steps.OperatorTracer, "open", broken)
    doctor = PerfDoctor(schedule=None, reports=(), memory=False)
    loader = DataLoader(torch.randn(N_STEPS * BATCH, WIDTH), batch_size=BATCH)
    make_trainer(doctor).fit(Planted(), loader)
    assert doctor.session is not None
    assert [failure.probe for failure in doctor.session.probes_off] == ["operators"]
    assert doctor.session.steady is not None


@pytest.mark.parametrize(
    ("module", "name", "probe"),
    [(sampled_steps, "sync_calls", "operators"), (ceilings, "assessed", "ceilings")],
)
def test_session_keeps_the_rest_when_samples_cannot_be_reported(make_trainer, monkeypatch, module, name, probe):
    def broken(*args: Any, **kwargs: Any) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(module, name, broken)
    doctor = PerfDoctor(schedule=None, reports=(), memory=False)
    make_trainer(doctor).fit(Planted(), DataLoader(torch.randn(N_STEPS * BATCH, WIDTH), batch_size=BATCH))
    assert doctor.session is not None
    assert [failure.probe for failure in doctor.session.probes_off] == [probe]
    assert doctor.session.steady is not None


class Attends(Planted):
    """Attention over 64 positions, written out or torch's own."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.torchs = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.dropping = nn.MultiheadAttention(WIDTH, 2, dropout=0.1, batch_first=True)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x = self.first(batch).unsqueeze(0)
        if self.how == "written out":
            scores = x @ x.transpose(-2, -1) / 3.0
            x = scores.softmax(-1) @ x  # attends
        elif self.how == "torch's weights":
            x = self.torchs(x, x, x)[0]
        elif self.how == "dropout":
            x = self.dropping(x, x, x, need_weights=False)[0]
        else:
            x = x.unsqueeze(0)  # of three dimensions, torch writes it out itself
            x = nn.functional.scaled_dot_product_attention(x, x, x)
        return x.square().mean()


@pytest.mark.parametrize(
    ("how", "n", "via", "fallback"),
    [
        ("written out", 1, "", ""),
        ("torch's weights", 1, "multi_head_attention_forward", ""),
        pytest.param(
            "dropout", 1, "multi_head_attention_forward", "dropout", marks=pytest.mark.needs_torch("2.5")
        ),  # an older one calls the usual softmax
        ("fused", 0, "", ""),
    ],
)
def test_attention_is_named_when_its_scores_are_written_out(make_trainer, how, n, via, fallback):
    session = fitted(make_trainer, Attends(how))
    assert session.sync_calls is not None
    attentions = session.sync_calls.attentions
    assert len(attentions) == n
    for attention in attentions:
        assert (Path(attention.file).name, attention.function) == (HERE, "training_step")
        assert (attention.rows, attention.columns, attention.per_step, attention.via) == (BATCH, BATCH, 1, via)
        assert attention.fallback == fallback
        assert attention.share is not None
        assert 0 < attention.share <= 1


def test_lines_from_device_warnings_are_reported_when_the_device_has_them(
    make_trainer, monkeypatch: pytest.MonkeyPatch
):
    class Warns(Planted):
        debug_mode = 0

        def get_sync_debug_mode(self) -> int:
            return Warns.debug_mode

        def set_sync_debug_mode(self, mode: int) -> None:
            Warns.debug_mode = mode

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            if Warns.debug_mode:
                warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
            return super().training_step(batch, batch_idx)

    monkeypatch.setattr(sampled_steps, "sync_debug_of", lambda device: Warns())
    session = fitted(make_trainer, Warns())
    (call,) = own_calls(session)
    assert (call.operator, call.source, call.function, call.per_step) == ("synchronizes", "device", "training_step", 1)
    assert call.cost_s is None
    assert Warns.debug_mode == 0
