"""Hooks that a training adds in every step are found, with the module and the hook."""

from __future__ import annotations

import inspect
import itertools
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from lightning_perf import PerfDoctor
from lightning_perf.probes.settings import added_hooks
from lightning_perf.probes.settings.added_hooks import AddedHooksProbe
from tests.rules.session_builder import build_session


class Hooked(LightningModule):
    def __init__(self, every: int) -> None:
        super().__init__()
        self.every = every
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))

    def keep(self, module, inputs, output):
        self.kept = output.detach()

    def training_step(self, batch, batch_idx):
        if batch_idx % self.every == 0:
            self.layers[0].register_forward_hook(self.keep)
        return self.layers(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-3)


class Nosy:
    """A hook that notes what is asked of it."""

    def __init__(self) -> None:
        self.asked = []

    def __call__(self, *_):
        return None

    def __getattr__(self, name):
        self.asked.append(name)
        raise RuntimeError(name)


@pytest.mark.parametrize(
    ("hook", "name"),
    [(Nosy(), ""), (lambda *_: None, "<lambda>"), (partial(print, end=""), "")],
    ids=["nosy", "lambda", "partial"],
)
def test_kind_that_grows_is_named_and_no_code_of_the_hook_runs(hook, name):
    model = torch.nn.Linear(1, 1)
    model.register_forward_hook(Hooked.keep)
    first = added_hooks._Count(0, 0, added_hooks._n_hooks(model))
    for _ in range(40):
        model.register_forward_pre_hook(hook)
    asked = list(vars(hook).get("asked", ()))
    found = added_hooks._added(model, first, added_hooks._Count(20, 0, added_hooks._n_hooks(model)))
    assert (found.n_hooks, found.per_step, found.function) == (40, 2.0, name)
    assert list(vars(hook).get("asked", ())) == asked


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_of_parameters_are_named_too(register):
    model = torch.nn.Sequential(torch.nn.Linear(1, 1))
    first = added_hooks._Count(0, 0, added_hooks._n_hooks(model))
    for _ in range(40):
        getattr(model[0].weight, register)(Hooked.keep)
    found = added_hooks._added(model, first, added_hooks._Count(20, 0, added_hooks._n_hooks(model)))
    assert (found.module, found.n_hooks, found.function) == ("0.weight", 40, "keep")


@pytest.mark.parametrize(
    ("n_equal", "n_epochs", "per_epoch"), [(3, 3, 2 / 3), (3, 6, None), (2, 2, None), (0, 3, None)]
)
def test_hooks_of_epochs_must_run_the_same_code_in_most_epochs(n_equal, n_epochs, per_epoch):
    model = torch.nn.Linear(1, 1)
    model.register_forward_hook(Hooked.keep)
    first = added_hooks._Count(0, 0, added_hooks._n_hooks(model))
    others = [lambda *_: None, lambda *_: 1, lambda *_: 2]
    for hook in [Hooked.keep] * (n_equal - 1) or others:
        model.register_forward_hook(hook)
    found = added_hooks._added(model, first, added_hooks._Count(100, n_epochs, added_hooks._n_hooks(model)))
    assert (found.per_epoch if found is not None else None) == per_epoch


@pytest.mark.parametrize("every", [1, 1000])
def test_hooks_of_each_step_are_found_in_a_training(tmp_path, every):
    doctor = PerfDoctor(out_dir=tmp_path)
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, callbacks=[doctor], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Hooked(every), DataLoader(torch.ones(80, 4), batch_size=2))
    assert doctor.session.probes_off == ()
    found = doctor.session.settings.model.added_hooks
    if every > 1:
        assert found is None
        return
    assert (found.n_hooks, found.per_step, found.module, found.function) == (40, 1.0, "layers.0", "keep")
    assert found.site == f"test_added_hooks.py:{inspect.getsourcelines(Hooked.keep)[1]}"


@pytest.mark.parametrize("count_ms", [0, 2])
def test_hooks_that_stay_as_many_or_come_rarely_are_not_reported(count_ms):
    left_out, clock = [], itertools.count(step=count_ms * 10**6)
    main = SimpleNamespace(n_steps=0, epoch=0, leave_out=lambda: left_out.append(main.n_steps))
    model = torch.nn.Linear(1, 1)
    probe = AddedHooksProbe(
        SimpleNamespace(pl_module=model, loop=SimpleNamespace(main=main), now_ns=lambda: next(clock))
    )
    session = build_session({"settings": {"model": {"class_name": "Net"}}})
    for step, n in ((12, 3), (32, 9), (132, 51), (1032, 4)):
        main.n_steps = step
        for _ in range(n):
            model.register_forward_pre_hook(lambda *_: None)
        assert probe.next_step == step
        probe.step_begins(None)
        assert bool(probe.part(session)) == (step == 132)  # 60 in 120 steps are many, 64 in 1,020 are few, and 9 are
    assert probe.next_step > 10**9
    assert left_out == ([12, 32, 132, 1032] if count_ms else [])


class HookedPerEpoch(Hooked):
    def on_train_epoch_start(self):
        for _ in range(self.every):
            self.layers[1].register_forward_hook(self.keep)


@pytest.mark.parametrize(
    ("per_epoch", "n_epochs", "is_found"), [(1, 4, True), (2, 3, True), (0, 4, False), (1, 2, False)]
)
def test_hooks_of_each_epoch_are_found_in_a_training(tmp_path, per_epoch, n_epochs, is_found):
    doctor = PerfDoctor(out_dir=tmp_path)
    trainer = Trainer(
        accelerator="cpu", max_epochs=n_epochs, callbacks=[doctor], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    model = HookedPerEpoch(per_epoch)
    model.training_step = lambda batch, batch_idx: model.layers(batch).sum()
    trainer.fit(model, DataLoader(torch.ones(40, 4), batch_size=2))
    assert doctor.session.probes_off == ()
    found = doctor.session.settings.model.added_hooks
    if not is_found:
        assert found is None
        return
    assert (found.n_hooks, found.module, found.function) == (per_epoch * n_epochs, "layers.1", "keep")
    assert found.per_epoch == per_epoch
