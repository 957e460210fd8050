"""What users do with autograd, compilers and modes in a step."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from lightning.pytorch import Callback
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from trainer.models import N_FEATURES

from .loops import Deep, varied
from .registry import Run, kind


@kind("saved-tensors-hooks-disabled", core=True)
def hooks_disabled(run: Run) -> None:
    class Disables(Deep):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
                return super().training_step(batch, batch_idx)

    run.trainer().fit(Disables(), varied())


@kind("saved-tensors-hooks-disabled-for-the-run")
def hooks_disabled_always(run: Run) -> None:
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        run.trainer().fit(Deep(), varied())


@kind("own-saved-tensors-hooks")
def own_hooks(run: Run) -> None:
    class Packs(Deep):
        n_packed = n_unpacked = 0

        def pack(self, x: torch.Tensor) -> torch.Tensor:
            self.n_packed += 1
            return x

        def unpack(self, x: torch.Tensor) -> torch.Tensor:
            self.n_unpacked += 1
            return x

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            with torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack):
                return super().training_step(batch, batch_idx)

        def on_train_batch_end(self, *_: Any) -> None:
            run.note(self.n_packed, self.n_unpacked)

    run.trainer().fit(Packs(), varied())


@kind("saved-on-cpu")
def saved_on_cpu(run: Run) -> None:
    class Saves(Deep):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            with torch.autograd.graph.save_on_cpu():
                return super().training_step(batch, batch_idx)

    run.trainer().fit(Saves(), varied())


class Checkpointed(Deep):
    """Recomputes activations, with dropout."""

    def __init__(self, is_reentrant: bool) -> None:
        super().__init__()
        self.is_reentrant = is_reentrant

    def loss(self, batch: Any) -> torch.Tensor:
        batch = batch.requires_grad_()
        return checkpoint(self.layer, batch, use_reentrant=self.is_reentrant).square().mean()


@kind("activation-checkpointing", core=True)
def checkpointing(run: Run) -> None:
    run.trainer().fit(Checkpointed(is_reentrant=False), varied())


@kind("activation-checkpointing-reentrant")
def checkpointing_reentrant(run: Run) -> None:
    run.trainer().fit(Checkpointed(is_reentrant=True), varied())


@kind("torch-func")
def torch_func(run: Run) -> None:
    class PerSample(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(N_FEATURES, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            parameters = dict(self.layer.named_parameters())

            def loss(values: Any, x: torch.Tensor) -> torch.Tensor:
                return torch.func.functional_call(self.layer, values, (x,)).square().sum()

            detached = {name: value.detach() for name, value in parameters.items()}
            gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(detached, batch)
            run.note(sorted((name, tuple(value.shape)) for name, value in gradients.items()))
            jacobian = torch.func.jacrev(lambda x: self.layer(x))(batch)
            return loss(parameters, batch) + gradients["weight"].sum() + jacobian.sum().detach()

    run.trainer().fit(PerSample(), varied())


@kind("compiled-with-eager-backend", core=True, ignore=(r"dynamo|_compil|__closure__",))
def compiled(run: Run) -> None:
    class Compiles(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.compiled = torch.compile(self.layer, backend="eager")

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.compiled(batch).square().mean()

    run.trainer().fit(Compiles(), varied())
    run.note(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    run.note(dict(torch._dynamo.utils.counters["graph_break"]))


@kind("compiled-module", ignore=(r"dynamo|_compil|__closure__",))
def compiled_module(run: Run) -> None:
    class Quiet(Deep):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(batch).square().mean()

    run.trainer().fit(torch.compile(Quiet(), backend="eager"), varied())
    run.note(torch._dynamo.utils.counters["stats"]["unique_graphs"])


@kind("double-backward")
def double_backward(run: Run) -> None:
    class Penalty(Deep):
        def loss(self, batch: Any) -> torch.Tensor:
            batch = batch.requires_grad_()
            out = self.layer(batch).square().mean()
            (gradient,) = torch.autograd.grad(out, batch, create_graph=True)
            return out + (gradient.norm() - 1).square()

    run.trainer().fit(Penalty(), varied())


@kind("own-function-and-tensor-hooks")
def own_function(run: Run) -> None:
    class Doubles(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return gradient * 2 + 0 * x

    class Hooks(Deep):
        n_calls = 0

        def count(self, gradient: torch.Tensor) -> torch.Tensor:
            self.n_calls += 1
            return gradient * 0.5

        def loss(self, batch: Any) -> torch.Tensor:
            out = Doubles.apply(self.layer(batch))
            if out.requires_grad:
                out.register_hook(self.count)
            return out.square().mean()

        def on_train_batch_end(self, *_: Any) -> None:
            run.note(self.n_calls)

    model = Hooks()

    def halve(parameter: torch.Tensor) -> None:
        parameter.grad.mul_(0.5)

    next(model.parameters()).register_post_accumulate_grad_hook(halve)
    run.trainer().fit(model, varied())


class CountsOperators(TorchDispatchMode):
    """Counts operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[str(func)] = self.names.get(str(func), 0) + 1
        return func(*args, **(kwargs or {}))


class CountsFunctions(TorchFunctionMode):
    """Counts functions."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, int] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__qualname__", str(func))
        self.names[name] = self.names.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


@kind("own-modes-in-the-step", core=True)
def modes(run: Run) -> None:
    class Modes(Deep):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            with CountsOperators() as operators, CountsFunctions() as functions:
                loss = self.loss(batch)
            run.note(sorted(operators.names.items()), sorted(functions.names.items()))
            return loss

    run.trainer().fit(Modes(), varied())


@kind("own-modes-around-fit")
def modes_around(run: Run) -> None:
    with CountsOperators() as operators:
        run.trainer().fit(Deep(), varied())
    # PerfDoctor's own operators count too; those of the model must be the same.
    run.note(operators.names.get("aten.native_batch_norm_backward.default"))
    run.note(operators.names.get("aten.addmm.default"))


@kind("modes-entered-across-hooks")
def across_hooks(run: Run) -> None:
    class Enters(Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            self.stack = contextlib.ExitStack()
            self.mode = self.stack.enter_context(CountsOperators())

        def on_train_batch_end(self, *_: Any) -> None:
            self.stack.close()
            run.note(self.mode.names.get("aten.addmm.default"))
            del self.stack, self.mode

    run.trainer(Enters()).fit(Deep(), varied())


@kind("saved-tensors-hooks-across-hooks")
def packing_across_hooks(run: Run) -> None:
    class Enters(Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            self.hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)
            self.hooks.__enter__()

        def on_before_backward(self, *_: Any) -> None:
            self.hooks.__exit__()
            del self.hooks

    run.trainer(Enters()).fit(Deep(), varied())
    run.trainer(before=[Enters()]).fit(Deep(), varied())


@kind("grad-mode-in-hooks")
def grad_mode(run: Run) -> None:
    class Toggles(Deep):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            with torch.no_grad(), torch.inference_mode(batch_idx % 2 == 0):
                run.note(self.layer(batch).requires_grad)
            with torch.autograd.set_multithreading_enabled(False):
                return super().training_step(batch, batch_idx)

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            for parameter in self.layer[0].parameters():
                parameter.requires_grad_(batch_idx % 3 != 0)

    run.trainer().fit(Toggles(), varied())
