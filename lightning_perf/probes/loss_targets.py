"""Count the targets that cross-entropy ignores, without waiting for a device before they are read."""

from collections.abc import Sequence
from typing import Any

import torch

from lightning_perf.records import LossTargets

from .plain import is_plain_tensor

_LOSSES = ("aten::nll_loss_forward", "aten::nll_loss2d_forward")
_IGNORE_INDEX = 4  # its place among the arguments: scores, targets, weight, reduction, ignore_index


class TargetCounter:
    """Counts the targets of the largest cross-entropy of a step."""

    def __init__(self) -> None:
        self._size = 0
        self._largest: tuple[int, int, torch.Tensor] | None = None

    def add(self, name: str, args: Sequence[Any]) -> None:
        """Count the targets of an operator, if it is a loss over classes and the largest one so far."""
        if name not in _LOSSES or not all(map(is_plain_tensor, args[:2])):
            return
        scores, targets = args[0].detach(), args[1].detach()
        if scores.numel() > self._size:
            self._size = scores.numel()
            n_classes = scores.shape[min(1, scores.ndim - 1)]
            self._largest = targets.numel(), n_classes, torch.count_nonzero(targets == args[_IGNORE_INDEX])

    def read(self) -> LossTargets | None:
        """Return what was counted, which may wait for the device; None without a loss over classes."""
        if self._largest is None:
            return None
        n_targets, n_classes, n_ignored = self._largest
        return LossTargets(n_targets=n_targets, n_ignored=int(n_ignored), n_classes=n_classes)
