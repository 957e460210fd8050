"""Arbitrary documents of records, with all figures within the bounds that files are checked for."""

from __future__ import annotations

import types
import typing
from typing import Any

import msgspec
from hypothesis import strategies as st

from lightning_perf.records import PHASES, Record
from lightning_perf.records.validation import _IN_THE_UNIT_OF_ITS_FIELD, _ORDERED, Bounds, _bounds

TINY = (0.0, 5e-324, 1e-300, 1e-30)
MOST = 1e4
"""Larger figures are as good as this one."""

CAUSES = ("loader", "sync", "pageable_copy", "transfer", "device_to_host", "allocator", "communication", "launch",
          "compute", "between", "blocked", "queue", "edges", "hidden")  # fmt: skip
KERNELS = ("matmul", "convolution", "attention", "elementwise", "normalization", "copy", "communication", "optimizer")
KEYS = {
    "causes": CAUSES,
    "kinds": KERNELS,
    "matrix_precisions": ("fp32", "bf16", "tf32"),
    "host_wait_by_phase_s": ("data_loading", "forward", "backward", "optimizer", "other"),
    "categories": ("kernel", "other", "cpu_op"),
    "parts_s": ("data", "compute", "host"),
    "bytes_by_dtype": ("float32", "float64", "uint8"),
    "layers": ("Embedding", "EmbeddingBag", "BatchNorm2d"),
    "missing": ("telemetry", "memory", "known_results"),
    "values": ("process_cpu_cores", "cpu_busy_fraction", "rss_bytes"),
}
"""Keys of a mapping by its field; other mappings are by phase."""

TEXTS = {
    "phase": PHASES,
    "entry": ("__getitem__", "__iter__", "on_train_batch_end", "configure_gradient_clipping", ""),
    "call": ("", "gc.collect", "torch.sort", "torchmetrics.F1.forward", "LightningModule.log", "json.loads"),
    "dtype": ("float32", "float64", "c10::Half", "float", "char"),
    "shapes": ("[2,3,4] x [2,4,5]", ""),
    "capability": ("6.0", "7.5", "9.0", "x"),
    "device_name": ("Tesla V100", "AMD Instinct MI300X"),
    "site": ("f.py:1", ""),
    "precision": ("32-true", "16-mixed", "bf16-mixed", "64-true"),
    "accelerator": ("cpu", "cuda"),
    "device": ("cpu", "cuda:0"),
    "treatment": ("precision-bf16", "fused-optimizer", "threads=8", "sequence=0.40", "cheaper", "without-dropped"),
    "where": ("host", "heap", "workers", "cuda:0"),
    "cause": CAUSES,
    "limit_basis": ("cgroup", ""),
    "implementation": ("fused", "foreach", "single-tensor", "unknown"),
    "sampler_class": ("SequentialSampler", "RandomSampler"),
}
NAMES = (
    "f",
    "zero_grad",
    "train_dataloader",
    "sync_dist",
    "metrics",
    "aten::embedding",
    "aten::embedding_dense_backward",
)
"""Texts of other fields."""


def document_of(
    record: type[Record], without: typing.Collection[str] = (), unit: Bounds | None = None
) -> st.SearchStrategy[dict[str, Any]]:
    """Return documents of a record, without some of its optional fields; ``unit`` is that of the field with it."""
    required, optional = {}, {}
    for field in msgspec.structs.fields(record):
        if field.name in without or field.name == "schema_version":
            continue
        is_in_unit = unit is not None and field.name in _IN_THE_UNIT_OF_ITS_FIELD.get(record, ())
        bounds = unit if is_in_unit else _bounds(record.__name__, field.name)
        (required if field.required else optional)[field.name] = values_of(field.type, field.name, bounds)
    documents = st.fixed_dictionaries(required, optional=optional)
    ends = _ORDERED.get(record)
    return documents if ends is None else documents.map(lambda each: _in_order(each, *ends))


def _in_order(document: dict[str, Any], low: str, high: str) -> dict[str, Any]:
    if document.get(low) is None or document.get(high) is None:
        return document
    first, last = sorted((document[low], document[high]))
    return {**document, low: first, high: last}


def values_of(kind: Any, name: str, bounds: Bounds | None = None) -> st.SearchStrategy[Any]:
    """Return values of the type of a field."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Record):
        return st.deferred(lambda: document_of(kind, unit=bounds))
    if kind is bool:
        return st.booleans()
    if kind is int:
        return st.integers(int(max(bounds.low, -MOST)) if bounds else 0, int(min(bounds.high, 500)) if bounds else 500)
    if kind is float:
        low, high = (max(bounds.low, -MOST), min(bounds.high, MOST)) if bounds else (0.0, MOST)
        return st.floats(low, high) | st.sampled_from([max(low, tiny) for tiny in TINY])
    if kind is str:
        return st.sampled_from(TEXTS.get(name, NAMES))
    if kind is type(None) or kind is Any:
        return st.none()
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is dict:
        return st.dictionaries(
            st.sampled_from(KEYS.get(name, PHASES)), values_of(arguments[1], name, bounds), max_size=4
        )
    if origin is tuple and arguments[-1] is ...:
        return st.lists(values_of(arguments[0], name, bounds), max_size=20 if name == "timeline" else 3)
    if origin is tuple:
        return st.tuples(*(values_of(one, name, bounds) for one in arguments)).map(list)
    assert origin in (typing.Union, types.UnionType), f"no values are known for {kind}"
    return st.one_of(*(values_of(one, name, bounds) for one in arguments))
