"""Find attention computed by separate products and a softmax, and replace it with the fused function."""

import math
from typing import Any

import torch

from .calls import Call, CallLog, TensorSpec
from .functions import Bound, Work, function_of
from .products import transposed

_PRODUCTS = ("aten::bmm", "aten::baddbmm")
_FALLBACK_SOFTMAX = "aten::_safe_softmax"
"""Only ``scaled_dot_product_attention`` calls it, where it has no fused kernel: on a CPU, because of dropout."""
_SOFTMAX = ("aten::_softmax", _FALLBACK_SOFTMAX)
_COPIES = ("aten::_to_copy", "aten::clone")
_MAX_BETWEEN = 8
_DROPOUT_P = 0.1
"""Any probability above 0: it decides the kernel, not the time."""


def attention_works(log: CallLog) -> list[Work]:
    """Return unfused attention: product, softmax and product, with all operators on the scores in between."""
    return [work for call in log.calls if call.name in _PRODUCTS for work in _work_ending_in(call, log)]


def _work_ending_in(last: Call, log: CallLog) -> list[Work]:
    weights, values = last.specs[-2:]
    after = _path_to(_SOFTMAX, weights, log, math.prod(weights.shape))
    if after is None:
        return []
    softmax, between = after[-1], after[:-1]
    scores = softmax.specs[0]
    before = _path_to(_PRODUCTS, scores, log, math.prod(scores.shape))
    if before is None:
        return []
    product = before[-1]
    query, key = product.specs[-2:]
    heads = scores.shape[:-2] if len(scores.shape) > 3 else (1, *scores.shape[:-2])
    if math.prod(heads) != query.shape[0] or len(heads) != 2:
        return []
    given = [_before_copy(spec, log, heads) for spec in (query, key, values)]
    (query, key, values), copies = [spec for spec, _ in given], [call for _, call in given if call is not None]
    named: dict[str, Any] = {"attn_mask": _mask(before, scores, query.dtype, heads)}
    if softmax.name != _FALLBACK_SOFTMAX and any(call.name not in _COPIES for call in between):
        named["dropout_p"] = _DROPOUT_P
    fused: Bound = torch.nn.functional.scaled_dot_product_attention, (query, transposed(key), values), named
    calls = (last, *copies, *after, *before)
    bounds = tuple(bound for call in calls if (bound := function_of(call)) is not None)
    return [Work(calls, bounds, (fused,))] if function_of(product) and function_of(softmax) else []


def _path_to(
    wanted: tuple[str, ...], spec: TensorSpec, log: CallLog, n_scores: int, depth: int = 0
) -> list[Call] | None:
    """Return the calls from a tensor of scores back to a wanted operator, which is the last one; None without one."""
    if spec.source < 0 or depth > _MAX_BETWEEN or math.prod(spec.shape) != n_scores:
        return None
    call = log.calls[spec.source]
    if call.name in wanted:
        return [call]
    if call.name in (*_PRODUCTS, *_SOFTMAX):
        return None
    for operand in call.specs:
        found = _path_to(wanted, operand, log, n_scores, depth + 1)
        if found is not None:
            return [call, *found]
    return None


def _mask(path: list[Call], scores: TensorSpec, dtype: torch.dtype, heads: tuple[int, ...]) -> TensorSpec | None:
    """Return the mask: the largest other operand between the product and the softmax; None without one."""
    others = [spec for call in path[:-1] for spec in call.specs if spec.source not in {one.index for one in path}]
    product = path[-1]
    if product.name == "aten::baddbmm" and product.kwargs.get("beta", 1) != 0:
        others.append(product.specs[0])
    masks = [spec for spec in others if len(spec.shape) > 1 and spec.shape[-1] in (1, scores.shape[-1])]
    if not masks:
        return None
    mask = max(masks, key=lambda spec: math.prod(spec.shape))
    if len(mask.shape) == 3 and mask.shape[0] == math.prod(heads):
        mask = _split(mask, heads)
    return mask if mask.dtype is torch.bool else mask._replace(dtype=dtype)


def _before_copy(spec: TensorSpec, log: CallLog, heads: tuple[int, ...]) -> tuple[TensorSpec, Call | None]:
    """Return the tensor with separate heads, and the call that copied it for the product; None if none did."""
    writer = log.calls[spec.source] if spec.source >= 0 else None
    if writer is not None and writer.name == "aten::clone" and writer.specs[0].shape[:-2] == heads:
        return writer.specs[0], writer
    return _split(spec, heads), None


def _split(spec: TensorSpec, heads: tuple[int, ...]) -> TensorSpec:
    step = spec.stride[0]
    return spec._replace(shape=(*heads, *spec.shape[1:]), stride=(heads[1] * step, step, *spec.stride[1:]))
