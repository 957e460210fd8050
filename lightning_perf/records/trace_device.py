"""Parts of a trace analysis about the device: its work, why it was idle, and calls that wait for it."""

from .base import Record
from .collectives import CollectiveTime, ShardTraffic


class Idle(Record, frozen=True, kw_only=True):
    """Gaps between kernels of the busiest stream, by cause.

    Attributes:
        host_wait_s: Gaps whose next kernel was launched after the gap began: the host was late.
        kernel_wait_s: Short gaps whose next kernel was launched before: delays of the queue.
        other_s: Longer gaps whose next kernel was launched before.
        stream: Name of the busiest stream, ``"device.stream"``.
        span_s: Seconds from its first to its last event.
        host_wait_by_phase_s: Seconds in which the whole device was idle because the host was late, by what the host
            was doing: ``data_loading``, ``forward``, ``backward``, ``optimizer``, ``other``.
    """

    host_wait_s: float
    kernel_wait_s: float
    other_s: float
    stream: str = ""
    span_s: float = 0.0
    host_wait_by_phase_s: dict[str, float] = {}


class Communication(Record, frozen=True, kw_only=True):
    """Collectives: in total, the part not hidden behind compute, and the hidden fraction (None without any).

    Attributes:
        n: Collective kernels; on a trace without device, collective calls.
        n_per_step: Mean per step (in a trace without steps, all).
        small_per_step: Collectives below 1 MiB per step; None if the trace has no sizes.
        median_s: Median duration of a collective; None without any.
        collectives: Collectives by kind and size, longest total first, at most 16.
        shards: Exchange of sharded training (FSDP) by kind and phase; empty without all-gathers and reduce-scatters.
        waiting_s: The part of ``exposed_s`` in which this rank waited for ranks that arrived later; None unless traces
            of other ranks were analyzed with it.
        least_exposed_s: The smallest ``exposed_s`` of any step. In that step this rank arrived about last, so it waited
            for the network only. Host waits that later left the device idle are excluded. None without steps.
    """

    total_s: float
    exposed_s: float
    overlap_fraction: float | None
    n: int = 0
    n_per_step: float = 0.0
    small_per_step: float | None = None
    median_bytes: int | None = None
    by_name: dict[str, float] = {}
    median_s: float | None = None
    collectives: tuple[CollectiveTime, ...] = ()
    shards: tuple[ShardTraffic, ...] = ()
    waiting_s: float | None = None
    least_exposed_s: float | None = None


class CopySite(Record, frozen=True, kw_only=True):
    """One place that copies between host and device.

    Attributes:
        site: ``file:line`` of the user's code where stacks were recorded, else the operator or runtime call.
        direction: ``"h2d"`` or ``"d2h"``.
        exposed_s: Seconds of copying during which no kernel ran.
    """

    site: str
    direction: str
    n: int
    total_s: float
    exposed_s: float
    is_pageable: bool
    function: str = ""


class Copies(Record, frozen=True, kw_only=True):
    """Copies between host and device, and how many of them came from pageable memory.

    Attributes:
        h2d_pageable_n: 0 also if ``TraceRecord.missing`` says that their memory is unknown.
        h2d_pageable_s: Seconds of the copies from pageable memory.
        h2d_exposed_s: Seconds of copies to the device during which no kernel ran.
        h2d_pageable_exposed_s: The same for copies from pageable memory.
        h2d_bytes: None if the trace has no sizes.
        d2h_exposed_s: Seconds of copies from the device during which no kernel ran.
        d2d_s: Copies inside the device.
        sites: Largest first, at most 16.
    """

    h2d_s: float
    h2d_n: int
    h2d_pageable_n: int
    d2h_s: float
    d2h_n: int
    h2d_pageable_s: float = 0.0
    h2d_exposed_s: float = 0.0
    h2d_pageable_exposed_s: float = 0.0
    h2d_bytes: int | None = None
    d2h_exposed_s: float = 0.0
    d2h_bytes: int | None = None
    d2d_s: float = 0.0
    d2d_n: int = 0
    sites: tuple[CopySite, ...] = ()


class SyncSite(Record, frozen=True, kw_only=True):
    """One place that makes the host wait for the device.

    Attributes:
        site: ``file:line`` of the user's code where stacks were recorded, else the operator or runtime call.
        idle_after_s: Seconds in which the device was then idle because the host had waited: its cost. None in a trace
            without device work.
        function: The user's function; empty without stacks.
        in_step_n: Calls within steps.
    """

    site: str
    call: str
    n: int
    wait_s: float
    idle_after_s: float | None = None
    function: str = ""
    in_step_n: int = 0


class Syncs(Record, frozen=True, kw_only=True):
    """Synchronizing calls; ``item_n`` counts those made to read a single number.

    Attributes:
        n: Stream and device synchronizations.
        item_n: Calls of ``aten::item``.
        wait_s: Host seconds blocked in the ``n`` calls.
        sites: Costliest first, at most 32; blocking copies and, on a CPU, ``aten::item`` are among them.
        idle_after_s: Seconds in which the device was idle after all sites; None in a trace without device work.
        blocking_copy_n: Copies to the host whose call returned only after the copy: the host waited for the device.
        blocking_copy_wait_s: Host seconds blocked in these copies.
    """

    n: int
    item_n: int
    wait_s: float
    sites: tuple[SyncSite, ...] = ()
    idle_after_s: float | None = None
    blocking_copy_n: int = 0
    blocking_copy_wait_s: float = 0.0


class KernelTime(Record, frozen=True, kw_only=True):
    """A device kernel by name; ``kind`` is matmul, convolution, attention, elementwise, reduction, … or other.

    Attributes:
        occupancy: Estimated achieved occupancy, from 0 to 1, mean weighted by time; None if the trace lacks it.
        blocks_per_sm: Thread blocks ÷ multiprocessors of the device; None likewise.
    """

    name: str
    kind: str
    total_s: float
    n: int
    share: float
    occupancy: float | None = None
    blocks_per_sm: float | None = None


class KindTime(Record, frozen=True, kw_only=True):
    """Kernels of one kind; ``share`` is of the time of all kernels."""

    total_s: float
    n: int
    share: float


class Kernels(Record, frozen=True, kw_only=True):
    """Kernels; ``median_s`` and ``tensor_core_fraction`` are None without any.

    Attributes:
        tensor_core_fraction: Time of kernels that use matrix units (by their names) ÷ time of all kernels.
        matrix_s: Seconds in matmul, convolution and attention kernels: those that could use matrix units.
        matrix_tensor_core_fraction: Fraction of ``matrix_s`` on matrix units, of kernels whose names show it; None
            without any.
        matrix_precisions: Seconds of ``matrix_s`` by the precision in the kernel's name (``fp32``, ``tf32``, ``fp16``,
            ``bf16``, ``fp64``, ``fp8``, ``int8``, ``unknown``).
        layout_s: Seconds in kernels that only convert between NCHW and NHWC.
        n_per_step: Kernels in the median step (in a trace without steps, all).
        occupancy: Estimated achieved occupancy (warps on a multiprocessor ÷ the most it can hold), from 0 to 1, mean
            of all kernels weighted by time; None if the trace lacks it.
        sm_efficiency: Fraction of the multiprocessors that had a thread block, mean over the analyzed span including
            idle time; None if the trace lacks blocks per multiprocessor.
    """

    median_s: float | None
    tensor_core_fraction: float | None
    top: tuple[KernelTime, ...] = ()
    matrix_s: float = 0.0
    matrix_tensor_core_fraction: float | None = None
    matrix_precisions: dict[str, float] = {}
    kinds: dict[str, KindTime] = {}
    layout_s: float = 0.0
    layout_n: int = 0
    n_per_step: float = 0.0
    occupancy: float | None = None
    sm_efficiency: float | None = None


class DeviceActivity(Record, frozen=True, kw_only=True):
    """Work of the device in the analyzed span.

    Attributes:
        kind: ``"cuda"``, ``"rocm"`` or ``"unknown"``.
        span_s: Seconds from the first to the last device event.
        busy_s: Seconds in which any stream worked.
        compute_s: Seconds in which any kernel but a collective ran (setting memory counts as one).
        communication_exposed_s: Seconds of collectives during which no other kernel ran.
        memcpy_exposed_s: Seconds of copies during which neither kernels nor collectives ran.
        memory_bytes: Memory of the device; None if unknown.
        capability: E.g. ``"8.0"``; None if unknown.
    """

    kind: str
    span_s: float
    busy_s: float
    idle_s: float
    compute_s: float
    communication_s: float
    communication_exposed_s: float
    memcpy_s: float
    memcpy_exposed_s: float
    n_devices: int = 1
    n_streams: int = 1
    memory_bytes: int | None = None
    capability: str | None = None
