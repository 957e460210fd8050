"""The model compiled."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from lightning_perf import seams
from lightning_perf.errors import TreatmentError
from lightning_perf.records import Session
from lightning_perf.treatments.compiler import check_compiler
from lightning_perf.treatments.treatment import Treatment, Undo

MODES = ("default", "reduce-overhead", "max-autotune", "autograd")


class Compile(Treatment):
    id = "compile"
    safety = "numerics"
    effort = "minutes"
    summary = "compiles the model: operations are fused, and launched with less work on the host"
    when = (
        "Chains of element-wise operations, many small kernels. It takes tens of seconds to minutes at the start and "
        "again for new shapes; a loop of tiny operations on a CPU gets slower. `=reduce-overhead` uses CUDA graphs, "
        "`=max-autotune` also tries kernels, `=autograd` compiles the backward pass as a whole too."
    )
    conflicts = frozenset({"compile-regions"})
    value_form = "one of " + ", ".join(MODES)

    def applies_to(self, session: Session) -> str | None:
        model = session.settings.model
        return "the model is compiled already" if model is not None and model.is_compiled else None

    def parse_value(self, text: str | None) -> str | None:
        if text is not None and text not in MODES:
            raise self.bad_value(text)
        return text

    def default_value(self, session: Session | None) -> str:
        prescription = self.prescribed(session)
        wants_graphs = prescription is not None and "reduce-overhead" in prescription.code
        has_graphs = session is not None and session.settings.trainer.accelerator == "cuda"
        return "reduce-overhead" if wants_graphs and has_graphs else "default"

    def statements(self, value: Any) -> str:
        mode = "" if value in ("default", "autograd") else f', mode="{value}"'
        line = f"model = torch.compile(model{mode})  # before trainer.fit(model)"
        if value != "autograd":
            return line
        return (
            f"{line}\n# around each backward, e.g. in LightningModule.backward:\n"
            "with torch._dynamo.compiled_autograd._enable(torch.compile()):\n    loss.backward()"
        )

    def set_up(self, value: Any, trainer: Any, module: Any) -> Undo | None:
        check_compiler(trainer)
        options = {} if value in ("default", "autograd") else {"mode": value}
        undo = seams.compile_module(trainer, module, options)
        if undo is None:
            raise TreatmentError(f"{type(module).__name__} is compiled already")
        undo_backward = seams.tap_backward(trainer, _CompiledBackward()) if value == "autograd" else None

        def undo_both() -> None:
            if undo_backward is not None:
                undo_backward()
            undo()

        return undo_both


class _CompiledBackward(AbstractContextManager[None]):
    """Compiles each backward pass that runs inside."""

    def __init__(self) -> None:
        self._inside: list[Any] = []

    def __enter__(self) -> None:
        import torch
        import torch._dynamo.compiled_autograd as compiled_autograd

        context = compiled_autograd._enable(torch.compile())
        context.__enter__()
        self._inside.append(context)

    def __exit__(self, *exception: Any) -> None:
        self._inside.pop().__exit__(*exception)


TREATMENT = Compile()
