"""Count the targets that cross-entropy ignores, without waiting for a device before they are read."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from lightning_perf.probes.plain import is_plain_tensor
from lightning_perf.probes.replay.rewrites import LOSSES
from lightning_perf.records import LossTargets

from .code_lines import user_site

_IGNORE_INDEX = 4  # its place among the arguments: scores, targets, weight, reduction, ignore_index


class TargetCounter:
    """Counts the targets of the largest cross-entropy of a step, and of its other chunks in the same line."""

    def __init__(self) -> None:
        self._shape: tuple[int, ...] = (0,)
        self._n_targets = self._ignore_index = 0
        self._n_ignored: list[torch.Tensor] = []
        self._site = self._layer_site = ""

    def add(self, name: str, args: Sequence[Any]) -> None:
        """Count the targets of an operator, if it is a loss over classes and no larger one was seen."""
        if name not in LOSSES or len(args) <= _IGNORE_INDEX or not all(map(is_plain_tensor, args[:2])):
            return
        scores, targets = args[0].detach(), args[1].detach()
        if scores.numel() < math.prod(self._shape):
            return
        site = user_site()
        if scores.numel() > math.prod(self._shape):
            self._shape, self._n_targets, self._n_ignored = scores.shape, 0, []
            self._ignore_index, self._site = args[_IGNORE_INDEX], site
        if (scores.shape, site) == (self._shape, self._site):
            self._n_targets += targets.numel()
            self._n_ignored.append(torch.count_nonzero(targets == args[_IGNORE_INDEX]))

    def behind(self, sites: Sequence[str]) -> "TargetCounter | None":
        """Return this counter; None without sites: those of the output layer's operators, the first one last."""
        self._layer_site = sites[-1] if sites else ""
        return self if sites else None

    def read(self) -> LossTargets | None:
        """Return what was counted, which may wait for the device; None without a loss over classes."""
        if not self._n_ignored:
            return None
        return LossTargets(
            n_targets=self._n_targets,
            n_ignored=sum(map(int, self._n_ignored)),
            n_classes=self._shape[min(1, len(self._shape) - 1)],
            ignore_index=self._ignore_index,
            site=self._site,
            layer_site=self._layer_site,
        )
