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
        ancestor_level: The common ancestor of their PCIe paths, as a level of NVML: 0 the board, 10 one switch, 20
            several switches, 30 the host bridge, 40 the NUMA node, 50 only the system (the path crosses NUMA nodes).
        has_nvlink: Whether they are connected by NVLink; None if unknown.
    """

    devices: tuple[str, str]
    ancestor_level: int
    has_nvlink: bool | None = None


class GpuTelemetry(Record, frozen=True, kw_only=True):
    """One device that this process trains on, sampled after the first step; ``Session.missing`` has reasons for None.

    Attributes:
        device: torch's name, e.g. ``"cuda:0"``.
        uuid: UUID from the driver, e.g. ``"GPU-…"`` or ``"MIG-…"``; None if unknown.
        pci_bus_id: E.g. ``"00000000:3B:00.0"``.
        source: ``"nvml"`` or ``"torch"`` (AMD, by torch's own functions).
        matched_by: How it was found in ``source``: ``"uuid"``, ``"pci"``, ``"visible devices"`` or ``"index"``.
        is_mig: Whether it is a MIG slice: utilization and energy are then unknown, power and clocks those of the whole
            device.
        n_samples: Samples taken after the first step.
        utilisation_fraction: Fraction of time in which any kernel ran, however little of the device it used.
        memory_utilisation_fraction: Fraction of time in which the device's memory was read or written.
        default_power_limit_w: Power limit of the manufacturer.
        slowdown_temperature_c: Temperature at which the device lowers its clocks.
        throttle_fractions: Fraction of time in which clocks were throttled, by reason: ``sw_power_cap``,
            ``sw_thermal``, ``hw_thermal``, ``hw_power_brake``, ``hw_slowdown``, ``sync_boost``,
            ``application_clocks``, ``board_limit``, ``reliability``; idle is not a reason. None if unknown.
        pcie_generation: Highest generation under load; an idle link slows down to save power.
        pcie_width: Highest number of lanes under load.
        max_pcie_generation: Highest generation that device and slot support.
        pcie_receive_bytes_per_s: Traffic to the device.
        pcie_send_bytes_per_s: Traffic from the device.
        other_processes: Most other processes that computed on it at once; None if unknown.
        other_memory_bytes: Device memory of these processes; None if unknown.
        numa_node: NUMA node of its slot; None on machines with one node, or if unknown.
        links: Connections between all devices of the node's ranks, in pairs; None with one device, or if unknown.
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
    """The disk of the training dataset, by the first path found in the dataset object.

    Attributes:
        file_system: E.g. ``"ext4"``, ``"nfs4"``.
        is_rotational: Whether it is a spinning disk; None if unknown.
    """

    mount: str
    file_system: str
    source: str
    is_network: bool
    is_rotational: bool | None = None


class HostTelemetry(Record, frozen=True, kw_only=True):
    """The host, sampled after the first step. ``workers`` are loader workers: child processes that run this program.

    Attributes:
        n_samples: Samples taken after the first step.
        process_cpu_cores: Cores that this process kept busy (1.0 is one core).
        workers_cpu_cores: Cores that all workers together kept busy; None without workers.
        workers_blocked_fraction: Fraction of the workers' time in which they neither ran nor queued for a core: they
            waited for storage, a network, a lock, or for work. None without workers or if unknown.
        workers_queueing_fraction: Fraction of the workers' time in which they queued for a core; None if unknown.
        fetch_blocked_fraction: Fraction of the time in ``next`` of the loader in which the training thread neither ran
            nor queued for a core; with workers, it waited for them. None if unknown.
        fetch_queueing_fraction: Fraction of that time in which it queued for a core.
        process_queueing_fraction: Fraction of the training thread's time in which it queued for a core.
        cpu_busy_fraction: Utilization of the cores that this process may use, by all programs.
        iowait_fraction: Fraction of these cores' time in which they were idle while a process waited for a disk.
        steal_fraction: Fraction of these cores' time that the hypervisor took.
        involuntary_switches_per_s: How often threads of this process were preempted.
        voluntary_switches_per_s: How often they gave up their core in order to wait.
        read_bytes_per_s: Reads from storage by this process and its workers.
        write_bytes_per_s: Writes to storage by this process and its workers.
        disk_busy_fraction: Fraction of time in which the busiest disk served requests; None if unknown.
        rss_bytes: Resident memory of this process and its workers; shared pages count in each.
        available_bytes: Memory that the system can still allocate.
        shm_used_bytes: Use of /dev/shm by all programs.
        throttle_periods: Periods of the cgroup's quota; None without a quota.
        throttled_periods: Periods in which the process was stopped because the quota was exhausted.
        throttled_s: Time stopped, summed over cores.
        n_torch_threads: Threads that torch uses for one operation in this process.
        n_openmp_threads: Value of OMP_NUM_THREADS; None if it is not set.
        n_mkl_threads: Value of MKL_NUM_THREADS; None if it is not set.
        process_numa_nodes: NUMA nodes of the cores that this process may use; empty if unknown.
        off_device_node_fraction: Fraction of samples in which the training thread ran on another NUMA node than the
            device's; None with one node or without a device.
        cpu_mhz: Clock of the training thread's core.
        base_cpu_mhz: Guaranteed clock; None if unknown.
        max_cpu_mhz: Highest clock; None if unknown.
        cpu_governor: E.g. ``"performance"``; None if unknown.
        batch_bytes: Bytes of the tensors in the first training batch; None if it has none.
        batch_objects: Objects of that batch, its containers and tensors included, of which at most 1,000 are counted;
            None without a batch, and where the user's ``transfer_batch_to_device`` moves it.
        batch_entry: How code names the item of that batch with the most of them, e.g. ``'["boxes"]'``; else empty.
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
    batch_objects: int | None = None
    batch_entry: str = ""
    dataset_disk: DatasetDisk | None = None


class Energy(Record, frozen=True, kw_only=True):
    """Energy from ``setup`` on. Values that could not be metered are None and excluded from sums.

    Attributes:
        gpu_j: Energy of this process's device; None if not metered.
        gpu_basis: ``"counter"`` (of the driver), ``"integrated power"``, or empty.
        cpu_j: Energy of all CPU packages, with all programs; None if not metered.
        cpu_basis: ``"RAPL"``, or empty.
        metered_j: The sum of what was metered; None if nothing was.
        epoch_j: Mean ``metered_j`` per training epoch; None before one has ended.
        sample_j: Mean ``metered_j`` per sample; None if the number of samples is unknown.
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
    """Cost of the run at the user's rates; prices are in the currency of the rate.

    Attributes:
        hour_price: Price of the whole run per hour; None if not given.
        run_price: Price of the run until now.
        epoch_price: Price of a mean training epoch; None before one has ended.
        gco2_per_kwh: Grams of CO2 equivalent per kWh; None if not given.
        run_gco2: Grams of CO2 equivalent of the metered energy; None if none was metered.
    """

    hour_price: float | None = None
    run_price: float | None = None
    epoch_price: float | None = None
    gco2_per_kwh: float | None = None
    gco2_basis: str = ""
    run_gco2: float | None = None


class TelemetryPoint(Record, frozen=True, kw_only=True):
    """Means of samples over an interval of the run.

    Attributes:
        start_s: Start of the interval in seconds since the start of the run, as ``Block.start_s``.
        step: Steps finished by then.
        values: Means by metric; names of a device's metrics begin with the device: ``"cuda:0 sm_clock_mhz"``.
    """

    start_s: float
    step: int
    n_samples: int
    values: dict[str, float]


class Telemetry(Record, frozen=True, kw_only=True):
    """Telemetry of the run.

    Attributes:
        hz: Samples per second after the first seconds, which are sampled more often; 0 if nothing was sampled.
        sampler_core_fraction: Fraction of a core that sampling uses; None in the first second.
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
