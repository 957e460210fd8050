"""Unusual modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations

from trainer.models import N_FEATURES, Tiny

from .loops import Deep, varied
from .registry import Run, kind


class Of(Deep):
    """Any layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer


@kind("parametrizations", core=True)
def parametrized(run: Run) -> None:
    layer = nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(N_FEATURES, 8)),
        nn.utils.spectral_norm(nn.Linear(8, 8)),
        parametrizations.weight_norm(nn.Linear(8, 4)),
        parametrizations.orthogonal(nn.Linear(4, 4)),
    )
    run.trainer().fit(Of(layer), varied())


@kind("lazy-modules")
def lazy(run: Run) -> None:
    model = Of(nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.Linear(8, 1)))
    model.configure_optimizers = lambda: torch.optim.SGD(model.parameters(), 0.01)  # type: ignore[method-assign]
    with torch.no_grad():
        model.layer(torch.ones(2, N_FEATURES))
    run.trainer().fit(model, varied())


@kind("lazy-modules-in-configure-model")
def lazy_late(run: Run) -> None:
    class Late(Deep):
        def configure_model(self) -> None:
            self.layer = nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 1))
            self.layer(torch.ones(2, N_FEATURES))

    run.trainer().fit(Late(), varied())


@kind("shared-weights-and-modules")
def shared(run: Run) -> None:
    first, second = nn.Linear(N_FEATURES, N_FEATURES), nn.Linear(N_FEATURES, N_FEATURES)
    second.weight = first.weight
    again = nn.ReLU()
    run.trainer().fit(Of(nn.Sequential(first, again, second, again, first)), varied())


@kind("own-module-hooks", core=True)
def own_hooks(run: Run) -> None:
    model = Deep()
    counts = dict.fromkeys(("pre", "forward", "backward pre", "backward", "state"), 0)

    def counter(name: str) -> Any:
        def count(*_: Any, **__: Any) -> None:
            counts[name] += 1

        return count

    for module in model.modules():
        module.register_forward_pre_hook(counter("pre"), with_kwargs=True)
        module.register_forward_hook(counter("forward"), always_call=True)
        module.register_full_backward_pre_hook(counter("backward pre"))
        module.register_full_backward_hook(counter("backward"))
        module.register_state_dict_post_hook(counter("state"))
    run.trainer().fit(model, varied(), varied(2))
    run.note(counts)


@kind("own-optimizer-hooks")
def optimizer_hooks(run: Run) -> None:
    class Hooked(Deep):
        n_calls = 0

        def count(self, *_: Any) -> None:
            self.n_calls += 1

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters())
            optimizer.register_step_pre_hook(self.count)
            optimizer.register_step_post_hook(self.count)
            return optimizer

    model = Hooked()
    run.trainer().fit(model, varied())
    run.note(model.n_calls)


class Watchful(nn.Module):
    """Notes every attribute that is set, and answers to any that is asked for."""

    def __init__(self, notes: list[Any]) -> None:
        super().__init__()
        object.__setattr__(self, "notes", notes)
        self.linear = nn.Linear(N_FEATURES, 1)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("any_"):
            self.notes.append(("asked", name))
            return name
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if "notes" in vars(self):
            self.notes.append(("set", name))
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self.notes.append(("deleted", name))
        super().__delattr__(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + len(self.any_thing)


@kind("attribute-overrides")
def attribute_overrides(run: Run) -> None:
    run.trainer().fit(Of(Watchful(run.notes)), varied())


@kind("module-with-slots-and-own-call")
def slots(run: Run) -> None:
    class Slotted(nn.Module):
        __slots__ = ("scale",)

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(N_FEATURES, 1)
            self.scale = 2.0

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            run.note("called", len(self._forward_hooks), len(self._forward_pre_hooks))
            return self.linear(x) * self.scale

    run.trainer().fit(Of(Slotted()), varied())


@kind("weights-swapped", core=True)
def weights_swapped(run: Run) -> None:
    class Swaps(Deep):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if batch_idx in (5, 10):
                layer = nn.Linear(N_FEATURES, 4)
                self.layer[0] = layer
                self.optimizers().param_groups[0]["params"][:] = list(self.parameters())
            if batch_idx == 7:
                self.layer[3].weight = nn.Parameter(self.layer[3].weight.detach() * 2)

    run.trainer().fit(Swaps(), varied())


@kind("layers-without-an-optimizer", core=True)
def layers_without_an_optimizer(run: Run) -> None:
    class Head(Deep):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.layer[-1].parameters(), lr=0.01)

    run.trainer().fit(Head(), varied())


@kind("modules-added-in-the-step")
def modules_added(run: Run) -> None:
    class Grows(Deep):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            setattr(self, f"more_{self.global_step}", nn.Linear(1, 1))
            if self.global_step == 20:
                del self.more_3
            return super().training_step(batch, batch_idx)

    run.trainer().fit(Grows(), varied())


@kind("no-forward-and-functional")
def functional(run: Run) -> None:
    class Bare(Tiny):
        def __init__(self) -> None:
            super().__init__()
            del self.layer
            self.weight = nn.Parameter(torch.ones(N_FEATURES))

        def loss(self, batch: Any) -> torch.Tensor:
            return (batch @ self.weight).square().mean()

    run.trainer().fit(Bare(), varied())


@kind("embeddings-and-recurrent")
def recurrent(run: Run) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 4, sparse=False)
            self.rnn = nn.LSTM(4, 4, dropout=0.3, num_layers=2, batch_first=True)
            self.attend = nn.MultiheadAttention(4, 2, dropout=0.2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out, _ = self.rnn(self.embed(x.abs().long() % 10))
            return self.attend(out, out, out)[0]

    run.trainer().fit(Of(Recurrent()), varied())


@kind("activations-and-norms", core=True)
def activations(run: Run) -> None:
    layers = [nn.SiLU(), nn.LayerNorm(N_FEATURES), nn.Mish(), nn.Linear(N_FEATURES, N_FEATURES), nn.GELU()]
    run.trainer().fit(Of(nn.Sequential(nn.Linear(N_FEATURES, N_FEATURES), *layers)), varied())


@kind("torchmetrics", core=True)
def metrics(run: Run) -> None:
    import torchmetrics

    class Measures(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.accuracy = torchmetrics.MeanMetric()
            self.errors = torchmetrics.MetricCollection([torchmetrics.MeanSquaredError()])

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.accuracy(loss)
            self.log("accuracy", self.accuracy, on_step=True, on_epoch=True)
            self.errors(self.layer(batch), batch[:, :1])
            self.log_dict(self.errors, on_epoch=True)
            return loss

    trainer = run.trainer()
    trainer.fit(Measures(), varied())
    run.note({name: value.item() for name, value in trainer.callback_metrics.items()})
