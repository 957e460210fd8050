"""Treatments of device memory."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from lightning_perf import seams
from lightning_perf.records import Session

from .blocks import repeated_blocks
from .data import BatchSize
from .treatment import Treatment


class ActivationCheckpointing(Treatment):
    id = "activation-checkpointing"
    effort = "minutes"
    summary = "keeps only the inputs of the model's repeated blocks and recomputes the rest in the backward pass"
    when = (
        "Helps where activations fill the memory. A step takes 20 to 30 % longer, so it pays only if a larger batch, "
        "or any batch, then fits. Dropout draws the same numbers again, so results do not change."
    )
    code = "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)  # for each of your repeated blocks"

    def set_up(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        for block in repeated_blocks(module):
            seams.change_attribute(block, "forward", partial(_checkpointed, block.forward), undos)


class CheckpointingBatch(BatchSize):
    id = "checkpointing-batch"
    summary = "recomputes activations in the backward pass, and uses the memory that this frees for larger batches"
    when = (
        "Helps where a larger batch would be faster and does not fit: `activation-checkpointing` and `batch-size` as "
        "one change, because the first alone is slower and the second alone runs out of memory. An epoch has fewer "
        "steps unless there was accumulation to lower, so adapt the learning rate and its schedule."
    )
    conflicts = frozenset({"activation-checkpointing", "batch-size"})
    code = ActivationCheckpointing.code

    def set_up(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        ActivationCheckpointing().set_up(None, trainer, module, undos)


def _checkpointed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a block's ``forward`` without keeping its activations."""
    import torch
    from torch.utils.checkpoint import checkpoint

    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=True, **kwargs)


class ExpandableSegments(Treatment):
    id = "expandable-segments"
    summary = "lets the allocator grow its segments instead of allocating new ones, which reduces fragmentation"
    when = "Helps where batches differ in shape and reserved memory is far above allocated memory."
    value_form = "cuda or rocm"
    value_pattern = "cuda|rocm"

    def applies_to(self, session: Session) -> str | None:
        accelerator = session.settings.trainer.accelerator
        return None if accelerator == "cuda" else f"the accelerator is {accelerator or 'not known'}: no such allocator"

    def default_value(self, session: Session | None) -> str:
        is_rocm = session is not None and "hip" in session.machine.versions  # torch also calls AMD's devices "cuda"
        return "rocm" if is_rocm else "cuda"

    def environment(self, value: Any) -> dict[str, str]:
        own = "PYTORCH_HIP_ALLOC_CONF" if value == "rocm" else "PYTORCH_CUDA_ALLOC_CONF"
        # Newer torch reads PYTORCH_ALLOC_CONF first (c10/core/AllocatorConfig.h).
        names = [name for name in ("PYTORCH_ALLOC_CONF", own) if name in os.environ] or [own]
        return {name: _with_segments(os.environ.get(name, "")) for name in names}


def _with_segments(settings: str) -> str:
    """Return settings of torch's allocator with expandable segments switched on."""
    others = [one for one in settings.split(",") if one and "expandable_segments" not in one]
    return ",".join([*others, "expandable_segments:True"])
