"""Memory of a run: by phase, by content, over time, and when it ran out."""

from typing import Literal

from .base import Record


class PhaseMemory(Record, frozen=True, kw_only=True):
    """A device's allocator at the end of one phase of the step, over the sampled steps.

    Attributes:
        phase: ``transfer``, ``forward``, ``zero_grad``, ``backward`` or ``optimizer``.
        allocated_bytes: In live tensors, median.
        reserved_bytes: Held from the driver, median.
        peak_bytes: The run's peak of allocated bytes, if this phase raised it in a sampled step; else None. Peaks are
            not reset, so a phase below the run's peak has no peak of its own.
    """

    phase: str
    n: int
    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int | None = None


class HostPhaseMemory(Record, frozen=True, kw_only=True):
    """This process's resident memory at the end of one phase of the step, median over the sampled steps."""

    phase: str
    n: int
    rss_bytes: int


class DeviceMemory(Record, frozen=True, kw_only=True):
    """torch's caching allocator on one device, at its highest during the run.

    Attributes:
        device: E.g. ``"cuda:0"``.
        peak_allocated_bytes: Most bytes in live tensors.
        peak_reserved_bytes: Most bytes held from the driver.
        total_bytes: The device's memory; None if unknown.
        alloc_retries: How often the cache was flushed to satisfy a request; None if unknown.
        allocated_bytes: Last reading.
        reserved_bytes: Last reading.
        inactive_split_bytes: Most bytes in free parts of used blocks, which cannot be returned to the driver; None if
            unknown.
        ooms: Requests that failed even after a flush; None if unknown.
        phases: Memory after each phase of the step, in order; empty if no step was sampled.
        peak_phase: The phase that last raised the run's peak; None if unknown.
    """

    device: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    total_bytes: int | None = None
    alloc_retries: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    inactive_split_bytes: int | None = None
    ooms: int | None = None
    phases: tuple[PhaseMemory, ...] = ()
    peak_phase: str | None = None


class HostMemory(Record, frozen=True, kw_only=True):
    """Memory of the host.

    Attributes:
        rss_bytes: Resident memory of this process, last reading.
        peak_rss_bytes: Peak resident memory of this process; None if unknown.
        workers_rss_bytes: Highest reading of the resident memory of all child processes together. Pages shared with
            this process count again.
        n_workers: Highest number of child processes.
        used_bytes: Highest reading of the memory that all programs use within the limit: the cgroup's memory without
            reclaimable file cache, or the machine's memory that is not available. None if unknown.
        limit_bytes: The cgroup's limit, or the machine's memory; None if unknown.
        limit_basis: ``"cgroup"`` or ``"machine"``.
        swapped_bytes: Swapped memory of this process and its children; None if unknown.
        phases: Memory after each phase of the step; empty if no step was sampled.
    """

    rss_bytes: int
    peak_rss_bytes: int | None = None
    workers_rss_bytes: int = 0
    n_workers: int = 0
    used_bytes: int | None = None
    limit_bytes: int | None = None
    limit_basis: str = ""
    swapped_bytes: int | None = None
    phases: tuple[HostPhaseMemory, ...] = ()


class ModuleMemory(Record, frozen=True, kw_only=True):
    """The part of a breakdown that one top-level module holds.

    Attributes:
        name: E.g. ``"encoder"``; ``""`` for the root module itself.
        activations_bytes: None if they were not measured by module.
    """

    name: str
    parameters_bytes: int = 0
    gradients_bytes: int = 0
    optimizer_bytes: int = 0
    buffers_bytes: int = 0
    activations_bytes: int | None = None


class Breakdown(Record, frozen=True, kw_only=True):
    """Memory in use on the training device, each storage counted once; of sharded tensors this rank's part.

    Attributes:
        device: E.g. ``"cuda:0"`` or ``"cpu"``.
        parameters_bytes: Parameters, including frozen ones.
        gradients_bytes: Most bytes of gradients in the sampled step, or the expected ones; see ``gradients_basis``.
        gradients_basis: ``"held"``, or ``"expected"`` if there was no gradient: one for each trainable parameter.
        optimizer_bytes: States of all optimizers; None if unknown.
        optimizer_basis: ``"held"``, or ``"expected"`` before the first optimizer step; the reason if it is None.
        copies_bytes: Parameters and buffers of modules that callbacks hold, e.g. an averaged copy of the weights.
        batch_bytes: One batch; None if there was none.
        activations_bytes: Tensors that the forward pass keeps for the backward pass; None if unknown.
        activations_basis: ``"saved tensors"`` in one step, or ``"rest of the peak"``; the reason if it is None.
        n_samples: Batch size when the activations were measured; None if unknown.
        step: The step in which they were measured; None outside a run.
        modules: Memory by top-level module, largest first.
        peak_bytes: The device's peak of allocated memory; None on the host, whose peak includes more than tensors.
        rest_bytes: Peak minus these components: temporary buffers, workspaces, other tensors.
        cache_bytes: Reserved memory beyond the peak of allocated memory.
        elsewhere_bytes: Tensors of these components on other devices, e.g. offloaded optimizer states.
    """

    device: str
    parameters_bytes: int = 0
    gradients_bytes: int = 0
    gradients_basis: str = "held"
    optimizer_bytes: int | None = None
    optimizer_basis: str = "held"
    buffers_bytes: int = 0
    copies_bytes: int = 0
    batch_bytes: int | None = None
    activations_bytes: int | None = None
    activations_basis: str = ""
    n_samples: int | None = None
    step: int | None = None
    modules: tuple[ModuleMemory, ...] = ()
    peak_bytes: int | None = None
    rest_bytes: int | None = None
    cache_bytes: int | None = None
    elsewhere_bytes: int = 0

    @property
    def parts_bytes(self) -> int:
        """Sum of the components; unknown ones count as 0."""
        parts = (self.parameters_bytes, self.gradients_bytes, self.optimizer_bytes, self.buffers_bytes,
                 self.copies_bytes, self.batch_bytes, self.activations_bytes)  # fmt: skip
        return sum(part or 0 for part in parts)


class Suspect(Record, frozen=True, kw_only=True):
    """An object that grew between two inspections of the live objects.

    Attributes:
        name: Where it is referenced, e.g. ``"LitModel.losses"``.
        kind: Type name of the container, or ``"graph"`` for one tensor whose autograd graph grows.
        n_items: Elements of a container or nodes of a graph, at the second inspection.
        tensor_bytes: Bytes of the container's tensors and numpy arrays, each storage once, without saved tensors of
            their graphs; None for a graph.
        n_with_graph: Elements that have an autograd graph.
    """

    name: str
    kind: str
    n_items: int
    items_per_step: float
    tensor_bytes: int | None = None
    n_with_graph: int = 0


class Growth(Record, frozen=True, kw_only=True):
    """The trend of memory at the same point of the step.

    Attributes:
        where: ``"host"`` (resident memory of this process without the heap's free blocks), ``"heap"`` (memory
            allocated from its C heap), ``"workers"`` (mean resident memory), or the device.
        level_bytes: The last reading.
        bytes_per_step: Median of all pairwise slopes (Theil–Sen).
        low_bytes_per_step: Lower end of its 95 % interval, widened for autocorrelated readings.
        is_steady: Whether all quarters of the readings rise alike: no warm-up, no single jump.
        suspects: Objects that grew in this time, largest first.
        census: How suspects were searched for; empty if they were not.
    """

    where: str
    n: int
    first_step: int
    last_step: int
    level_bytes: int
    bytes_per_step: float
    low_bytes_per_step: float
    high_bytes_per_step: float
    is_steady: bool
    suspects: tuple[Suspect, ...] = ()
    census: str = ""


class Headroom(Record, frozen=True, kw_only=True):
    """Memory as a fixed part and a part for each sample of the batch.

    Attributes:
        margin_fraction: Fraction of the capacity left free for fragmentation and noise.
        largest_batch: Largest batch that fits within the margin; 0 if not even one sample does.
        basis: ``"observed batches"``, ``"one batch at the peak"`` or ``"saved tensors of one batch"``.
    """

    device: str
    capacity_bytes: int
    margin_fraction: float
    fixed_bytes: int
    per_sample_bytes: float
    n_samples: int
    largest_batch: int
    basis: str


class LiveTensor(Record, frozen=True, kw_only=True):
    """One of the largest live tensors.

    Attributes:
        name: Its name in the model, or a description; empty if unknown.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    n_bytes: int


class AllocationSite(Record, frozen=True, kw_only=True):
    """Memory held at the end of an allocation history, by the line of Python that allocated it."""

    where: str
    n_bytes: int
    n: int


class OutOfMemory(Record, frozen=True, kw_only=True):
    """What was known when memory ran out.

    Attributes:
        where: ``"device"``, ``"host"``, ``"worker"`` or ``"shm"``.
        error: Type and message of the exception.
        step: Batches done in this run before it.
        phase: The part of the step in which it happened; empty if unknown.
        code: The user's innermost line, e.g. ``"model.py:31 in forward"``; empty if unknown.
        requested_bytes: Size of the failed request; None if unknown.
        batch_shapes: Shapes of the batch's tensors, by their path in it.
        n_samples: Size of that batch; None if unknown.
        largest_tensors: Largest live tensors, largest first.
        timeline: ``(step, bytes)`` over the run, as sampled: allocated memory of the device; on a CPU run, resident
            memory without the heap's free blocks.
        history: ``(event, bytes)`` from the allocation history; empty without ``memory_snapshot=True``.
        history_sites: Memory held at its end by line, largest first.
        snapshot_file: The dumped snapshot, in the run's folder; None without one.
        post_mortem_file: Text of all this, in the run's folder; None if it could not be written.
        checkpoint: Path of the latest checkpoint of this run; None if there is none.
    """

    where: Literal["device", "host", "worker", "shm"]
    error: str
    step: int
    phase: str = ""
    code: str = ""
    requested_bytes: int | None = None
    batch_shapes: dict[str, tuple[int, ...]] = {}
    n_samples: int | None = None
    largest_tensors: tuple[LiveTensor, ...] = ()
    timeline: tuple[tuple[int, int], ...] = ()
    history: tuple[tuple[int, int], ...] = ()
    history_sites: tuple[AllocationSite, ...] = ()
    snapshot_file: str | None = None
    post_mortem_file: str | None = None
    checkpoint: str | None = None


class Memory(Record, frozen=True, kw_only=True):
    """Memory of the run. Peaks are read, never reset: a user's own tracking stays as it was.

    Attributes:
        devices: One entry per device in use; empty on a CPU run, and if more was allocated before the run.
        host_rss_bytes: Resident memory of this process, last reading.
        host_peak_rss_bytes: Its peak, as the kernel reports it; None if it does not.
        host: Memory of the host in detail; None if it was not read.
        breakdown: Memory in use by component; None if it was not measured.
        growth: Trends, one for each place that was measured long enough.
        held_graphs: Attributes of the module or callbacks that collect tensors with their autograd graphs from step to
            step, however little memory that takes.
        oom: What was known when memory ran out; None if it did not.
    """

    devices: tuple[DeviceMemory, ...] = ()
    host_rss_bytes: int | None = None
    host_peak_rss_bytes: int | None = None
    host: HostMemory | None = None
    breakdown: Breakdown | None = None
    growth: tuple[Growth, ...] = ()
    held_graphs: tuple[Suspect, ...] = ()
    headroom: Headroom | None = None
    oom: OutOfMemory | None = None
