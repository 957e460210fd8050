"""Measurements that the data rules use: of the loader probe, and of the start of epochs and validations."""

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from lightning_perf.records import (
    Evidence,
    Finding,
    HotFunction,
    HotLine,
    LoaderProbe,
    LoaderSettings,
    Prescription,
    Session,
    StageTimes,
)

from .findings import certain_speedup, fact, fix, timed_finding
from .loader_curve import ProbedLoader, WorkerPlan, step_spread
from .signals import loaders_of
from .thresholds import (
    BURST_MIN_SHARE,
    COLLATE_MIN_SHARE,
    COMPUTES_MIN_FRACTION,
    KEPT_MIN_COMPARED,
    KEPT_MIN_EPOCHS,
    LINE_MIN_SHARE,
    LOOKUP_MAX_S,
    LOW_SHARE,
    MANY,
    MIN_SLOW_SAMPLES,
    SAME_LINE_MIN_SHARE,
    SERIAL_MIN_PART,
    TRANSPORT_HIGH_S,
    TRANSPORT_MIN_BYTES,
    TRANSPORT_MIN_OBJECTS,
    TRANSPORT_MIN_SHARE,
    TRANSPORT_MIN_TENSORS,
    WAIT_MIN_SHARE,
)
from .user_lines import left_with_raised_thresholds
from .wording import percent, place, site_of, size_text
from .worker_starts import in_process_of, n_boundaries, worker_start_s

SAMPLERS = ("SequentialSampler", "RandomSampler", "DistributedSampler")
"""Samplers that draw each item once per epoch."""
AT_LEAST_COLLECTIONS = "; at least the garbage collections that this work causes"


def is_waiting(probe: LoaderProbe) -> bool:
    """Return whether the dataset is blocked for most of the time it takes to make a sample."""
    return probe.getitem_cpu_fraction is not None and probe.getitem_cpu_fraction < COMPUTES_MIN_FRACTION


def items_in_memory(session: Session) -> Prescription | None:
    """Recommend keeping the loaded items in memory; None if they are not loaded again, or must not or need not be kept.

    The loader probe may know that they must not.
    """
    loader, trainer, probe = loaders_of(session)[0], session.settings.trainer, session.loader_probe
    is_loaded_again = trainer.max_epochs != 1 and trainer.reload_dataloaders_every_n_epochs != 1
    if session.run.stage != "fit" or not is_loaded_again or loader.is_in_memory_tensors or loader.why_not_changed():
        return None
    if probe is not None and (probe.may_keep is False or _is_copying_slow(probe)):
        return None
    return fix(
        "keep the dataset's items in memory if they fit and do not change",
        "minutes",
        treatment="dataset-cache",
        code=f"items = [dataset[i] for i in range(len(dataset))]  # once\n{loader.call}(items, ...)",
    )


def _is_copying_slow(probe: LoaderProbe) -> bool:
    return probe.kept_s is not None and probe.getitem is not None and probe.kept_s >= probe.getitem.mean_s


def with_kept_items(session: Session, probed: ProbedLoader, finding: Finding) -> Finding:
    """Return a finding that first recommends keeping all samples in memory, if its certain speedup is larger.

    Return ``finding`` unchanged otherwise, and if samples may not be kept, the run has fewer than ``KEPT_MIN_EPOCHS``
    epochs, or no single process gets every item in each epoch. Upper end: an epoch after the first, in which samples
    take no time. Lower end: the whole run; a step with a worker is assumed to compute, make a batch from memory and
    receive it, one after the other. ``step_spread`` widens both ends.
    """
    probe, stage, plan, getitem = probed.probe, probed.stage, probed.plan, probed.probe.getitem
    prescription = items_in_memory(session)
    n_epochs = n_epochs_of(session, probed.loader)
    if prescription is None or probe.kept_s is None or getitem is None or n_epochs < KEPT_MIN_EPOCHS:
        return finding
    if not are_all_kept(session, probed.loader):
        return finding
    samples = sample_share(probe)
    less = samples * (1 - probe.kept_s / getitem.mean_s)
    waits_s = probed.wait_s - less * min(probed.wait_s, plan.batch_s)
    if plan.n_now:
        take_s = max((point.take_s or 0.0 for point in probe.curve), default=0.0)
        waits_s = (1 - less) * plan.batch_s + max(take_s, TRANSPORT_HIGH_S)
    step_s = stage.step_s.mean
    most_s = step_s - probed.wait_s + waits_s
    least_s = step_s - probed.saved_s(samples) / stage.n_span_steps
    n = probe.n_compared or 0
    kept = timed_finding(
        stage,
        summary=(
            f"{finding.summary} {n} samples were the same when loaded again; the whole dataset takes "
            f"{size_text(probe.kept_bytes or 0)} of memory."
        ),
        evidence=(
            *finding.evidence,
            fact("time per sample kept in memory", probe.kept_s, "s", n=n),
            fact("memory for the whole dataset", probe.kept_bytes, "bytes", n=n),
        ),
        prescriptions=(
            msgspec.structs.replace(prescription, summary="keep the dataset's items in memory"),
            *(one for one in finding.prescriptions if one.treatment != prescription.treatment),
        ),
        claims={"data_wait": stage.n_span_steps * (step_s - (1 - step_spread(session, least_s)) * least_s)},
        low_s=(1 - 1 / n_epochs) * stage.n_span_steps * (step_s - (1 + step_spread(session, most_s)) * most_s),
        basis=f"samples taken from memory, timed by the loader probe; the lower end is of {n_epochs:,} epochs",
        confidence=finding.confidence if n >= KEPT_MIN_COMPARED else "medium",
        method="probed",
    )
    is_better = finding.gain is None or certain_speedup(kept.gain or finding.gain) > certain_speedup(finding.gain)
    return kept if is_better else finding


def are_all_kept(session: Session, loader: LoaderSettings) -> bool:
    """Return whether one process gets all items in each epoch.

    Each worker and each rank has a cache of its own: of shuffled items, most are first loaded by another one.
    """
    trainer = session.settings.trainer
    if trainer.reload_dataloaders_every_n_epochs or loader.sampler_class not in SAMPLERS:
        return False
    is_one = session.run.world_size == 1 and (loader.num_workers or 0) <= 1
    return loader.is_shuffled is False or (is_one and trainer.limit_train_batches in (None, 1.0))


def n_epochs_of(session: Session, loader: LoaderSettings) -> int:
    """Return the epochs that a run has had, or will have had at its end: those of its limits; 0 if unknown."""
    trainer, run = session.settings.trainer, session.run
    if run.status != "running":
        return run.n_epochs
    limits = [trainer.max_epochs or 0]
    if (trainer.max_steps or 0) > 0 and loader.n_batches:
        batches = (trainer.max_steps or 0) * (trainer.accumulate_grad_batches or 1)
        limits = [batches // loader.n_batches, *(limit for limit in limits if limit > 0)]
    return max(0, min(limits))


def burst_share(probe: LoaderProbe) -> float:
    """Return the share of sample time above the median sample, which samples of even cost would save.

    Time that a sample did not take again when read a second time is excluded: the machine caused it.
    """
    getitem = probe.getitem
    if getitem is None or getitem.mean_s <= 0:
        return 0.0
    repeatable = 1.0 if probe.slow_again is None else probe.slow_again
    return repeatable * max(0.0, 1.0 - getitem.p50_s / getitem.mean_s)


def is_bursty(probe: LoaderProbe) -> bool:
    """Return whether a few slow samples take much of the time."""
    is_large = burst_share(probe) * sample_share(probe) >= BURST_MIN_SHARE
    return is_large and (probe.n_slow or 0) >= MIN_SLOW_SAMPLES


def serialized_speedup(probe: LoaderProbe) -> tuple[int, float, float] | None:
    """Return the largest probed number of workers, and the interval of its throughput relative to one process.

    The one process is a worker if one was probed alone. None if fewer than two workers were probed.
    """
    most = max(probe.curve, key=lambda point: point.num_workers, default=None)
    alone = probe.point_at(1) or probe.point_at(0)
    if most is None or alone is None or most.num_workers < 2 or most.low_s <= 0:
        return None
    return most.num_workers, alone.low_s / most.high_s, alone.high_s / most.low_s


def max_serialized_speedup(n_workers: int) -> float:
    """Return the largest throughput relative to one process if most of a sample is serialized (Amdahl's law)."""
    return 1 / (SERIAL_MIN_PART + (1 - SERIAL_MIN_PART) / n_workers)


def is_serialized(probe: LoaderProbe) -> bool:
    """Return whether workers block one another: samples wait, in the same line in all workers, and throughput is low.

    If the line is not known, the whole interval of the relative throughput must be below the bound.
    """
    speedup = serialized_speedup(probe)
    if speedup is None or not is_waiting(probe):
        return False
    n_workers, low, high = speedup
    if probe.worker_lines and probe.worker_lines[0].share < SAME_LINE_MIN_SHARE:
        return False
    delivered = (low + high) / 2 if probe.worker_lines else high
    return delivered <= max_serialized_speedup(n_workers)


def indexes_rows(probe: LoaderProbe) -> bool:
    """Return whether samples are unmodified rows of tensors in memory, fetched one by one.

    A collate function of the user's that takes longer than fetching them is another cause.
    """
    is_lookup = probe.getitem is None or probe.getitem.p50_s <= LOOKUP_MAX_S
    collating = costliest(probe, "collate")
    is_slow_collate = collating is not None and collating.is_users and sample_share(probe) < 1 - COLLATE_MIN_SHARE
    return bool(probe.indexes_tensors) and not probe.dataset_is_batched and is_lookup and not is_slow_collate


def sample_share(probe: LoaderProbe) -> float:
    """Return the share of batch time spent making samples; the rest is collating."""
    samples_s = probe.getitem.mean_s * (probe.batch_size or 1) if probe.getitem is not None else 0.0
    collate_s = probe.collate.mean_s if probe.collate is not None else 0.0
    return samples_s / (samples_s + collate_s) if samples_s + collate_s > 0 else 0.0


def transport_share(probed: ProbedLoader) -> float:
    """Return the share of fetch time spent moving the batch; 0 without workers or for small batches."""
    probe = probed.probe
    if probed.plan.n_now == 0 or probe.transport is None:
        return 0.0
    is_heavy = (
        (probe.n_tensors or 0) >= TRANSPORT_MIN_TENSORS
        or (probe.n_objects or 0) >= TRANSPORT_MIN_OBJECTS
        or (probe.batch_bytes or 0) >= TRANSPORT_MIN_BYTES
    )
    moved_s = probe.transport.p50_s
    if not is_heavy or moved_s < TRANSPORT_HIGH_S:
        return 0.0
    return moved_s / (moved_s + probed.plan.batch_s)


def is_transport_costly(probed: ProbedLoader) -> bool:
    """Return whether moving batches from workers takes much of the fetch time."""
    return transport_share(probed) >= TRANSPORT_MIN_SHARE


def costliest(probe: LoaderProbe, where: Literal["getitem", "collate"]) -> HotFunction | None:
    """Return the function that takes the most time; None if none was profiled."""
    found = [function for function in probe.functions if function.where == where]
    return max(found, key=function_share) if found else None


def costly_line(probe: LoaderProbe) -> HotLine | None:
    """Return the line that takes most of the time of the dataset's costliest function; None if no single one does."""
    function = costliest(probe, "getitem")
    if not probe.lines or function is None or function is not probe.functions[0]:
        return None
    line = max(probe.lines, key=lambda each: each.share)
    return line if line.share >= LINE_MIN_SHARE else None


def function_share(function: HotFunction) -> float:
    """Return the share of the time attributed to a function."""
    return function.blamed_share or function.own_share


def function_place(function: HotFunction) -> str:
    """Return a function with its file and line: ``"Images.augment (images.py:31)"``."""
    return place(function.name, site_of(function.file, function.line or 0))


def costliest_function_text(probe: LoaderProbe) -> str:
    """Return the costliest function as a closing sentence; empty if none was profiled or a line is reported instead."""
    function = costliest(probe, "getitem")
    if function is None or probe.host_lines:
        return ""
    return f" {percent(function_share(function))} of sample time is spent in {function_place(function)}."


def function_evidence(probe: LoaderProbe, where: Literal["getitem", "collate"], n: int = 3) -> tuple[Evidence, ...]:
    """Return the costliest functions with their full paths, and the costliest line."""
    functions = sorted((f for f in probe.functions if f.where == where), key=lambda f: -function_share(f))[:n]
    what = "sample time" if where == "getitem" else "collate time"
    shown = [
        fact(
            f"{what} in {function.name}" + (f" ({function.file}:{function.line})" if function.file else ""),
            function_share(function),
            "fraction",
        )
        for function in functions
    ]
    if where == "getitem" and probe.lines and functions:
        line = max(probe.lines, key=lambda each: each.share)
        shown.append(fact(f"function time in line {line.line}: {line.text.strip()}", line.share, "fraction"))
    return tuple(shown)


def collecting_low_s(session: Session, probed: ProbedLoader, share: float = 1.0) -> float:
    """Return the certain seconds of garbage collection saved if this share of a batch's work makes no objects.

    A loader without workers starts the collections that run while training waits for data.
    """
    found = session.collections
    if found is None or probed.plan.n_now or probed.is_predicted or not found.automatic_by_phase_s:
        return 0.0
    part = found.automatic_by_phase_s.get("data_wait", 0.0) * (1 - left_with_raised_thresholds(found))
    return share * part * probed.stage.span_s / found.span_s if found.span_s > 0 else 0.0


def slowest_of(session: Session, loaders: Sequence[LoaderSettings]) -> LoaderSettings:
    """Return the probed loader, which is the slowest; otherwise the first of those with the fewest workers."""
    fewest = min(loaders, key=lambda each: math.inf if each.num_workers is None else each.num_workers)
    return next((each for each in loaders if is_probed(session, each)), fewest)


def is_probed(session: Session, loader: LoaderSettings) -> bool:
    """Return whether a loader is the one that was probed."""
    probe = session.loader_probe
    return probe is not None and (probe.stage, probe.index) == (loader.stage, loader.index)


def with_sharding(loader: LoaderSettings, n_workers: int, summary: str) -> str:
    """Return advice on the number of workers, after that to shard a dataset of which each would yield all samples."""
    # The loader of a library may be refused for another reason, and its dataset shard itself.
    if n_workers > 1 and loader.is_iterable and loader.is_plain and loader.why_not_changed():
        return f"shard the IterableDataset by torch.utils.data.get_worker_info(), then {summary}"
    return summary


def n_epochs_in_one(session: Session) -> int:
    """Return how many epochs the advice to use longer ones puts into one."""
    return min(MANY, max(1, n_boundaries(session)) + 1)


def wait_fact(share: float, n_steps: int | None, threshold: float = WAIT_MIN_SHARE) -> Evidence:
    """Return the share of the time waiting for data as evidence; ``n_steps`` were timed, None if the probe predicts."""
    metric = "share of the time waiting for data" + (" (predicted by the probe)" if n_steps is None else "")
    return fact(metric, share, "fraction", threshold, n_steps)


def wait_evidence(probed: ProbedLoader, threshold: float = WAIT_MIN_SHARE) -> Evidence:
    """Return the share of the time waiting for a probed loader as evidence."""
    return wait_fact(probed.share, None if probed.is_predicted else probed.stage.n_steps, threshold)


def lost_to_workers_s(session: Session, steady: StageTimes, plan: WorkerPlan) -> float:
    """Return the seconds that fetching batches from workers takes longer than making them in the training process.

    0 if they are negligible, or if more workers were measured to save more. Workers that deliver faster cost time only
    at their start, which PD104 reports.
    """
    in_process_s, _ = in_process_of(session, steady)
    if not plan.n_now or in_process_s is None or steady.fetch is None or steady.fetch.wait_s.p50 <= in_process_s:
        return 0.0
    lost_s = steady.n_span_steps * (steady.fetch.wait_s.p50 - in_process_s) + worker_start_s(session, steady)
    more_s = steady.n_span_steps * plan.saved_high_s if plan.method == "probed" and plan.n_workers > plan.n_now else 0.0
    return lost_s if lost_s >= max(more_s, LOW_SHARE * steady.span_s) else 0.0
