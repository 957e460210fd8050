"""Count how often a step goes through the model with the same parameters."""

import torch
from torch import nn

from lightning_perf.probes.plain import without_overrides
from lightning_perf.probes.sampled_steps.code_lines import user_site
from lightning_perf.probes.sampled_steps.fixed_tensors import part_of

from . import module_walk

_MAX_PASSES = 16  # an optimizer such as LBFGS makes some dozen


class PassCounter:
    """Counter of the forward passes of one step that use the same parameters, from samples of the parameters."""

    def __init__(self, module: nn.Module) -> None:
        with without_overrides():
            self._trained = [each for each in module_walk.parameters(module) if each.requires_grad]
        self._passes: list[tuple[list[torch.Tensor | None], str]] = []

    def begin(self) -> None:
        """Begin a pass. On a device, this waits for nothing."""
        if len(self._passes) >= _MAX_PASSES:
            return
        with without_overrides():
            parts = [part_of(parameter) for parameter in self._trained]
            self._passes.append(([None if part is None else part.clone() for part in parts], user_site()))

    def count(self) -> tuple[int, str]:
        """Return how many passes had the same parameters as the last one, and the user's line above the first of these.

        0 without a pass, and if no parameter can be read. This may wait for the device.
        """
        if not self._passes:
            return 0, ""
        last, site = self._passes[-1]
        if all(part is None for part in last):
            return 0, ""
        n = 0
        for parts, above in reversed(self._passes):
            if not all(map(_is_same, parts, last)):
                break
            n, site = n + 1, above
        return n, site


def _is_same(part: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return part is None or other is None or (part.shape == other.shape and bool(torch.equal(part, other)))
