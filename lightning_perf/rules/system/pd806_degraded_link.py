"""PD806: the PCIe link of the device is slower than device and slot support."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.machine_signals import device_telemetry_of, sampled
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import phase_s, steady_of


@rule("PD806", "degraded-link")
def check(session: Session) -> Finding | None:
    """Compare the fastest link observed under load with the fastest that device and slot support."""
    steady = steady_of(session)
    device = device_telemetry_of(session)
    now = (device.pcie_generation, device.pcie_width)
    most = (device.max_pcie_generation, device.max_pcie_width)
    if now[0] is None or now[1] is None or not most[0] or not most[1]:
        raise Skip(f"{device.device} does not report its PCIe link")
    if now[0] >= most[0] and now[1] >= most[1]:
        return None
    # Each generation doubles the rate of a lane.
    speed = 2.0 ** (now[0] - most[0]) * now[1] / most[1]
    lost = max(0.0, 1.0 - speed)
    return timed_finding(
        steady,
        summary=(
            f"{device.device} is connected by PCIe {now[0]} x{now[1]} instead of {most[0]} x{most[1]}: "
            f"copies take up to {1 / speed:.2g} times as long."
        ),
        evidence=(
            fact("PCIe generation", now[0], "count", most[0], device.n_samples),
            fact("PCIe lanes", now[1], "count", most[1], device.n_samples),
            sampled("to the device per second", device.pcie_receive_bytes_per_s, "bytes"),
            sampled("from the device per second", device.pcie_send_bytes_per_s, "bytes"),
        ),
        prescriptions=fix("reseat the card, or try another slot, riser or BIOS setting for the link speed", "hours"),
        claims={"transfer": lost * phase_s(steady, "transfer")},
        basis="at most all copies at the full rate; no gain if they overlap with compute",
        confidence="medium",
        method="modeled",
    )
