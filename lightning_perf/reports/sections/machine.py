"""The machine during the run: devices, host, energy, cost."""

from lightning_perf.records import Cost, Energy, Finding, GpuTelemetry, HostTelemetry, Session
from lightning_perf.reports.wording import count, known, line, number, share, size

_JOULES_PER_KWH = 3.6e6
_HOURS_A_DAY = 24
_DISTURBING_SHARE = 0.2
"""Share of the cores that other programs must use to be named next to the verdict."""
_DISTURBING_CORES = 0.3


def machine_facts(session: Session) -> list[tuple[str, str]]:
    """Return facts by label; empty if nothing was sampled."""
    telemetry = session.telemetry
    if telemetry is None:
        return []
    facts = [("Device", _device(device)) for device in telemetry.devices]
    if telemetry.host is not None and telemetry.host.n_samples:
        facts.append(("Host", _host(telemetry.host)))
    if telemetry.energy is not None:
        facts.append(("Energy", _energy(telemetry.energy)))
    if telemetry.cost is not None:
        facts += [("Cost", _cost(telemetry.cost)), ("Per day", _findings_cost(session))]
    return [(label, fact) for label, fact in facts if fact]


def other_programs_fact(session: Session) -> str:
    """Return how many cores other programs used; empty if that is not known or too few to matter."""
    host = session.telemetry.host if session.telemetry is not None else None
    if host is None or host.cpu_busy_fraction is None or host.process_cpu_cores is None or session.run.world_size > 1:
        return ""
    usable = session.machine.usable_cores
    own = host.process_cpu_cores.mean + (host.workers_cpu_cores.mean if host.workers_cpu_cores is not None else 0.0)
    others = host.cpu_busy_fraction.mean * usable - own
    if others < max(_DISTURBING_SHARE * usable, _DISTURBING_CORES):
        return ""
    return f"other programs used {others:.1f} of {count(round(usable), 'core')}"


def _findings_cost(session: Session) -> str:
    """Return the daily cost of each finding at the user's price; empty without a price or a speedup."""
    costs = ((finding, finding_cost(session, finding)) for finding in session.findings)
    texts = [f"{line(finding.code, 16)} costs {amount}" for finding, amount in costs if amount]
    return ", ".join(texts) + " (shared time counts more than once)" * (len(texts) > 1)


def finding_cost(session: Session, finding: Finding) -> str:
    """Return the cost of a finding per day of training, in the user's currency; empty without price or speedup."""
    cost = session.telemetry.cost if session.telemetry is not None else None
    if cost is None or not cost.hour_price or finding.gain is None or finding.gain.high < 1.005:
        return ""
    gain, day_price = finding.gain, cost.hour_price * _HOURS_A_DAY
    high = number(day_price * (1 - 1 / gain.high))
    return f"up to {high}" if gain.low < 1.005 else f"{number(day_price * (1 - 1 / gain.low))} to {high}"


def _device(device: GpuTelemetry) -> str:
    parts = [line(device.device, 16), count(device.n_samples, "sample")]
    if device.utilisation_fraction is not None:
        use = device.utilisation_fraction
        parts.append(f"utilization {share(use.mean)} (p5 {share(use.p5)}, p95 {share(use.p95)})")
    if device.power_w is not None:
        limit = f" of {number(device.power_limit_w)}" if device.power_limit_w else ""
        parts.append(f"{number(device.power_w.mean)}{limit} W")
    if device.temperature_c is not None:
        parts.append(f"{number(device.temperature_c.max)} °C max")
    if device.sm_clock_mhz is not None:
        most = f" of {number(device.max_sm_clock_mhz)}" if device.max_sm_clock_mhz else ""
        parts.append(f"{number(round(device.sm_clock_mhz.mean))}{most} MHz")
    held = {reason: part for reason, part in (device.throttle_fractions or {}).items() if part >= 0.01}
    parts += [f"{line(reason.replace('_', ' '), 24)} {share(part)} of the time" for reason, part in held.items()]
    if device.pcie_generation and device.pcie_width:
        parts.append(f"PCIe {device.pcie_generation} x{device.pcie_width}")
    return ", ".join(parts)


def _host(host: HostTelemetry) -> str:
    throttled = (host.throttled_periods or 0) / host.throttle_periods if host.throttle_periods else None
    parts = (
        known(host.process_cpu_cores, lambda cores: f"training {number(cores.mean)} cores busy"),
        known(host.workers_cpu_cores, lambda cores: f"{host.n_workers} workers {number(cores.mean)} cores busy"),
        known(host.cpu_busy_fraction, lambda busy: f"all usable cores {share(busy.mean)} busy"),
        known(host.iowait_fraction, lambda iowait: f"iowait {share(iowait.mean)}"),
        known(host.read_bytes_per_s, lambda read: f"{size(read.mean)}/s read"),
        known(throttled, lambda part: f"CPU quota exhausted in {share(part)} of periods"),
    )
    return ", ".join(filter(None, parts))


def _energy(energy: Energy) -> str:
    sources = (("device", energy.gpu_j, energy.gpu_basis), ("CPU", energy.cpu_j, energy.cpu_basis))
    parts = (
        known(energy.metered_j, lambda joules: f"{number(joules)} J ({number(joules / _JOULES_PER_KWH)} kWh)"),
        known(energy.epoch_j, lambda joules: f"{number(joules)} J per epoch"),
        known(energy.sample_j, lambda joules: f"{number(joules)} J per sample"),
        *(
            f"{what} {'not measured' if joules is None else f'from {line(basis, 24)}'}"
            for what, joules, basis in sources
        ),
    )
    return ", ".join(filter(None, parts))


def _cost(cost: Cost) -> str:
    parts = []
    if cost.run_price is not None and cost.hour_price is not None:
        parts.append(f"{number(cost.run_price)} for the run at {number(cost.hour_price)} per hour")
        if cost.epoch_price is not None:
            parts.append(f"{number(cost.epoch_price)} per epoch")
    if cost.run_gco2 is not None and cost.gco2_per_kwh is not None:
        parts.append(
            f"{number(cost.run_gco2)} g CO2e at {number(cost.gco2_per_kwh)} g/kWh ({line(cost.gco2_basis, 40)})"
        )
    elif cost.gco2_per_kwh is not None:
        parts.append("CO2e unknown: no energy was measured")
    return ", ".join(parts)
