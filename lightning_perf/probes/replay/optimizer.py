"""Steps of an optimizer on copies of a sample of its parameters."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from lightning_perf.probes import plain
from lightning_perf.probes.model.summary import GROUP_CONTENTS, arguments_of, comparable

from .compare import Stopwatch

MAX_ELEMENTS = 2**24
"""Parameters in the sample: 64 MiB of float32, and three to four times as much with gradients and states."""

_OWN = (*GROUP_CONTENTS, "initial_lr")

_Groups = list[tuple[dict[str, Any], list[torch.Tensor]]]
"""Parameter groups as an optimizer has them, each with tensors in place of its parameters."""


class OptimizerItem:
    """Steps of an optimizer, without and with changed arguments, e.g. ``{"fused": True}``.

    With ``kinds`` of parameter groups, by the groups' ids, those of one kind become one group instead. Both sides use
    random parameters and gradients of the same shapes; the user's optimizer is only read. It steps once in
    ``n_batches``. Arguments that it does not take are left out. ``is_changed``: whether the two sides differ.

    Raises:
        ValueError: Steps of this optimizer cannot be repeated.
    """

    def __init__(
        self,
        optimizer: Any,
        changes: dict[str, Any],
        n_elements: int = MAX_ELEMENTS,
        n_batches: int = 1,
        kinds: Mapping[int, Any] | None = None,
    ) -> None:
        kind = type(optimizer)
        if kind is not getattr(torch.optim, kind.__name__, None) or kind is torch.optim.LBFGS:
            raise ValueError(f"{kind.__name__} is not one of torch's optimizers, whose step can be repeated on copies")
        groups, factor = _sample(optimizer, n_elements)
        self.weight = self.treated_weight = factor / n_batches
        changes = {name: value for name, value in changes.items() if name in optimizer.defaults}
        as_is = rebuilt(kind, groups, {})
        joined = groups if kinds is None else _joined(groups, kinds)
        if len(joined) < len(groups) and factor > 1:
            raise ValueError("the optimizer is too large to replay all of its parameter groups")
        self.is_changed = bool(changes) or len(joined) < len(groups)
        self._sides = {False: as_is, True: rebuilt(kind, joined, changes) if self.is_changed else as_is}

    def run(self, is_treated: bool, watch: Stopwatch) -> list[tuple[Any, Any]]:
        """Step once; return the marks around it."""
        begin = watch.mark()
        step_once(self._sides[is_treated])
        return [(begin, watch.mark())]


class ZeroingItem:
    """Clearing gradients, and the next backward pass: it adds to zeros, or assigns new gradients.

    The user's optimizer is only read. Gradients are cleared once in ``n_batches``.

    Raises:
        ValueError: Its parameters cannot be copied.
    """

    def __init__(self, optimizer: Any, n_elements: int = MAX_ELEMENTS, n_batches: int = 1) -> None:
        sample, factor = _sample(optimizer, n_elements)
        self.weight = self.treated_weight = factor / n_batches
        self._parameters = [each for _, tensors in sample for each in tensors]
        self._incoming = [each.grad for each in self._parameters]
        self._kept = [torch.empty_like(each) for each in self._parameters]
        self._optimizer = torch.optim.SGD(self._parameters, lr=1e-3)

    def run(self, is_treated: bool, watch: Stopwatch) -> list[tuple[Any, Any]]:
        """Clear all gradients and accumulate new ones; return the marks around both."""
        for parameter, kept in zip(self._parameters, self._kept, strict=True):
            parameter.grad = kept
        begin = watch.mark()
        self._optimizer.zero_grad(set_to_none=is_treated)
        for parameter, new in zip(self._parameters, self._incoming, strict=True):
            if parameter.grad is None:
                parameter.grad = new
            else:
                parameter.grad.add_(new)  # type: ignore[arg-type]
        return [(begin, watch.mark())]


def _sample(optimizer: Any, n_elements: int) -> tuple[_Groups, float]:
    """Return copies of every k-th parameter by size, in groups, and the factor from a step on these to a whole step.

    Raises:
        ValueError: Its parameters cannot be copied.
        MemoryError: ``n_elements`` is 0.
    """
    if not n_elements:
        raise MemoryError("no memory is free to copy parameters of the optimizer")
    pairs = [(group, each) for group in optimizer.param_groups for each in group["params"]]
    if any(each.is_sparse or hasattr(each, "to_local") for _, each in pairs):
        raise ValueError("sparse or sharded parameters are not replayed")
    if any(each.grad is not None and each.grad.is_sparse for _, each in pairs):
        raise ValueError("sparse gradients are not replayed")
    with_gradients = [(group, each) for group, each in pairs if each.grad is not None]
    tensors = with_gradients or [(group, each) for group, each in pairs if each.requires_grad]
    if not tensors:
        raise ValueError("the optimizer has no parameters with gradients")
    total = sum(each.numel() for _, each in tensors)
    every = max(1, math.ceil(total / n_elements))
    by_size = sorted(range(len(tensors)), key=lambda place: -tensors[place][1].numel())
    kept = sorted(by_size[every // 2 :: every] or by_size[-1:])
    n_kept = sum(tensors[place][1].numel() for place in kept)
    if n_kept > 2 * n_elements:
        raise ValueError(f"a single parameter of {n_kept:,} elements is too large to copy")
    generators: dict[torch.device, torch.Generator] = {}
    groups: dict[int, tuple[dict[str, Any], list[torch.Tensor]]] = {}
    for place in kept:
        group, each = tensors[place]
        groups.setdefault(id(group), (group, []))[1].append(_copy(each, generators))
    # A step takes time per tensor and time per element: if the two factors differ, the smaller one counts.
    return list(groups.values()), min(len(tensors) / len(kept), total / max(1, n_kept))


def kinds_of_groups(optimizer: Any, schedulers: Iterable[Any]) -> dict[int, Any]:
    """Return the kind of each parameter group, by its id. Groups of one kind could be one.

    They have the same arguments, also in lists of the optimizer's schedulers, such as a function for each group.
    """
    groups = optimizer.param_groups
    own = [fields for each in schedulers if (fields := plain.attributes(each)).get("optimizer") is optimizer]
    own += [plain.attributes(part) for fields in own for part in fields.get("_schedulers", ())]
    lists = [value for fields in own for value in fields.values() if type(value) is list and len(value) == len(groups)]
    return {
        id(group): (arguments_of(group), tuple(comparable(value[place]) for value in lists))
        for place, group in enumerate(groups)
    }


def _joined(groups: _Groups, kinds: Mapping[int, Any]) -> _Groups:
    joined: dict[Any, tuple[dict[str, Any], list[torch.Tensor]]] = {}
    for group, tensors in groups:
        joined.setdefault(kinds[id(group)], (group, []))[1].extend(tensors)
    return list(joined.values())


def _copy(parameter: torch.Tensor, generators: dict[torch.device, torch.Generator]) -> torch.Tensor:
    """Return a tensor of the same shape, strides and dtype with random numbers, and such a gradient."""
    device = parameter.device
    generator = generators.setdefault(device, torch.Generator(device=device).manual_seed(0))
    made = torch.empty_like(parameter, requires_grad=False)
    made.uniform_(generator=generator)
    made.grad = torch.empty_like(made).uniform_(generator=generator)
    return made.requires_grad_()


def step_once(optimizer: Any) -> None:
    """Step, without the hooks on all optimizers."""
    step = type(optimizer).step
    getattr(step, "__wrapped__", step)(optimizer)  # torch wraps it to call hooks


def rebuilt(kind: Any, groups: _Groups, changes: dict[str, Any]) -> Any:
    """Return an optimizer of the same class and arguments; both sides share parameters and gradients, not states."""
    made = []
    for group, tensors in groups:
        kept = {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in group.items()
            if name not in _OWN
        }
        if changes:
            kept.update(foreach=None, fused=None)
        made.append({"params": tensors, **kept, **changes})
    return kind(made, **{"lr": 1e-3, **changes})
