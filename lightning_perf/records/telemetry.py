"""Telemetry of devices and host during the training, energy and cost."""

from .base import Record


class Spread(Record, frozen=True, kw_only=True):
    """Distribution of sampled values, weighted by time, in the unit that the field names."""

    n: int
    mean: float
    p5: float
    p50: float
    p95: float
    min: float
    max: float


class DeviceLink(Record, frozen=True, kw_only=True):
    """The connection of two devices of one node.

    Attributes:
        devices: torch's names of both, e.g. ``("cuda:0", "cuda:1")``.
        ancestor_level: What their PCIe paths have in common, as NVML counts: 0 the board, 10 one switch, 20 several
            switches, 30 the host bridge, 40 the NUMA node, 50 only the system: the path crosses NUMA nodes.
        has_nvlink: Whether they reach each other through NVLink; None if unknown.
    """

    devices: tuple[str, str]
    ancestor_level: int
    has_nvlink: bool | None = None


class GpuTelemetry(Record, frozen=True, kw_only=True):
    """One device that this process trains on, sampled after the first step. Reasons for None in ``Session.missing``.

    Attributes:
        device: torch's name, e.g. ``"cuda:0"``.
        uuid: The driver's, e.g. ``"GPU-…"`` or ``"MIG-…"``; None if unknown.
        pci_bus_id: E.g. ``"00000000:3B:00.0"``.
        source: ``"nvml"`` or ``"torch"`` (AMD, by torch's own functions).
        matched_by: How torch's device was found there: ``"uuid"``, ``"pci"``, ``"visible devices"``, ``"index"``.
        is_mig: A slice of a device: utilization and energy are then unknown, power and clocks are the whole device's.
        n_samples: Samples taken after the first step.
        utilisation_fraction: Share of time in which any kernel ran, however little of the device it used.
        memory_utilisation_fraction: Time in which the device's memory was read or written.
        default_power_limit_w: As delivered.
        slowdown_temperature_c: At which the device slows down by itself.
        throttle_fractions: Share of the time in which clocks were held back, by reason: ``sw_power_cap``,
            ``sw_thermal``, ``hw_thermal``, ``hw_power_brake``, ``hw_slowdown``, ``sync_boost``,
            ``application_clocks``, ``board_limit``, ``reliability``; idle is not one. None if unknown.
        pcie_generation: Highest seen while it worked: an idle link slows down to save power.
        pcie_width: Highest number of lanes seen while it worked.
        max_pcie_generation: Of device and slot together.
        pcie_receive_bytes_per_s: To the device.
        pcie_send_bytes_per_s: From the device.
        other_processes: Most processes of others seen computing on it at once; None if unknown.
        other_memory_bytes: What they held then; None if unknown.
        numa_node: Of its slot; None on machines with one, or if unknown.
        links: Between all devices of the node's ranks, in pairs; None with one device, or if unknown.
    """

    device: str
    name: str
    source: str
    matched_by: str
    uuid: str | None = None
    pci_bus_id: str | None = None
    is_mig: bool = False
    n_samples: int = 0
    utilisation_fraction: Spread | None = None
    memory_utilisation_fraction: Spread | None = None
    memory_used_bytes: Spread | None = None
    memory_total_bytes: int | None = None
    power_w: Spread | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    temperature_c: Spread | None = None
    slowdown_temperature_c: float | None = None
    sm_clock_mhz: Spread | None = None
    max_sm_clock_mhz: float | None = None
    memory_clock_mhz: Spread | None = None
    throttle_fractions: dict[str, float] | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    max_pcie_generation: int | None = None
    max_pcie_width: int | None = None
    pcie_receive_bytes_per_s: Spread | None = None
    pcie_send_bytes_per_s: Spread | None = None
    other_processes: int | None = None
    other_memory_bytes: int | None = None
    numa_node: int | None = None
    links: tuple[DeviceLink, ...] | None = None


class DatasetDisk(Record, frozen=True, kw_only=True):
    """Where the training dataset lies, by the first path found in the dataset object.

    Attributes:
        file_system: E.g. ``"ext4"``, ``"nfs4"``.
        is_rotational: A disk that spins; None if unknown.
    """

    mount: str
    file_system: str
    source: str
    is_network: bool
    is_rotational: bool | None = None


class HostTelemetry(Record, frozen=True, kw_only=True):
    """The host, sampled after the first step. ``workers`` are the loader's: descendants that run this program.

    Attributes:
        n_samples: Samples taken after the first step.
        process_cpu_cores: Cores that this process kept busy (1.0 is one core).
        workers_cpu_cores: Cores that the workers kept busy together; None without workers.
        workers_blocked_fraction: Of the workers' time, neither on a core nor queueing for one: they waited for storage,
            a network, a lock, or for work. None without workers or if unknown.
        workers_queueing_fraction: Of the workers' time, ready to run without a core; None if unknown.
        fetch_blocked_fraction: Of the training process's time in ``next`` of its loader, neither on a core nor queueing
            for one; None if unknown. With workers it is the waiting for them.
        fetch_queueing_fraction: Of that time, ready to run but without a core.
        process_queueing_fraction: Of the training thread's time, ready to run but without a core.
        cpu_busy_fraction: Of the cores that this process may use, by anybody.
        iowait_fraction: Of these cores' time, idle while something waited for a disk.
        steal_fraction: Of these cores' time, taken by the hypervisor.
        involuntary_switches_per_s: Times that this process (all threads) was moved off its core.
        voluntary_switches_per_s: Times that it gave its core up, to wait.
        read_bytes_per_s: From storage, this process and its workers.
        write_bytes_per_s: To storage, this process and its workers.
        disk_busy_fraction: Of the time, the busiest disk had a request to serve; None if unknown.
        rss_bytes: Resident memory of this process and its workers; shared pages count in each.
        available_bytes: Memory that the system can still give.
        shm_used_bytes: /dev/shm, by anybody.
        throttle_periods: Periods of the cgroup's quota that passed; None without a quota.
        throttled_periods: Of these, those in which it was stopped because its quota was used up.
        throttled_s: Time stopped, added up over cores.
        n_torch_threads: Of this process for one operation.
        n_openmp_threads: By OMP_NUM_THREADS; None when not set.
        n_mkl_threads: By MKL_NUM_THREADS; None when not set.
        process_numa_nodes: Nodes of the cores that this process may use; empty if not told.
        off_device_node_fraction: Of the samples, the training thread ran on another node than the device's; None where
            there is one node or no device.
        cpu_mhz: Clock of the core that the training thread was on.
        base_cpu_mhz: Guaranteed clock; None if unknown.
        max_cpu_mhz: Highest clock; None if unknown.
        cpu_governor: E.g. ``"performance"``; None if unknown.
        batch_bytes: Tensors of the first training batch; None if it has none.
        dataset_disk: None if the dataset names no path.
    """

    n_samples: int = 0
    process_cpu_cores: Spread | None = None
    workers_cpu_cores: Spread | None = None
    n_workers: int = 0
    workers_blocked_fraction: float | None = None
    workers_queueing_fraction: float | None = None
    fetch_blocked_fraction: float | None = None
    fetch_queueing_fraction: float | None = None
    process_queueing_fraction: float | None = None
    cpu_busy_fraction: Spread | None = None
    iowait_fraction: Spread | None = None
    steal_fraction: Spread | None = None
    load_1min: Spread | None = None
    involuntary_switches_per_s: Spread | None = None
    voluntary_switches_per_s: Spread | None = None
    read_bytes_per_s: Spread | None = None
    write_bytes_per_s: Spread | None = None
    disk_busy_fraction: Spread | None = None
    rss_bytes: Spread | None = None
    available_bytes: Spread | None = None
    shm_used_bytes: Spread | None = None
    throttle_periods: int | None = None
    throttled_periods: int | None = None
    throttled_s: float | None = None
    n_torch_threads: int | None = None
    n_openmp_threads: int | None = None
    n_mkl_threads: int | None = None
    process_numa_nodes: tuple[int, ...] = ()
    off_device_node_fraction: float | None = None
    cpu_mhz: Spread | None = None
    base_cpu_mhz: float | None = None
    max_cpu_mhz: float | None = None
    cpu_governor: str | None = None
    batch_bytes: int | None = None
    dataset_disk: DatasetDisk | None = None


class Energy(Record, frozen=True, kw_only=True):
    """Energy from ``setup`` on. Values that could not be metered are None and excluded from sums.

    Attributes:
        gpu_j: This process's device; None when not metered.
        gpu_basis: ``"counter"`` (the driver's), ``"integrated power"``, or empty.
        cpu_j: All CPU packages, whatever ran on them; None when not metered.
        cpu_basis: ``"RAPL"``, or empty.
        metered_j: The sum of what was metered; None if nothing was.
        epoch_j: Mean of ``metered_j`` over the training epochs that ended; None before the first.
        sample_j: The same by sample; None if samples are not known.
    """

    span_s: float
    gpu_j: float | None = None
    gpu_basis: str = ""
    cpu_j: float | None = None
    cpu_basis: str = ""
    metered_j: float | None = None
    epoch_j: float | None = None
    sample_j: float | None = None


class Cost(Record, frozen=True, kw_only=True):
    """What the run cost by the rates that the user gave; money in the currency of the rate.

    Attributes:
        hour_price: The rate of the whole run per hour; None when not given.
        run_price: Up to now.
        epoch_price: By the mean training epoch; None before the first ended.
        gco2_per_kwh: Grams of CO2 equivalent per kWh; None when not given.
        run_gco2: Of the energy that was metered; None if none was.
    """

    hour_price: float | None = None
    run_price: float | None = None
    epoch_price: float | None = None
    gco2_per_kwh: float | None = None
    gco2_basis: str = ""
    run_gco2: float | None = None


class TelemetryPoint(Record, frozen=True, kw_only=True):
    """A moment of the run, by the clock of ``Block.start_s``.

    Attributes:
        start_s: Seconds since the start of the run at which it begins.
        step: Steps finished by then.
        values: Means by metric; a device's begin with its name: ``"cuda:0 sm_clock_mhz"``, ``"iowait_fraction"`` ….
    """

    start_s: float
    step: int
    n_samples: int
    values: dict[str, float]


class Telemetry(Record, frozen=True, kw_only=True):
    """Telemetry of the run.

    Attributes:
        hz: Samples per second once the first seconds, sampled more often, are over; 0 where nothing was sampled.
        sampler_core_fraction: Of one core, what the sampling itself used; None before it has run for a second.
        devices: The devices of this process; empty on a CPU run and where none can be read.
        energy: None if nothing could be metered.
        cost: None if no rate was given.
        timeline: The course of the run, at most 128 points, from before the first step on.
    """

    hz: float
    sampler_core_fraction: float | None = None
    devices: tuple[GpuTelemetry, ...] = ()
    host: HostTelemetry | None = None
    energy: Energy | None = None
    cost: Cost | None = None
    timeline: tuple[TelemetryPoint, ...] = ()
