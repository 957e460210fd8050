"""PD806: the PCIe link of the device is slower than device and slot support."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.machine_signals import device_telemetry_of, telemetry_fact
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import phase_s, steady_of
from lightning_perf.rules.wording import number_of


@rule("PD806", "degraded-link")
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    device = device_telemetry_of(session)
    generation, width = device.pcie_generation, device.pcie_width
    max_generation, max_width = device.max_pcie_generation, device.max_pcie_width
    if not (generation and width and max_generation and max_width):
        raise Skip(f"{device.device} does not report its PCIe link")
    if generation >= max_generation and width >= max_width:
        return None
    # Each generation doubles the rate of a lane.
    speed = 2.0 ** (generation - max_generation) * width / max_width
    lost = max(0.0, 1.0 - speed)
    return timed_finding(
        steady,
        summary=(
            f"{device.device} is connected by PCIe {generation} x{width} instead of {max_generation} x{max_width}: "
            f"copies take up to {number_of(1 / speed, 'time')} as long."
        ),
        evidence=(
            fact("PCIe generation", generation, "count", max_generation, device.n_samples),
            fact("PCIe lanes", width, "count", max_width, device.n_samples),
            telemetry_fact("to the device per second", device.pcie_receive_bytes_per_s, "bytes"),
            telemetry_fact("from the device per second", device.pcie_send_bytes_per_s, "bytes"),
        ),
        prescriptions=fix("reseat the card, or try another slot, riser or BIOS setting for the link speed", "hours"),
        claims={"transfer": lost * phase_s(steady, "transfer")},
        basis="at most all copies at the full rate; no gain if they overlap with compute",
        confidence="medium",
        method="modeled",
    )
