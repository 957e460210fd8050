"""Replay the operators of a step without the gradients that no optimizer uses."""

from collections.abc import Container
from functools import partial

from .calls import Call, CallLog, TensorSpec
from .functions import Work, map_specs, work_for


def without_dropped(log: CallLog, trained: Container[int]) -> list[Work]:
    """Return the operators that compute such gradients, without these and without those that they alone need.

    Args:
        log: The operators in their order: a gradient goes on only to what has a trained parameter before it.
        trained: Addresses of the optimizers' parameters. Calls that share one with others count as trained.
    """
    with_gradient: set[int] = set()
    n_before = -1
    while len(with_gradient) > n_before:  # equal calls are one, and what comes before the last is behind the first
        n_before = len(with_gradient)
        for call in log.calls:
            if any(_respec(call, trained, with_gradient, spec).needs_grad for spec in call.specs):
                with_gradient.add(call.index)
    found: list[Work] = []
    for call in log.calls:
        respec = partial(_respec, call, trained, with_gradient)
        if any(respec(spec) != spec for spec in call.specs):
            found.extend(work_for(call, partial(map_specs, respec)))
    return found


def _respec(call: Call, trained: Container[int], with_gradient: set[int], spec: TensorSpec) -> TensorSpec:
    """Return a tensor that needs a gradient only if a trained parameter gets one through it."""
    if not spec.needs_grad:
        return spec
    if spec.source >= 0:
        sources = call.writers if call.n > 1 else {spec.source}
        return spec._replace(needs_grad=not with_gradient.isdisjoint(sources))
    is_trained = not call.weights or any(address in trained for address in call.weights)
    return spec._replace(needs_grad=is_trained)
