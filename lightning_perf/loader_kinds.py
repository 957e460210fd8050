"""Training loaders of other libraries: how users make them, and why arguments of a loader cannot be changed.

Classes are recognized by package and name, so that no library is imported.
"""

import inspect
import types
from collections.abc import Iterator
from functools import partial
from typing import Any

_CALLS = {
    "torch.DataLoader": "DataLoader",
    "torch_geometric.DataLoader": "torch_geometric.loader.DataLoader",
    "torchdata.StatefulDataLoader": "StatefulDataLoader",
    "litdata.StreamingDataLoader": "StreamingDataLoader",
    "webdataset.WebLoader": "WebLoader",
    "nvidia._DaliBaseIterator": "pipeline_def",
    "nvidia.DALIGenericIterator": "pipeline_def",  # older versions have no common base
}
"""What users call to make each loader; of several bases the first counts."""
DALI = "pipeline_def"
_SHARDING = ("litdata.StreamingDataset", "datasets.IterableDataset")
_FETCHING = ("__iter__", "_get_iterator", "_index_sampler", "_auto_collation", "__getattribute__", "__setattr__")
"""What a subclass of ``DataLoader`` overrides if it fetches in its own way."""
_MAX_DEPTH = 8


def inner_loader(loader: Any) -> Any:
    """Return the ``DataLoader`` inside a ``WebLoader``, and any other loader itself."""
    pipeline = vars(loader).get("pipeline") if "webdataset.WebLoader" in _class_names(type(loader)) else None
    return pipeline[0] if isinstance(pipeline, list) and pipeline else loader


def n_later_stages(loader: Any) -> int:
    """Return how many stages of a ``WebLoader`` follow its ``DataLoader``, in the training process."""
    return len(vars(loader)["pipeline"]) - 1 if inner_loader(loader) is not loader else 0


def call_of(loader: Any) -> str:
    """Return what users write to make such a loader; for an unknown class its name."""
    known = next((_CALLS[name] for name in _class_names(type(loader)) if name in _CALLS), None)
    is_own = known == "DataLoader" and _class_names(type(loader))[0] != "torch.DataLoader"
    return type(loader).__name__ if known is None or is_own else known


def why_unlike_dataloader(loader: Any) -> str:
    """Return why a loader is not known to fetch as a ``DataLoader`` does; empty if it is."""
    name = type(loader).__qualname__
    if call_of(loader) == DALI:
        return (
            "a DALI pipeline fetches in threads of its own, not in worker processes: set num_threads and "
            "prefetch_queue_depth where the pipeline is built"
        )
    names = _class_names(type(loader))
    if "torch.DataLoader" not in names and inner_loader(loader) is loader:
        return f"{name} is not a torch.utils.data.DataLoader: change its arguments where it is made"
    own = type(loader).__mro__[: next(place for place, each in enumerate(names) if each in _CALLS)]
    if own:
        method = next((each for each in _FETCHING for base in own if each in vars(base)), "")
        if method:
            return f"{name} overrides {method}, so it may fetch in its own way: change its arguments where it is made"
        accepted = inspect.signature(type(loader).__init__).parameters.values()
        if not any(each.name == "num_workers" or each.kind is each.VAR_KEYWORD for each in accepted):
            return f"the constructor of {name} takes no num_workers: change its arguments where it calls DataLoader's"
    return ""


def why_not_changed(loader: Any) -> str:
    """Return why a treatment cannot change the arguments of a loader; empty if it can. Runs no code of the user's."""
    reason = why_unlike_dataloader(loader)
    if reason:
        return reason
    inner = inner_loader(loader)
    dataset, names = inner.dataset, _class_names(type(inner.dataset))
    if "litdata._BaseStreamingDatasetWrapper" in names:
        return f"{type(dataset).__qualname__} passes the number of workers on: set num_workers where the loader is made"
    if not is_iterable(dataset) or is_sharded(dataset, inner.worker_init_fn):
        return ""
    return (
        f"the IterableDataset {type(dataset).__qualname__} does not shard itself by the id and num_workers of "
        "torch.utils.data.get_worker_info(): every worker would yield all samples"
    )


def keeps_state(loader: Any) -> bool:
    """Return whether checkpoints hold the loader's state, which only as many workers can restore."""
    return callable(getattr(type(loader), "load_state_dict", None))


def is_iterable(dataset: Any) -> bool:
    """Return whether a dataset is an ``IterableDataset`` or a data pipe."""
    return not {"torch.IterableDataset", "torch.MapDataPipe"}.isdisjoint(_class_names(type(dataset)))


def is_sharded(dataset: Any, worker_init: Any = None) -> bool:
    """Return whether each worker yields only a part of an ``IterableDataset``: in known libraries, or by its code."""
    names = _class_names(type(dataset))
    if any(name in names for name in _SHARDING):
        return True
    if "webdataset.DataPipeline" in names:
        stages = [getattr(stage, "__name__", type(stage).__name__) for stage in vars(dataset).get("pipeline", ())]
        return "split_by_worker" in stages or "ResampledShardList" in stages
    return _reads_worker_info(dataset) or _reads_worker_info(worker_init)


def n_shards(dataset: Any) -> int | None:
    """Return how many parts a dataset of a known library has, the most workers that get one; None if unknown."""
    names = _class_names(type(dataset))
    if "datasets.IterableDataset" in names:
        return int(dataset.num_shards if hasattr(dataset, "num_shards") else dataset.n_shards)
    if "webdataset.DataPipeline" in names:
        source = next(iter(vars(dataset).get("pipeline", ())), None)
        urls = getattr(source, "urls", None) if type(source).__name__ == "SimpleShardList" else None
        return len(urls) if isinstance(urls, list) else None
    return None


def dali_settings(loader: Any) -> dict[str, Any]:
    """Return threads and queue depth of the first pipeline of a DALI iterator, where known."""
    pipeline = next(iter(getattr(loader, "_pipes", ())), None)
    depth, size = getattr(pipeline, "prefetch_queue_depth", None), getattr(loader, "batch_size", None)
    values = {
        "n_threads": getattr(pipeline, "num_threads", None),
        # A pipeline with separated queues has a depth for each of its two stages.
        "prefetch_factor": depth.get("cpu_size") if isinstance(depth, dict) else depth,
        "batch_size": getattr(pipeline, "max_batch_size", size),
    }
    return {name: value for name, value in values.items() if type(value) is int}


def _class_names(kind: type) -> list[str]:
    """Return package and name of a class and its bases, e.g. ``"torch.DataLoader"``."""
    return [f"{base.__module__.partition('.')[0]}.{base.__qualname__}" for base in kind.__mro__]


def _reads_worker_info(value: Any, depth: int = _MAX_DEPTH) -> bool:
    """Return whether code of an object, or of what it wraps, reads id and number of the worker."""
    if value is None or depth == 0:
        return False
    functions = [value]
    if isinstance(value, partial):
        functions = [value.func]
    elif isinstance(value, types.MethodType):
        functions = [value.__func__]
    for base in type(value).__mro__[:-1]:
        if not base.__module__.startswith("torch."):
            functions += vars(base).values()
    named = {name for each in functions if isinstance(each, types.FunctionType) for name in _names_in(each.__code__)}
    if named >= {"get_worker_info", "id", "num_workers"}:
        return True
    parts = vars(value).values() if hasattr(value, "__dict__") and not isinstance(value, types.FunctionType) else ()
    return any(is_iterable(part) and _reads_worker_info(part, depth - 1) for part in parts)


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names_in(inner)
