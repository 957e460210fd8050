"""What a profiler trace says. The field names are a contract: ``lightning-perf analyze --json`` prints these."""

from __future__ import annotations

from .base import Record
from .finding import Finding, Verdict

CATEGORIES: tuple[str, ...] = (
    "kernel",
    "communication",
    "memcpy",
    "memset",
    "runtime",
    "data_loading",
    "cpu_op",
    "other",
)
"""Exclusive categories of a step's time, by falling priority: what is hidden behind a kernel is not charged."""


class TraceStep(Record, frozen=True, kw_only=True):
    """One step of a trace; its categories add up to ``duration_s``."""

    name: str
    duration_s: float
    device_busy_s: float
    busy_fraction: float
    categories: dict[str, float]


class Idle(Record, frozen=True, kw_only=True):
    """Time between kernels of the busiest stream, by cause.

    Attributes:
        host_wait_s: The kernel that ended the gap was launched after the gap began: the host was late.
        kernel_wait_s: Launched before, and the gap is short: the queue's own gap between kernels.
        other_s: Launched before, and the gap is longer than that.
    """

    host_wait_s: float
    kernel_wait_s: float
    other_s: float


class Communication(Record, frozen=True, kw_only=True):
    """Collectives: in total, the part not hidden behind compute, and the hidden fraction (None without any)."""

    total_s: float
    exposed_s: float
    overlap_fraction: float | None


class Copies(Record, frozen=True, kw_only=True):
    """Copies between host and device, and how many of them came from pageable memory."""

    h2d_s: float
    h2d_n: int
    h2d_pageable_n: int
    d2h_s: float
    d2h_n: int


class SyncSite(Record, frozen=True, kw_only=True):
    """One place that makes the host wait for the device.

    Attributes:
        site: ``file:line`` of the user's code where stacks were recorded, else the operator or runtime call.
        call: The operator or runtime call.
        n: How often.
        wait_s: Host seconds blocked in it.
        idle_after_s: Seconds the device then had nothing to do because the host had waited: its true cost.
    """

    site: str
    call: str
    n: int
    wait_s: float
    idle_after_s: float | None = None


class Syncs(Record, frozen=True, kw_only=True):
    """Synchronising calls; ``item_n`` counts those made to read a single number."""

    n: int
    item_n: int
    wait_s: float
    sites: tuple[SyncSite, ...] = ()


class KernelTime(Record, frozen=True, kw_only=True):
    """A device kernel by name; ``kind`` is matmul, convolution, attention, elementwise, reduction, … or other."""

    name: str
    kind: str
    total_s: float
    n: int
    share: float


class Kernels(Record, frozen=True, kw_only=True):
    """Kernels; ``median_s`` and ``tensor_core_fraction`` are None without any."""

    median_s: float | None
    tensor_core_fraction: float | None
    top: tuple[KernelTime, ...] = ()


class OperatorTime(Record, frozen=True, kw_only=True):
    """An operator: host time with and without its children, and the time of the kernels that it launched."""

    name: str
    calls: int
    host_total_s: float
    host_self_s: float
    device_total_s: float


class TraceRecord(Record, frozen=True, kw_only=True):
    """One trace of one rank.

    Attributes:
        source: File name, or ``"live"``.
        rank: None when the trace does not tell.
        world_size: None likewise.
        device_name: None when the trace does not tell or has no device.
        missing: What could not be told, and why.
    """

    source: str
    rank: int | None
    world_size: int | None
    device_name: str | None
    n_events: int
    n_kernels: int
    steps: tuple[TraceStep, ...]
    idle: Idle | None
    communication: Communication | None
    copies: Copies | None
    syncs: Syncs | None
    kernels: Kernels | None
    operators: tuple[OperatorTime, ...]
    findings: tuple[Finding, ...] = ()
    verdict: Verdict | None = None
    missing: dict[str, str] = {}
