"""Convolution weights with the channels last."""

from __future__ import annotations

from typing import Any

from lightning_perf.errors import TreatmentError
from lightning_perf.records import Session
from lightning_perf.treatments.treatment import Treatment, Undo


class ChannelsLast(Treatment):
    id = "channels-last"
    safety = "numerics"
    effort = "minutes"
    summary = "stores images and convolution weights with the channels last, as fast convolution kernels want them"
    when = (
        "Convolutions in mixed precision on Tensor Cores, and on CPUs. Layers without such kernels convert back and "
        "forth, which costs more than it saves."
    )

    def applies_to(self, session: Session) -> str | None:
        model = session.settings.model
        if model is not None and not any(name.startswith("Conv") for name in model.layers):
            return "the model has no convolutions"
        return None

    def statements(self, value: Any) -> str:
        return (
            "model = model.to(memory_format=torch.channels_last)  # before trainer.fit(model)\n"
            "images = images.contiguous(memory_format=torch.channels_last)  # in training_step"
        )

    def set_up(self, value: Any, trainer: Any, module: Any) -> Undo | None:
        import torch

        tensors = [t for t in (*module.parameters(), *module.buffers()) if t.dim() == 4 and t.is_floating_point()]
        if not tensors:
            raise TreatmentError(
                f"channels-last found no weights of two-dimensional convolutions in {type(module).__name__}"
            )
        # A convolution whose weights are so converts its input once and gives outputs that are so as well.
        changed = [t for t in tensors if not t.is_contiguous(memory_format=torch.channels_last)]
        for tensor in changed:
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)

        def undo() -> None:
            while changed:
                tensor = changed.pop()
                tensor.data = tensor.data.contiguous(memory_format=torch.contiguous_format)

        return undo


TREATMENT = ChannelsLast()
