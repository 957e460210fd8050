"""Apply treatments to replayed operators."""

from collections.abc import Callable, Container, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch

from lightning_perf.cgroups import affine_cores
from lightning_perf.interrupts import raise_if_from_signal

from .attention import attention_works
from .broadcasts import without_broadcast
from .calls import Call, CallLog, TensorSpec, flat
from .cheaper import cheaper
from .functions import Respec, Work, function_of, is_known_to_autocast, map_specs, work_for
from .repeated_rows import without_repeats
from .rewrites import (
    convolutions_alone,
    double_batch,
    fewer_targets,
    padded_products,
    shorter_sequences,
    without_bias,
    without_dropped,
)
from .state import matmul_precision, setting
from .threads import can_set_threads_locally, flushed_denormals, has_mkl, local_threads
from .zero_operands import without_zeros

AUTOCAST = {"precision-bf16": torch.bfloat16, "precision-fp16": torch.float16}

_HALF = {torch.bfloat16, torch.float16}

_SPARSE_PRODUCTS = {"aten::mm": torch.mm, "aten::_sparse_addmm": torch.sparse.mm}
"""Products with a sparse matrix → the function that a training calls."""

Scope = Callable[[], AbstractContextManager[Any]]


class TreatmentFails(Exception):
    """A training with the treatment would end with an error."""


class Treated(NamedTuple):
    """Operators with a treatment, and the contexts to run them in.

    Attributes:
        works: Work that the treatment changes and that can be replayed.
        concerned_s: Seconds in the step of all operators that it changes, replayed or not.
        around_pass: Makes the context of a whole pass: settings of torch.
        around_forward: Makes the context of each forward call: autocast.
        in_thread: Makes a context of settings that belong to a thread; both sides then run in separate threads.
        are_uses_shared: Whether calls with the same parameter are replayed together.
        n_hindered: Threads of the treated side, if those that the process has already slow them down; 0 otherwise.
    """

    works: tuple[Work, ...] = ()
    concerned_s: float = 0.0
    around_pass: Scope = nullcontext
    around_forward: Scope = nullcontext
    in_thread: Scope | None = None
    are_uses_shared: bool = False
    n_hindered: int = 0


def apply_treatment(
    treatment: str,
    log: CallLog,
    device: torch.device,
    make: Callable[[TensorSpec], Any],
) -> Treated:
    """Return what a treatment, as in ``Hypothesis``, does to the calls of a step.

    ``make`` makes a tensor from its spec, for operators whose result under autocast must be seen.

    Raises:
        TreatmentFails: An operator of the step fails with it.
        ValueError: It cannot be replayed.
    """
    name, _, value = treatment.partition("=")
    if name in AUTOCAST:
        return _autocast(AUTOCAST[name], log, device, make)
    if name == "precision-32":
        return _in_full_precision(log)
    if name == "threads":
        return _threads(log, int(value))
    if name == "flush-denormal":
        return _from_calls(log.calls, lambda call: call.has_denormals)._replace(in_thread=flushed_denormals)
    if name == "matmul-precision-high":
        around = partial(matmul_precision, "high")
        treated = _from_calls(log.calls, lambda call: any(spec.dtype is torch.float32 for spec in call.specs))
        return treated._replace(around_pass=around)
    if name == "cudnn-benchmark":
        if device.type != "cuda":
            raise ValueError(f"cudnn.benchmark changes nothing on {device.type}")
        cudnn = torch.backends.cudnn
        # cuDNN keeps its choices per thread: those of the training's threads do not change.
        around = partial(setting, lambda: cudnn.benchmark, partial(setattr, cudnn, "benchmark"), True)
        return _from_works(convolutions_alone(log))._replace(around_pass=around, in_thread=nullcontext)
    if name == "deterministic-off":
        around = partial(setting, torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 0)
        return _from_calls(log.calls, lambda call: True)._replace(around_pass=around)
    if name == "onednn":
        around = partial(setting, torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, True)
        return _from_calls(log.calls, lambda call: True)._replace(around_pass=around)
    respecs: dict[str, Respec] = {
        "float32": partial(_to_float32, (torch.float64,)),
        "channels-last": _to_channels_last,
    }
    if name in respecs:
        return _from_calls(log.calls, partial(_is_changed_by, respecs[name]), respecs[name])
    rewrite: dict[str, Callable[[], list[Work]]] = {
        "batch": lambda: double_batch(log),
        "pad": lambda: padded_products(log, int(value)),
        "no-bias": lambda: without_bias(log),
        "fused-attention": lambda: attention_works(log),
        "sequence": lambda: shorter_sequences(log, float(value)),
        "targets": lambda: fewer_targets(log, float(value)),
        "without-broadcast": lambda: without_broadcast(log),
        "without-zeros": lambda: without_zeros(log),
        "without-repeats": lambda: without_repeats(log),
        "cheaper": lambda: cheaper(log),
        "without-dropped": lambda: without_dropped(log),
    }
    if name not in rewrite:
        raise ValueError(f"{treatment} cannot be replayed")
    return _from_works(rewrite[name]())


def _from_works(works: Iterable[Work]) -> Treated:
    found = tuple(works)
    return Treated(found, sum(work.seconds for work in found))


def _from_calls(calls: Iterable[Call], concerns: Callable[[Call], bool], respec: Respec | None = None) -> Treated:
    """Return the operators of the calls that ``concerns`` selects, with tensors changed by ``respec``, if any."""
    concerned = [call for call in calls if concerns(call)]
    treat = partial(map_specs, respec or (lambda spec: spec))
    works = tuple(work for call in concerned for work in work_for(call, treat))
    return Treated(works, sum(call.seconds for call in concerned))


def _in_full_precision(log: CallLog) -> Treated:
    """Return the 16-bit operators in float32; casts between both are left out."""
    treat = partial(map_specs, partial(_to_float32, _HALF))
    works, seconds = [], 0.0
    for call in log.calls:
        dtypes = {*(spec.dtype for spec in call.specs), *call.out_dtypes}
        if not dtypes & _HALF:
            continue
        is_cast = call.name == "aten::_to_copy" and dtypes - _HALF == {torch.float32}
        works += [work._replace(treated=()) if is_cast else work for work in work_for(call, treat)]
        seconds += call.seconds
    return Treated(tuple(works), seconds)


def _is_changed_by(respec: Respec, call: Call) -> bool:
    return any(respec(spec) != spec for spec in call.specs)


def _to_float32(dtypes: Container[torch.dtype], spec: TensorSpec) -> TensorSpec:
    return spec._replace(dtype=torch.float32) if spec.dtype in dtypes else spec


def _to_channels_last(spec: TensorSpec) -> TensorSpec:
    """Return the tensor in channels-last layout if it is a contiguous batch of images; otherwise unchanged."""
    if len(spec.shape) != 4:
        return spec
    _, c, h, w = spec.shape
    is_contiguous = spec.stride == (c * h * w, h * w, w, 1)
    return spec._replace(stride=(c * h * w, 1, w * c, c)) if is_contiguous else spec


def _threads(log: CallLog, n_threads: int) -> Treated:
    treated = _from_calls(log.calls, lambda call: True)
    if can_set_threads_locally():
        n_hindered = n_threads if torch.get_num_threads() > len(affine_cores()) and n_threads > 1 else 0
        return treated._replace(in_thread=partial(local_threads, n_threads), n_hindered=n_hindered)
    if has_mkl():
        raise ValueError("MKL's number of threads cannot be changed here without changing it for the training")
    return treated._replace(around_pass=partial(setting, torch.get_num_threads, torch.set_num_threads, n_threads))


def _autocast(dtype: torch.dtype, log: CallLog, device: torch.device, make: Callable[[TensorSpec], Any]) -> Treated:
    """Find the dtypes of the tensors between operators under autocast, in the order in which the operators ran.

    If an operator computes in lower precision, the next operator receives its result in that precision.
    """
    outputs: dict[int, torch.dtype] = {}
    concerned: set[int] = set()
    seen: dict[Any, torch.dtype | None] = {}

    def respec(spec: TensorSpec) -> TensorSpec:
        changed = outputs.get(spec.source)
        return spec if changed is None or spec.dtype is not torch.float32 else spec._replace(dtype=changed)

    around = partial(torch.autocast, device.type, dtype)
    _check_sparse_products(log, device, around)
    for call in log.calls:
        is_fed = _is_changed_by(respec, call)
        bound = function_of(call)
        is_known = bound is not None and is_known_to_autocast(bound[0], device.type)
        if torch.float32 not in call.out_dtypes or not (is_fed or is_known):
            found = None
        elif bound is not None:
            # The dtype of a result follows from the function and the dtypes: one call of each is enough.
            key = bound[0], tuple(respec(spec).dtype for spec in call.specs)
            if key not in seen:
                out = _tried(bound, lambda spec: make(respec(spec)), make, around)
                seen[key] = next((value.dtype for value in flat(out) if isinstance(value, torch.Tensor)), None)
                del out
            found = seen[key]
        else:
            found = next((respec(spec).dtype for spec in call.specs if spec.dtype is torch.float32), None)
        if found is dtype:
            outputs[call.index] = dtype
        if is_fed or found is dtype:
            concerned.add(call.index)
    treated = _from_calls(log.calls, lambda call: call.index in concerned, respec)
    return treated._replace(around_forward=around, are_uses_shared=True)


def _tried(bound: Any, changed: Callable[[TensorSpec], Any], make: Callable[[TensorSpec], Any], around: Scope) -> Any:
    """Return a function's result under autocast.

    Raises:
        TreatmentFails: It fails only then, e.g. ``torch.lerp`` of tensors with different dtypes.
    """
    with torch.no_grad():
        try:
            with around():
                function, args, kwargs = map_specs(changed, bound)
                return function(*args, **kwargs)
        except RuntimeError as error:
            raise_if_from_signal(error)
            function, args, kwargs = map_specs(make, bound)
            function(*args, **kwargs)
            name = getattr(function, "__name__", "an operator").partition(".")[0]
            raise TreatmentFails(f"{name} fails with it: {error}") from error


def _check_sparse_products(log: CallLog, device: torch.device, around: Scope) -> None:
    """Run a small product of each kind: autocast casts sparse matrices, too, and torch lacks some of their products.

    On a CPU it has none of matrices in compressed rows.
    """
    for name, layout in {(call.name, call.sparse) for call in log.calls if call.sparse is not None}:
        product = _SPARSE_PRODUCTS.get(name)
        if product is None:
            continue
        matrix = torch.eye(2, device=device).to_sparse(layout=layout)
        dense = torch.ones(2, 2, device=device, requires_grad=True)
        try:
            with torch.enable_grad(), around():
                out = product(matrix, dense)
            torch.autograd.grad(out, dense, torch.ones_like(out))
        except RuntimeError as error:  # NotImplementedError is one
            raise_if_from_signal(error)
            raise TreatmentFails(f"products with {layout} matrices fail with it: {error}") from error
