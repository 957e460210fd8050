"""The repeated blocks of a model compiled, each by the same code."""

from __future__ import annotations

from typing import Any

from lightning_perf.records import Session
from lightning_perf.treatments.blocks import repeated_blocks
from lightning_perf.treatments.compiler import check_compiler
from lightning_perf.treatments.treatment import Treatment, Undo


class CompileRegions(Treatment):
    id = "compile-regions"
    safety = "numerics"
    effort = "minutes"
    summary = "compiles only the blocks that the model repeats, once for all of them"
    when = (
        "Transformers and residual networks: most of what compiling gains, in a fraction of the time that it takes. "
        "The blocks must be called, not their `forward`."
    )
    conflicts = frozenset({"compile"})

    def applies_to(self, session: Session) -> str | None:
        model = session.settings.model
        return "the model is compiled already" if model is not None and model.is_compiled else None

    def statements(self, value: Any) -> str:
        return "for block in model.blocks:  # your own repeated blocks, before trainer.fit(model)\n    block.compile()"

    def set_up(self, value: Any, trainer: Any, module: Any) -> Undo | None:
        check_compiler(trainer)
        blocks = [block for block in repeated_blocks(module) if block._compiled_call_impl is None]
        for block in blocks:
            block.compile()

        def undo() -> None:
            while blocks:
                blocks.pop()._compiled_call_impl = None

        return undo


TREATMENT = CompileRegions()
