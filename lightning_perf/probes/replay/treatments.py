"""What each treatment does to replayed operators."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch

from .calls import Call, CallLog, TensorSpec, flat
from .functions import function_of, is_known_to_autocast
from .state import matmul_precision, setting

Respec = Callable[[TensorSpec], TensorSpec]

AUTOCAST = {"precision-bf16": torch.bfloat16, "precision-fp16": torch.float16}


def _same(spec: TensorSpec) -> TensorSpec:
    return spec


class Treated(NamedTuple):
    """How a treatment runs operators.

    Attributes:
        around_pass: Makes the context of a whole pass: settings of torch.
        around_forward: Makes the context of each forward call: autocast.
        respec: What becomes of the tensors that go into an operator.
        concerns: Whether it changes anything for a call; others are not replayed.
    """

    around_pass: Callable[[], AbstractContextManager[Any]] = nullcontext
    around_forward: Callable[[], AbstractContextManager[Any]] = nullcontext
    respec: Respec = _same
    concerns: Callable[[Call], bool] = lambda call: True


def treated_by(treatment: str, log: CallLog, device: torch.device, fill: Callable[[Any], Any]) -> Treated | None:
    """Return what a treatment does; None for one that cannot be replayed.

    Args:
        treatment: As in ``Hypothesis``.
        log: The calls of the step.
        device: That they ran on.
        fill: Makes tensors from specs, for operators whose result under autocast has to be seen.
    """
    name, _, value = treatment.partition("=")
    if name in AUTOCAST:
        return _autocast(AUTOCAST[name], log, device, fill)
    if name == "threads":
        return Treated(partial(setting, torch.get_num_threads, torch.set_num_threads, int(value)))
    if name == "matmul-precision-high":
        return Treated(partial(matmul_precision, "high"), concerns=_has_float32)
    if name == "float32":
        return Treated(respec=_to_float32, concerns=partial(_is_changed_by, _to_float32))
    if name == "channels-last":
        return Treated(respec=_to_channels_last, concerns=partial(_is_changed_by, _to_channels_last))
    return None


def _is_changed_by(respec: Respec, call: Call) -> bool:
    return any(respec(spec) != spec for spec in call.specs)


def _has_float32(call: Call) -> bool:
    return any(spec.dtype is torch.float32 for spec in call.specs)


def _to_float32(spec: TensorSpec) -> TensorSpec:
    return spec._replace(dtype=torch.float32) if spec.dtype is torch.float64 else spec


def _to_channels_last(spec: TensorSpec) -> TensorSpec:
    """The layout of images; other tensors stay as they are."""
    if len(spec.shape) != 4:
        return spec
    _, c, h, w = spec.shape
    is_contiguous = spec.stride == (c * h * w, h * w, w, 1)
    return spec._replace(stride=(c * h * w, 1, w * c, c)) if is_contiguous else spec


def _autocast(dtype: torch.dtype, log: CallLog, device: torch.device, fill: Callable[[Any], Any]) -> Treated:
    """Find the dtypes that flow between operators under autocast, in the order in which they ran.

    A tensor written by an operator that computes in lower precision reaches the next one in that precision.
    """
    outputs: dict[int, torch.dtype] = {}
    concerned: set[int] = set()

    def respec(spec: TensorSpec) -> TensorSpec:
        changed = outputs.get(spec.source)
        return spec if changed is None or spec.dtype is not torch.float32 else spec._replace(dtype=changed)

    around = partial(torch.autocast, device.type, dtype)
    for call in log.calls:
        is_fed = _is_changed_by(respec, call)
        bound = function_of(call)
        is_known = bound is not None and is_known_to_autocast(bound[0], device.type)
        if torch.float32 not in call.out_dtypes or not (is_fed or is_known):
            found = None
        elif bound is not None:
            with torch.no_grad(), around():
                out = bound[0](*fill(_each(respec, bound[1])), **_filled(fill, respec, bound[2]))
            found = next((value.dtype for value in flat(out) if isinstance(value, torch.Tensor)), None)
            del out
        else:
            found = next((respec(spec).dtype for spec in call.specs if spec.dtype is torch.float32), None)
        if found is dtype:
            outputs[call.index] = dtype
        if is_fed or found is dtype:
            concerned.add(call.index)
    return Treated(around_forward=around, respec=respec, concerns=lambda call: call.index in concerned)


def _each(respec: Respec, value: Any) -> Any:
    """Nested arguments with each tensor as the treatment makes it."""
    if isinstance(value, TensorSpec):
        return respec(value)
    if isinstance(value, (list, tuple)):
        return tuple(_each(respec, each) for each in value)
    return value


def _filled(fill: Callable[[Any], Any], respec: Respec, kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: fill(_each(respec, value)) for name, value in kwargs.items()}


respecified = _each
