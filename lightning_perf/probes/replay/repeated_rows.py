"""Replay operators that compute each row several times, with each row once."""

from functools import partial
from operator import attrgetter
from typing import Any

import msgspec
import torch

from lightning_perf.probes.sampled_steps.zeros import PRODUCTS
from lightning_perf.records import RepeatedRows

from .calls import REPEATABLE, Call, CallLog, TensorSpec
from .functions import Bound, Work, costliest, map_specs, work_for
from .joined_rows import n_joined, without_joining

_KIND = attrgetter("site", "is_regular", "are_joined")


def repeated_rows(log: CallLog) -> RepeatedRows | None:
    """Return the record of such operators; None without any."""
    found = _costliest(log)
    if not found:
        return None
    call = max(found, key=lambda each: each.seconds)
    return RepeatedRows(
        n_copies=call.n_copies if call.n_copies > 1 else n_joined(log, call),
        shape=call.out_shape,
        n_operators=sum(each.n for each in found),
        total_s=sum(each.seconds for each in found),
        site=log.irregular.get(call.index, call.site),
        is_regular=call.index not in log.irregular,
        are_joined=call.n_copies == 1,
    )


def in_both(found: RepeatedRows, again: RepeatedRows | None) -> RepeatedRows | None:
    """Return what two steps of a training have in common, with the smaller numbers; None if nothing."""
    if again is None or _KIND(again) != _KIND(found):
        return None
    if found.is_regular and not found.are_joined and again.n_copies != found.n_copies:
        return None
    return msgspec.structs.replace(
        found,
        n_copies=min(found.n_copies, again.n_copies),
        n_operators=min(found.n_operators, again.n_operators),
        total_s=min(found.total_s, again.total_s),
    )


def without_repeats(log: CallLog) -> list[Work]:
    """Return the operators of ``repeated_rows``, and the same ones on each row once, with copies of their results."""
    return [
        work
        for call in _costliest(log)
        for work in (without_joining(log, call) if call.n_copies == 1 else work_for(call, partial(_once, call)))
    ]


def _costliest(log: CallLog) -> list[Call]:
    """Return the operators with the number of copies that takes the most time, or those whose rows are concatenated."""
    repeated = (call for call in log.calls if call.n_copies > 1 or n_joined(log, call) > 1)
    return costliest(repeated, attrgetter("n_copies"), attrgetter("seconds"))


def _once(call: Call, bound: Bound) -> Bound:
    """Return a function on as many rows as differ, which copies its result as often as the rows occurred."""
    first = PRODUCTS.get(call.name, 0)
    rows = [spec for spec in call.args[first : first + REPEATABLE[call.name]] if isinstance(spec, TensorSpec)]

    def change(spec: TensorSpec) -> TensorSpec:
        if not any(spec is one for one in rows):
            return spec
        return spec._replace(shape=(spec.shape[0] // call.n_copies, *spec.shape[1:]), source=-1)

    function, args, kwargs = bound
    return partial(_copied, function, call.n_copies), map_specs(change, args), map_specs(change, kwargs)


def _copied(function: Any, n: int, *args: Any, **kwargs: Any) -> torch.Tensor:
    out = function(*args, **kwargs)
    first: torch.Tensor = out if isinstance(out, torch.Tensor) else out[0]
    return first.repeat_interleave(n, dim=0)
