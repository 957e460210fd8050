"""Find what changed between fast and slow runs, and rank the changes by how well they explain the difference."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import NamedTuple

import msgspec

from lightning_perf.records import STEP_PHASES, Comparison, Difference, Session
from lightning_perf.reports.sections.earlier import change_text
from lightning_perf.stats.comparison import leaves

_DATA, _COMPUTE, _LOGS = ("data_wait",), ("forward", "backward"), ("logging", "callbacks")
_UPDATE, _VALIDATION = (*_COMPUTE, "optimizer"), ("validation",)

ANYTHING = 0.25
"""Weight of a change that can act on any phase, such as another commit; lower than if its own phases grew."""

_SPREAD = 0.02
"""Weight lost per phase that a setting acts on: of two that explain the growth, the more specific one ranks first."""


class Setting(NamedTuple):
    """Effects of a setting.

    Attributes:
        phases: Phases whose time it changes.
        treatment: The treatment that sets it, with ``{}`` for the value, or by value; empty if none does.
        least: Smallest whole number that the treatment accepts.
    """

    phases: tuple[str, ...]
    treatment: str | dict[str, str] = ""
    least: int = 0


SETTINGS: dict[str, Setting] = {
    "num_workers": Setting(_DATA, "loader-workers={}"),
    **dict.fromkeys(("dataset", "dataset_class"), Setting(_DATA)),
    "batch_size": Setting(STEP_PHASES, "batch-size={}"),
    "persistent_workers": Setting((*_DATA, "epoch_boundary"), {"True": "loader-persistent"}),
    "prefetch_factor": Setting(_DATA, "loader-prefetch={}"),
    "pin_memory": Setting((*_DATA, "transfer"), {"True": "loader-pin-memory"}),
    **dict.fromkeys(("collate", "sampler_class", "is_shuffled", "n_samples"), Setting(_DATA)),
    "multiprocessing_context": Setting((*_DATA, "epoch_boundary")),
    "shm_bytes": Setting(_DATA),
    "precision": Setting(
        _COMPUTE,
        {
            "32-true": "precision-32",
            "bf16-mixed": "precision-bf16",
            "16-mixed": "precision-fp16",
            "bf16-true": "precision-bf16-true",
        },
    ),
    "is_compiled": Setting(_COMPUTE, {"True": "compile"}),
    "n_threads": Setting(_UPDATE, "threads={}"),
    "float32_matmul_precision": Setting(
        _COMPUTE, {"high": "matmul-precision-high", "medium": "matmul-precision-high=medium"}
    ),
    "is_cudnn_benchmark_on": Setting(_COMPUTE, {"True": "cudnn-benchmark"}),
    "is_deterministic": Setting(_COMPUTE, {"False": "deterministic-off"}),
    "is_onednn_on": Setting(_COMPUTE),
    "is_anomaly_detection_on": Setting(_COMPUTE, {"False": "anomaly-off"}),
    "sample_shapes": Setting((*_DATA, "transfer", *_COMPUTE)),
    "layers": Setting(_COMPUTE),
    **dict.fromkeys(("torch", "cuda"), Setting(_UPDATE)),
    "implementation": Setting(("optimizer",), {"fused": "fused-optimizer"}),
    "gradient_clip_val": Setting(("optimizer",)),
    "accumulate_grad_batches": Setting(("optimizer", "backward"), "accumulate={}", least=2),
    "log_every_n_steps": Setting(_LOGS, "log-every-n={}", least=1),
    "loggers": Setting(_LOGS),
    "progress_bar": Setting(_LOGS, {"None": "prog-bar-off=bar"}),
    "progress_bar_refresh_rate": Setting(_LOGS, "progress-refresh={}", least=1),
    "callbacks": Setting(("callbacks", "checkpoint", "epoch_boundary")),
    "profiler": Setting(("callbacks", "other"), {"None": "profiler-off"}),
    **dict.fromkeys(("val_check_interval", "check_val_every_n_epoch"), Setting(_VALIDATION, "val-less-often={}")),
    "limit_val_batches": Setting(_VALIDATION, "limit-val-batches={}"),
    "find_unused_parameters": Setting(("backward",), {"False": "ddp-find-unused-off"}),
    "static_graph": Setting(("backward",), {"True": "ddp-static-graph"}),
    "gradient_as_bucket_view": Setting(("backward",), {"True": "ddp-bucket-view"}),
    "strategy": Setting(("backward", "optimizer")),
    "lightning": Setting((*_LOGS, "other", "epoch_boundary", "validation")),
    "torchmetrics": Setting(("logging", "validation")),
    "numpy": Setting(_DATA),
}
"""Settings by the last part of their path; equal suspects rank in this order. Others can act on any phase."""

_ORDER = {name: place for place, name in enumerate(SETTINGS)}

_NEED_WORKERS = ("persistent_workers", "prefetch_factor")

_EXCLUDED = (
    "n_batches", "omp_num_threads", "n_steps_watched", "zero_grad_keeps_tensors", "steps_without_zero_grad",
    "n_clearings", "n_clearings_dropping", "dropping_backward", "dropped_per_batch", "n_unused_gradients",
    "n_unused_elements", "unused_gradients_in", "n_unused_elements_in", "n_groups", "n_distinct_groups",
    "eval_outputs_have_graph", "prog_bar_metrics", "sync_dist_on_step", "max_epochs", "max_steps",
    "num_sanity_val_steps", "supports_fused", "limit_train_batches", "branch", "script", "parameters",
    "memory_bytes", "lightning-perf", "index", "stage", "class_name", "package", "optimizers_site",
)  # fmt: skip
"""Values that follow from others, are only known during a run, or do not affect the time of a step."""


class Suspect(msgspec.Struct, frozen=True):
    """A change that may explain a difference: the most frequent values of a setting in base and new runs.

    Attributes:
        name: E.g. ``num_workers``; of another loader than the training's with its stage.
        path: In the session.
        score: From 0 to 1: how well it separates the groups, times the share of the growth in its phases.
        treatment: Argument of `lightning-perf trial --try` that tries the base value; empty if no treatment sets it.
    """

    name: str
    path: str
    base: str
    new: str
    score: float
    treatment: str

    def __str__(self) -> str:
        return change_text(self.name, self.base, self.new)


def settings_of(session: Session) -> dict[str, str]:
    """Return the settings, versions and provenance of a run as text, by path; loaders by their stage."""
    document, machine = msgspec.to_builtins(session.settings), msgspec.to_builtins(session.machine)
    document["loaders"] = {f"{each['stage']}{each['index'] or ''}": each for each in document["loaders"]}
    if document["model"] is not None:
        document["model"]["layers"] = [f"{n} {name}" for name, n in document["model"]["layers"].items()]
    machine.pop("python")  # one of the versions too
    found = {
        **dict(leaves("settings", document)),
        **dict(leaves("machine", machine)),
        **dict(leaves("provenance", msgspec.to_builtins(session.provenance))),
    }
    return {path: str(value) for path, value in found.items() if _end(path) not in _EXCLUDED}


def changes(before: Session, after: Session) -> tuple[Difference, ...]:
    """Return what differs between two runs."""
    return differences(settings_of(before), settings_of(after))


def differences(base: Mapping[str, str], new: Mapping[str, str]) -> tuple[Difference, ...]:
    """Return what differs between the ``settings_of`` two runs."""
    paths = [path for path in _paths((base, new)) if base.get(path, "None") != new.get(path, "None")]
    return tuple(
        Difference(name=_name(path), base=base.get(path), new=new.get(path)) for path in sorted(paths, key=_rank)
    )


def _paths(runs: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield the paths of all runs; of a loader that only some of them have, only the class of its dataset."""
    loaders = [{_loader(path) for path in each} for each in runs]
    for path in dict.fromkeys(path for each in runs for path in each):
        if _end(path) == "dataset_class" or all(_loader(path) in each for each in loaders):
            yield path


def _loader(path: str) -> str:
    """Return the loader of a setting, by its stage; empty for other settings."""
    return path.split(".")[2] if path.startswith("settings.loaders.") else ""


def suspects(base: Sequence[Session], new: Sequence[Session], comparison: Comparison) -> list[Suspect]:
    """Return what differs between two groups of runs, beginning with the best explanation of slower phases."""
    grown = {one.name: max(0.0, (one.new_s or 0.0) - (one.base_s or 0.0)) for one in comparison.times[2:]}
    before, after = [settings_of(session) for session in base], [settings_of(session) for session in new]
    found = [_suspect(path, before, after, grown) for path in sorted(_paths((*before, *after)), key=_rank)]
    if any(each.name == "num_workers" and each.new == "0" for each in found):  # loader-workers alone can be tried
        found = [msgspec.structs.replace(each, treatment="") if each.name in _NEED_WORKERS else each for each in found]
    return sorted((each for each in found if each.base != each.new), key=lambda each: -round(each.score, 1))


def _suspect(
    path: str, before: Sequence[Mapping[str, str]], after: Sequence[Mapping[str, str]], grown: Mapping[str, float]
) -> Suspect:
    sides = [[each.get(path, "None") for each in side] for side in (before, after)]
    across = _differ(list(product(sides[0], sides[1])))
    within = max(_differ(list(combinations(side, 2))) for side in sides)
    base, new = (Counter(side).most_common(1)[0][0] for side in sides)
    score = max(0.0, across - within) * _weight(path, grown)
    return Suspect(_name(path), path, base, new, score, _treatment(path, base))


def _differ(values: Sequence[tuple[str, str]]) -> float:
    return sum(one != other for one, other in values) / len(values) if values else 0.0


def _weight(path: str, grown: Mapping[str, float]) -> float:
    """Return the share of the growth in the phases that a setting acts on, a little less if these are many."""
    setting, whole = SETTINGS.get(_end(path)), sum(grown.values())
    if setting is None or whole == 0:
        return ANYTHING
    phases = _VALIDATION if _is_of_evaluation(path) else setting.phases
    return sum(grown.get(phase, 0.0) for phase in phases) / whole * (1 - _SPREAD * len(phases))


def _treatment(path: str, value: str) -> str:
    setting = SETTINGS.get(_end(path))
    if setting is None or _is_of_evaluation(path):
        return ""
    if isinstance(setting.treatment, dict):
        return setting.treatment.get(value, "")
    if value == "None" or not setting.treatment or (value.isdecimal() and int(value) < setting.least):
        return ""
    is_batches = _end(path) == "val_check_interval" and "." not in value
    return setting.treatment.format(f"{value}b" if is_batches else value)


def _is_of_evaluation(path: str) -> bool:
    return path.startswith("settings.loaders.") and not path.startswith("settings.loaders.train.")


def _end(path: str) -> str:
    return path.rpartition(".")[2]


def _name(path: str) -> str:
    stage = path.split(".")[2] if _is_of_evaluation(path) else ""
    return f"{stage} {_end(path)}".strip()


def _rank(path: str) -> int:
    return _ORDER.get(_end(path), len(_ORDER))
