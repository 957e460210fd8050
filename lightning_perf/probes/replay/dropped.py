"""Replay the operators of a step without the gradients that no optimizer uses."""

from collections.abc import Set
from functools import partial

from .calls import Call, CallLog, TensorSpec
from .functions import Work, map_specs, work_for


def without_dropped(log: CallLog, unowned: Set[int]) -> list[Work]:
    """Return the operators that compute unused gradients, changed to compute only those that an optimizer uses.

    Args:
        log: The operators. A gradient is needed only by what has a leaf before it that is not among ``unowned``.
        unowned: Addresses of the parameters that no optimizer has.
    """
    needing: set[int] = set()
    n_before = -1
    while len(needing) > n_before:  # until stable: equal calls are merged, so a call may depend on a later one
        n_before = len(needing)
        for call in log.calls:
            if any(_respec(log, call, unowned, needing, spec).needs_grad for spec in call.specs):
                needing.add(call.index)
    found: list[Work] = []
    for call in log.calls:
        respec = partial(_respec, log, call, unowned, needing)
        if any(respec(spec) != spec for spec in call.specs):
            found.extend(work_for(call, partial(map_specs, respec)))
    return found


def _respec(log: CallLog, call: Call, unowned: Set[int], needing: Set[int], spec: TensorSpec) -> TensorSpec:
    """Return the tensor's spec; it needs a gradient only if a leaf other than unowned parameters depends on it."""
    if not spec.needs_grad:
        return spec
    if spec.source < 0:  # merged calls need it if any of their leaves has an optimizer
        return spec._replace(needs_grad=not call.leaves <= unowned)
    sources = {index for index in call.gradient_writers if index >= 0} if call.n > 1 else {spec.source}
    # One that was made without a gradient and has one now is a leaf, such as a parameter that was clamped.
    is_leaf = any(not any(one.needs_grad for one in log.calls[index].specs) for index in sources)
    return spec._replace(needs_grad=is_leaf or not needing.isdisjoint(sources))
