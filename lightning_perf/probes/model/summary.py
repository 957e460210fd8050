"""Read the model and its optimizers from shapes and dtypes.

No value of a tensor is read, so nothing waits for a device.
"""

import inspect
import itertools
import sys
import types
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from lightning_perf.probes import plain
from lightning_perf.records import ModelSettings, OptimizerSettings, ParameterGroup
from lightning_perf.seams import calls_clip_gradients, site_of_method

from . import module_walk

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
MATMUL_LAYERS: tuple[type[nn.Module], ...] = (
    nn.Linear, nn.Bilinear, *CONVOLUTIONS, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention,
)  # fmt: skip
"""Layers that multiply matrices. An embedding is a lookup: its weight counts only if a ``Linear`` shares it."""

MATMUL_CLASS_NAMES = ("Conv1D",)
"""Linear layers by another name: GPT-2's in transformers."""

GROUP_CONTENTS = ("params", "param_names")
"""What a parameter group holds besides its arguments."""

_COMPARABLE = (int, float, bool, str, type(None))

FUSED_ON_CPU_FIRST = ("Adagrad",)
"""Optimizers that torch 2.4 fuses on the CPU only and later versions on other devices too."""


def read_model(pl_module: nn.Module, optimizers: Iterable[Any] = ()) -> ModelSettings:
    """Read a module, wrapped or not, and its torch or Lightning optimizers.

    Sharded parameters count with their local shard, uninitialized (lazy) ones not at all; while there are any,
    ``n_trainable`` and ``matmul_parameter_fraction`` are None.
    """
    parameters = _distinct(module_walk.parameters(pl_module))
    is_complete = not any(plain.is_lazy(parameter) for parameter in module_walk.parameters(pl_module))
    return ModelSettings(
        class_name=type(pl_module).__name__,
        parameters=_group_by_dtype(parameters.values()),
        buffers=_group_by_dtype(_distinct(module_walk.buffers(pl_module)).values()),
        n_trainable=sum(p.numel() for p in parameters.values() if p.requires_grad) if is_complete else None,
        layers=_count_layers(pl_module),
        matmul_parameter_fraction=_matmul_parameter_fraction(pl_module, parameters) if is_complete else None,
        conv_bias_before_norm=tuple(_convs_with_bias_before_norm(pl_module)),
        is_compiled=is_compiled(pl_module),
        optimizers=tuple(read_optimizer(optimizer, sparse_tables(pl_module)) for optimizer in optimizers),
        clips_gradients=calls_clip_gradients(pl_module),
        optimizers_site=site_of_method(pl_module, "configure_optimizers"),
    )


def sparse_tables(module: nn.Module) -> frozenset[int]:
    """Return the ids of weights whose gradients are sparse, which no fused optimizer of torch takes."""
    found = set()
    for _, each in module_walk.named_modules(module):
        if isinstance(each, (nn.Embedding, nn.EmbeddingBag)) and plain.stored(each, "sparse"):
            parameters = dict(plain.items_of(plain.attributes(each).get("_parameters")) or ())
            found.add(id(parameters.get("weight")))
    return frozenset(found)


def read_optimizer(optimizer: Any, sparse: Collection[int] = ()) -> OptimizerSettings:
    """Read one optimizer; ``ZeroGradWatch`` fills its fields about zero_grad.

    ``sparse`` are the ids of parameters with sparse gradients.
    """
    optimizer = unwrap(optimizer)
    parameters = _distinct(parameters_of(optimizer)).values()
    return OptimizerSettings(
        class_name=type(optimizer).__name__,
        implementation=_implementation(optimizer),
        n_tensors=sum(len(group["params"]) for group in optimizer.param_groups),
        n_elements=sum(parameter.numel() for parameter in parameters),
        supports_fused=_supports_fused(optimizer)
        and not any(key in sparse for key in map(id, parameters_of(optimizer))),
        n_groups=len(optimizer.param_groups),
        n_distinct_groups=len(set(map(arguments_of, optimizer.param_groups))),
    )


def arguments_of(group: dict[str, Any]) -> frozenset[tuple[str, Any]]:
    """Return the arguments of a parameter group, equal for groups that could be one. Tensors count as themselves."""
    arguments = ((name, value) for name, value in group.items() if name not in GROUP_CONTENTS)
    return frozenset((name, comparable(value)) for name, value in arguments)


def comparable(value: Any) -> Any:
    """Return what is equal for equal numbers and texts, and sequences of them, without calling code of the user's."""
    parts = tuple(value) if type(value) is tuple or type(value) is list else (value,)
    is_plain = all(any(type(one) is plain_type for plain_type in _COMPARABLE) for one in parts)
    return id(type(value)), tuple((id(type(one)), one) for one in parts) if is_plain else id(value)


def is_compiled(module: nn.Module) -> bool:
    """Return whether the module, a part of it or one of its methods was compiled by ``torch.compile``."""
    # Importing dynamo takes seconds; unless it was imported, nothing is compiled.
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    if eval_frame is None:
        return False
    optimized_class = getattr(eval_frame, "OptimizedModule", ())
    parts = list(module_walk.modules(module))
    classes = {cls for kind in set(map(type, parts)) for cls in kind.__mro__}
    if any(map(_is_compiled_function, (value for cls in classes for value in vars(cls).values()))):
        return True  # a method that was decorated
    for part in parts:
        if issubclass(type(part), optimized_class) or plain.stored(part, "_compiled_call_impl") is not None:
            return True
        # Lightning unwraps a compiled LightningModule and leaves the compiled methods on the instance.
        if any(map(_is_compiled_function, plain.attributes(part).values())):
            return True
    return False


def _is_compiled_function(value: Any) -> bool:
    function = value.__func__ if type(value) in (types.MethodType, staticmethod, classmethod) else value
    return type(function) is types.FunctionType and "_torchdynamo_orig_callable" in vars(function)


def unwrap(optimizer: Any) -> Any:
    """Return the torch optimizer inside a wrapper that is not an optimizer itself, such as DeepSpeed's."""
    return optimizer if isinstance(optimizer, torch.optim.Optimizer) else getattr(optimizer, "optimizer", optimizer)


def parameters_of(optimizer: Any) -> Iterator[torch.Tensor]:
    """Return the parameters that an optimizer updates."""
    return (parameter for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"])


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a distributed tensor; any other tensor itself."""
    if plain.is_plain_tensor(tensor) or not (plain.is_library(type(tensor)) and hasattr(tensor, "to_local")):
        return tensor
    with torch.no_grad():
        shard: torch.Tensor = tensor.to_local()
    return shard


def _key(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return a key that is equal for tensors that share memory."""
    local = _local(tensor)
    address = plain.storage_address(local)
    # Meta and fake tensors have no address: only the object identifies them.
    return (address, local.storage_offset(), local.shape, local.dtype) if address else (id(tensor),)


def _distinct(tensors: Iterable[torch.Tensor]) -> dict[tuple[Any, ...], torch.Tensor]:
    """Return local shards by memory, each once, without uninitialized ones."""
    distinct: dict[tuple[Any, ...], torch.Tensor] = {}
    for tensor in tensors:
        if plain.has_shape(tensor):
            distinct.setdefault(_key(tensor), _local(tensor))
    return distinct


def _group_by_dtype(tensors: Iterable[torch.Tensor]) -> tuple[ParameterGroup, ...]:
    totals: dict[str, tuple[int, int]] = {}
    for tensor in tensors:
        dtype = str(tensor.dtype).removeprefix("torch.")
        n_elements, n_bytes = totals.get(dtype, (0, 0))
        totals[dtype] = n_elements + tensor.numel(), n_bytes + tensor.numel() * tensor.element_size()
    return tuple(
        ParameterGroup(dtype=dtype, n_elements=n_elements, n_bytes=n_bytes)
        for dtype, (n_elements, n_bytes) in sorted(totals.items(), key=lambda item: -item[1][1])
    )


def _is_matmul(module: nn.Module) -> bool:
    return isinstance(module, MATMUL_LAYERS) or type(module).__name__ in MATMUL_CLASS_NAMES


def _count_layers(root: nn.Module) -> dict[str, int]:
    """Count modules that compute: leaves, and matmul layers with parts of their own (attention)."""
    parts = (module for module in module_walk.modules(root) if module is not root)
    layers = (part for part in parts if _is_matmul(part) or next(module_walk.named_children(part), None) is None)
    return dict(Counter(type(layer).__name__ for layer in layers))


def _matmul_parameter_fraction(root: nn.Module, parameters: dict[tuple[Any, ...], torch.Tensor]) -> float | None:
    total = sum(parameter.numel() for parameter in parameters.values())
    if total == 0:
        return None
    matmuls = filter(_is_matmul, module_walk.modules(root))
    inside = _distinct(parameter for module in matmuls for parameter in module_walk.parameters(module))
    return sum(parameter.numel() for parameter in inside.values()) / total


def _convs_with_bias_before_norm(root: nn.Module) -> Iterator[str]:
    """Yield convolutions directly followed, within their container, by a batch norm of as many channels."""
    for prefix, container in module_walk.named_modules(root):
        children = list(module_walk.named_children(container))
        for (name, conv), (_, norm) in itertools.pairwise(children):
            if (
                isinstance(conv, CONVOLUTIONS)
                and dict(plain.items_of(plain.attributes(conv).get("_parameters")) or ()).get("bias") is not None
                and isinstance(norm, BATCH_NORMS)
                and plain.stored(norm, "num_features") == plain.stored(conv, "out_channels")
            ):
                yield f"{prefix}.{name}" if prefix else name


def _implementation(optimizer: Any) -> str:
    """Return how a step is implemented; the slowest of its groups determines the cost."""
    found = {_group_implementation(optimizer, group) for group in optimizer.param_groups}
    return next((kind for kind in ("unknown", "single-tensor", "foreach", "fused") if kind in found), "unknown")


def _group_implementation(optimizer: Any, group: dict[str, Any]) -> str:
    if group.get("fused"):
        return "fused"
    if group.get("foreach"):
        return "foreach"
    # A step written elsewhere need not follow torch's choice, even where it inherits the flags.
    if not type(optimizer).step.__module__.startswith("torch.optim.") or type(optimizer).__name__ == "LBFGS":
        return "unknown"
    if "foreach" not in group or group["foreach"] is False or group.get("fused") is False:
        return "single-tensor"
    return _default_implementation(group)


def _default_implementation(group: dict[str, Any]) -> str:
    """Return torch's choice if no flag is set: foreach on devices that have it, never fused."""
    if isinstance(group.get("lr"), torch.Tensor) and not group.get("capturable", False):
        return "single-tensor"
    try:
        from torch.optim.optimizer import _default_to_fused_or_foreach
    except ImportError:
        return "unknown"
    _, is_foreach = _default_to_fused_or_foreach(list(group["params"]), bool(group.get("differentiable", False)), False)
    return "foreach" if is_foreach else "single-tensor"


def _supports_fused(optimizer: Any) -> bool | None:
    """Return whether ``fused=True`` could be passed; None if signature or torch do not say."""
    try:
        has_argument = "fused" in inspect.signature(type(optimizer).__init__).parameters
    except (TypeError, ValueError):
        return None
    if not has_argument:
        return False
    try:
        from torch.utils._foreach_utils import _get_fused_kernels_supported_devices
    except ImportError:
        return None
    devices = _get_fused_kernels_supported_devices()
    if type(optimizer).__name__ in FUSED_ON_CPU_FIRST and any(p.device.type != "cpu" for p in parameters_of(optimizer)):
        return None
    is_differentiable = any(group.get("differentiable", False) for group in optimizer.param_groups)
    return not is_differentiable and all(
        parameter.device.type in devices and parameter.is_floating_point() for parameter in parameters_of(optimizer)
    )
