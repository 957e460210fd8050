"""Activations computed again instead of kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning_perf.treatments.blocks import repeated_blocks
from lightning_perf.treatments.treatment import Treatment, Undo


class ActivationCheckpointing(Treatment):
    id = "activation-checkpointing"
    effort = "minutes"
    summary = "keeps only the inputs of the model's repeated blocks and computes the rest again in the backward pass"
    when = (
        "Where activations fill the memory. A step takes 20 to 30 % longer; it pays where a larger batch, or any "
        "batch, then fits. Dropout draws the same numbers again, so results stay the same."
    )

    def statements(self, value: Any) -> str:
        return (
            "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)  # for each of your repeated blocks"
        )

    def set_up(self, value: Any, trainer: Any, module: Any) -> Undo | None:
        blocks = repeated_blocks(module)
        befores = [(block, vars(block).get("forward")) for block in blocks]
        for block in blocks:
            block.forward = _Checkpointed(block.forward)

        def undo() -> None:
            while befores:
                block, before = befores.pop()
                if isinstance(vars(block).get("forward"), _Checkpointed):
                    if before is None:
                        del block.forward
                    else:
                        block.forward = before

        return undo


class _Checkpointed:
    """A block's ``forward`` whose activations are dropped; a copy of the block takes a copy along."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import torch
        from torch.utils.checkpoint import checkpoint

        if not torch.is_grad_enabled():
            return self.forward(*args, **kwargs)
        return checkpoint(self.forward, *args, use_reentrant=False, preserve_rng_state=True, **kwargs)


TREATMENT = ActivationCheckpointing()
