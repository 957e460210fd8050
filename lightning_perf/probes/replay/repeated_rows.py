"""Replay operators that compute each row several times, with each row once."""

import math

from lightning_perf.probes.zeros import PRODUCTS
from lightning_perf.records import RepeatedRows

from .calls import Call, CallLog, TensorSpec
from .functions import Bound, Work, function_of, map_specs

_ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"


def repeated_rows(log: CallLog) -> RepeatedRows | None:
    """Return the record of such operators; None without any."""
    found = _costliest(log)
    if not found:
        return None
    call = max(found, key=lambda each: each.seconds)
    return RepeatedRows(
        n_copies=call.n_copies,
        shape=call.out_shape,
        n_operators=sum(each.n for each in found),
        total_s=sum(each.seconds for each in found),
        site=call.site,
    )


def without_repeats(log: CallLog) -> list[Work]:
    """Return the operators of ``repeated_rows``, and the same ones without copies of rows."""
    bounds = ((call, function_of(call)) for call in _costliest(log))
    return [Work((call,), (bound,), (_once(call, bound),)) for call, bound in bounds if bound is not None]


def _costliest(log: CallLog) -> list[Call]:
    """Return the operators with the number of copies that takes the most time."""
    found = [call for call in log.calls if call.n_copies > 1 and _rows_of(call)]
    by_copies: dict[int, list[Call]] = {}
    for call in found:
        by_copies.setdefault(call.n_copies, []).append(call)
    return max(by_copies.values(), key=lambda calls: sum(call.seconds for call in calls), default=[])


def _rows_of(call: Call) -> list[TensorSpec]:
    """Return the arguments whose rows are those of the result; none if this operator does not keep rows apart."""
    specs = call.specs
    if call.name in PRODUCTS:
        first = call.args[PRODUCTS[call.name]]
        return [first] if len(call.out_shape) == 2 else []
    if call.name == "aten::convolution":
        return specs[:1]
    if call.name == _ATTENTION:
        return specs if len({spec.shape[0] for spec in specs}) == 1 else []
    names = {argument.name for argument in call.func._schema.arguments}
    whole = [spec for spec in specs if spec.shape == call.out_shape]
    is_by_row = not names & {"dim", "dims"} and all(len(spec.shape) < 2 or spec in whole for spec in specs)
    return whole if is_by_row else []


def _once(call: Call, bound: Bound) -> Bound:
    """Return a function with as many rows as differ."""
    rows = _rows_of(call)

    def change(spec: TensorSpec) -> TensorSpec:
        if not any(spec is one for one in rows):
            return spec
        shape = spec.shape if len(spec.shape) > 3 else (math.prod(spec.shape[:-1]), spec.shape[-1])
        shape = (shape[0] // call.n_copies, *shape[1:])
        stride = spec.stride if len(shape) > 3 else (shape[-1], 1)
        return spec._replace(shape=shape, stride=stride, source=-1)

    once: Bound = map_specs(change, bound)
    return once
