"""Replay the operators of a step without the gradients that no optimizer uses."""

from functools import partial

from .calls import CallLog, TensorSpec
from .functions import Work, map_specs, work_for


def without_dropped(log: CallLog) -> list[Work]:
    """Return the operators that compute gradients for parameters without an optimizer, changed to leave these out."""
    return [
        work
        for call in log.calls
        if any(spec.is_dropped for spec in call.specs)
        for work in work_for(call, partial(map_specs, _without_gradient))
    ]


def _without_gradient(spec: TensorSpec) -> TensorSpec:
    return spec._replace(needs_grad=spec.needs_grad and not spec.is_dropped)
