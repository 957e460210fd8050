"""Analyze one trace."""

import os

import msgspec
import numpy as np

from lightning_perf.errors import TraceError
from lightning_perf.records import Kernels, TraceRecord, Verdict
from lightning_perf.records.remote import RemotePath
from lightning_perf.records.validation import Refused, checked

from .attribute import OperatorTimes, describe_allocations, describe_code, describe_operators
from .collectives import describe_communication, find_collectives
from .columns import Trace
from .critical_path import describe_critical_path
from .idle import describe_device, describe_idle
from .intervals import SECOND
from .kernels import describe_kernels
from .kinds import KERNEL, MEMCPY, UNKNOWN_DEVICE
from .multi_rank import RankLog, log_rank
from .patterns import describe_attention, describe_convolutions, describe_matrix_shapes, has_shapes
from .phases import describe_phases, find_phases
from .read import read
from .stacks import Stacks
from .step_times import whole_trace
from .steps import describe_steps, launches_in_steps
from .syncs import describe_syncs
from .timeline import Timeline
from .traffic import describe_copies
from .waits import describe_allocator, describe_loader, describe_startup
from .whatif import predict


def analyze(path: str | os.PathLike[str] | RemotePath, *, max_bytes: int | None = None) -> TraceRecord:
    """Analyze a trace file.

    Args:
        path: Path or URL of a trace, as JSON or gzip, that ``torch.profiler`` of torch 1.8 or newer wrote on CUDA, ROCm
            or a CPU.
        max_bytes: Largest text that a compressed file may contain, in bytes; None for the default limits.

    Raises:
        TraceError: It cannot be read; the message says why.
    """
    return analyze_trace(read(path, max_bytes=max_bytes))


def analyze_trace(trace: Trace) -> TraceRecord:
    """Analyze a trace from a file or a live profiler."""
    return analyze_timeline(Timeline(trace))[0]


def analyze_timeline(timeline: Timeline) -> tuple[TraceRecord, RankLog | None]:
    """Return the analysis, and the data for comparing ranks (None if the trace does not contain its rank)."""
    trace = timeline.trace
    steps = timeline.steps
    phases = find_phases(timeline)
    stacks = Stacks(timeline)
    times = OperatorTimes(timeline)
    collectives = find_collectives(timeline)
    tops = steps.on_host(trace, timeline.top_operators)
    device_name = timeline.main_device.get("name")
    record = TraceRecord(
        source=trace.source,
        rank=trace.origin.rank,
        world_size=trace.origin.world_size,
        device_name=device_name if isinstance(device_name, str) else None,
        n_events=trace.n_events,
        n_kernels=len(trace.rows(KERNEL)),
        steps=describe_steps(timeline, steps),
        whole=describe_steps(timeline, whole_trace(trace, "trace"))[0],
        idle=describe_idle(timeline, phases),
        communication=describe_communication(timeline, collectives, phases),
        copies=describe_copies(timeline, stacks),
        syncs=describe_syncs(timeline, stacks),
        kernels=(kernels := describe_kernels(trace, steps, launches_in_steps(timeline, steps))),
        operators=describe_operators(timeline, times),
        missing=_missing(timeline, kernels),
        span_s=steps.span_ns / SECOND,
        era=_era(trace),
        has_stacks=timeline.has_stacks,
        has_shapes=has_shapes(timeline),
        device=describe_device(timeline),
        loader=describe_loader(timeline),
        allocator=describe_allocator(timeline),
        startup=describe_startup(timeline),
        phases=describe_phases(timeline, phases),
        matrix_shapes=describe_matrix_shapes(timeline, times),
        convolutions=describe_convolutions(timeline, times),
        attention=describe_attention(timeline, times, stacks),
        code_sites=describe_code(timeline, times, stacks),
        n_operators=len(tops),
        operator_mean_s=float(np.mean(trace.durations[tops])) / SECOND if len(tops) else None,
        critical_path=describe_critical_path(timeline, stacks, collectives),
        operator_memory=describe_allocations(timeline),
    )
    verdict = None
    if timeline.hides_device:  # nothing can be diagnosed; otherwise the rules decide
        verdict = Verdict(category="unknown", code=None, text=record.missing["device"])
    whole = msgspec.structs.replace(record, what_if=predict(record), verdict=verdict)
    return _checked(whole), log_rank(timeline, collectives)


def _checked(record: TraceRecord) -> TraceRecord:
    """Return the record with cleaned text and checked figures, because traces may come from anyone."""
    try:
        return msgspec.convert(checked(msgspec.to_builtins(record), TraceRecord), TraceRecord)
    except Refused as error:
        raise TraceError(f"{record.source} is not a valid trace: {error}") from error


def _era(trace: Trace) -> str:
    """Return the profiler's generation: older ones wrote categories with capital letters."""
    if trace.categories & {"Operator", "Kernel", "Runtime"}:
        return "kineto-2021"
    return "kineto-2022" if trace.categories & {"cpu_op", "kernel", "cuda_runtime", "user_annotation"} else "unknown"


def _missing(timeline: Timeline, kernels: Kernels | None) -> dict[str, str]:
    trace = timeline.trace
    missing: dict[str, str] = {}
    if not timeline.has_device_work:
        missing["device"] = _why_no_device(timeline)
    elif not len(trace.rows(KERNEL)):
        missing["kernels"] = "the device copied or set memory but ran no kernel"
    if kernels is not None:
        for name in ("occupancy", "sm_efficiency"):
            if getattr(kernels, name) is None:
                missing[name] = "the profiler wrote no occupancy or blocks per SM with the kernels, as on AMD devices"
    uploads = trace.rows_named(trace.rows(MEMCPY), lambda name: "HtoD" in name)
    if len(uploads) and not len(trace.rows_named(uploads, lambda name: "Pageable" in name or "Pinned" in name)):
        missing["h2d_pageable_n"] = "copies do not show whether their memory is pinned, as on AMD devices"
    if timeline.has_device_work and (timeline.launches.runtime_rows >= 0).mean() < 0.5:
        missing["launches"] = "most device work has no correlation id of the call that enqueued it"
    if not timeline.steps.n_steps:
        missing["steps"] = "no ProfilerStep annotations: the whole trace is one span, start-up included"
    if trace.origin.rank is None:
        missing["rank"] = "the trace has no distributedInfo"
    if not len(timeline.top_operators):
        missing["operators"] = "the trace has no operators: the host side was not recorded"
    if not len(trace.allocations.moments):
        missing["operator_memory"] = "the profiler recorded no allocations (profile_memory=True does)"
    if trace.n_dropped:
        events = "1 event" if trace.n_dropped == 1 else f"{trace.n_dropped:,} events"
        missing["events"] = f"left out: {events} without usable times"
    return missing


def _why_no_device(timeline: Timeline) -> str:
    if len(timeline.trace.rows(UNKNOWN_DEVICE)):
        names = sorted({str(device.get("name")) for device in timeline.trace.origin.devices} - {"None"})
        return f"the trace is of an unknown device ({', '.join(names) or 'unnamed'}): only the host side was read"
    if timeline.hides_device:
        return (
            "the trace has a GPU but no kernels: the device side was not recorded, perhaps because another profiler "
            "was active; it does not show an idle device"
        )
    return "the trace is of a CPU run"
