"""Treatments that compile the model."""

import os
import shutil
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

from lightning_perf import seams
from lightning_perf.errors import TreatmentError
from lightning_perf.records import Session

from .blocks import repeated_blocks
from .treatment import Treatment


class _Compiling(Treatment):
    safety = "numerics"
    effort = "minutes"

    def applies_to(self, session: Session) -> str | None:
        model = session.settings.model
        return "the model is compiled already" if model is not None and model.is_compiled else None


class Compile(_Compiling):
    id = "compile"
    summary = "compiles the model: fuses operations and launches them with less CPU work"
    when = (
        "Helps with chains of element-wise operations and many small kernels. Compiling takes tens of seconds to "
        "minutes at the start, and again for each new input shape. A loop of tiny operations on a CPU gets slower. "
        "`=reduce-overhead` uses CUDA graphs, `=max-autotune` also benchmarks kernels, `=autograd` also compiles the "
        "whole backward pass."
    )
    conflicts = frozenset({"compile-regions"})
    value_form = "one of default, reduce-overhead, max-autotune, autograd"
    value_pattern = "default|reduce-overhead|max-autotune|autograd"
    default = "default"

    def default_value(self, session: Session | None) -> str:
        has_graphs = session is not None and session.settings.trainer.accelerator == "cuda"
        return str(super().default_value(session)) if has_graphs else "default"

    def statements(self, value: Any) -> str:
        mode = "" if value in ("default", "autograd") else f', mode="{value}"'
        line = f"model = torch.compile(model{mode})  # before trainer.fit(model)"
        if value != "autograd":
            return line
        return (
            f"{line}\n# around each backward, e.g. in LightningModule.backward:\n"
            "with torch._dynamo.compiled_autograd._enable(torch.compile()):  # torch before 2.6: enable\n"
            "    loss.backward()"
        )

    def set_up(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        check_compiler(trainer)
        options = {} if value in ("default", "autograd") else {"mode": value}
        if not seams.compile_module(trainer, module, options, undos):
            raise TreatmentError(f"{type(module).__name__} is compiled already")
        if value == "autograd":
            backward = _CompiledBackward()
            undos.note(backward.close)
            seams.tap_backward(trainer, backward, undos)


class _CompiledBackward(AbstractContextManager[None]):
    """Compiles the backward passes that run inside; reentrant."""

    def __init__(self) -> None:
        self._open: list[ExitStack] = []

    def __enter__(self) -> None:
        import torch
        import torch._dynamo.compiled_autograd as compiled_autograd

        entered = ExitStack()
        self._open.append(entered)
        name = "_enable" if hasattr(compiled_autograd, "_enable") else "enable"  # before torch 2.6
        entered.enter_context(getattr(compiled_autograd, name)(torch.compile()))

    def __exit__(self, *exception: Any) -> None:
        self._open.pop().__exit__(*exception)

    def close(self) -> None:
        """Exit the contexts that an interrupt left open."""
        while self._open:
            self._open.pop().close()


class CompileRegions(_Compiling):
    id = "compile-regions"
    summary = "compiles only the repeated blocks of the model, once for all of them"
    when = (
        "For transformers and residual networks: most of the speedup of `compile` at a fraction of its compile time. "
        "The training must call the blocks, not their `forward`."
    )
    code = "for block in model.blocks:  # your own repeated blocks, before trainer.fit(model)\n    block.compile()"

    def set_up(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        check_compiler(trainer)
        for block in repeated_blocks(module):
            if block._compiled_call_impl is None:
                undos.note(partial(vars(block).pop, "_compiled_call_impl", None))
                block.compile()


def check_compiler(trainer: Any) -> None:
    """Check before the first step that torch finds the C++ compiler that it needs for a CPU.

    Raises:
        TreatmentError: There is none.
    """
    compiler = os.environ.get("CXX", "g++")
    if trainer.strategy.root_device.type == "cpu" and shutil.which(compiler) is None:
        raise TreatmentError(
            f"torch.compile needs a C++ compiler on a CPU, and {compiler} was not found: install g++ or set CXX"
        )
