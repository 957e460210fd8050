"""Lines on the machine in reports, from synthetic telemetry."""

from __future__ import annotations

import msgspec

from lightning_perf.records import (
    Cost,
    Energy,
    GpuTelemetry,
    HostTelemetry,
    Session,
    Telemetry,
)
from lightning_perf.reports import console, tensorboard
from lightning_perf.reports.render import markdown
from lightning_perf.reports.sections.machine import finding_cost, machine_facts

from .sessions import LOGGING_EVERY_STEP, STARVED_BY_LOADER, spread, starved

FULL = Telemetry(
    hz=1.0,
    devices=(
        GpuTelemetry(
            device="cuda:0",
            name="H100",
            source="nvml",
            matched_by="uuid",
            n_samples=60,
            utilisation_fraction=spread(0.46),
            power_w=spread(312.0),
            power_limit_w=400.0,
            temperature_c=spread(71.0),
            sm_clock_mhz=spread(1500.0),
            max_sm_clock_mhz=1980.0,
            throttle_fractions={"sw_power_cap": 0.25, "sw_thermal": 0.001},
            pcie_generation=4,
            pcie_width=8,
        ),
    ),
    host=HostTelemetry(
        n_samples=60,
        process_cpu_cores=spread(1.2),
        workers_cpu_cores=spread(3.0),
        n_workers=4,
        cpu_busy_fraction=spread(0.8),
        iowait_fraction=spread(0.02),
        throttle_periods=100,
        throttled_periods=30,
    ),
    energy=Energy(span_s=60.0, gpu_j=18_720.0, gpu_basis="counter", metered_j=18_720.0, epoch_j=6240.0, sample_j=0.5),
    cost=Cost(hour_price=2.0, run_price=0.5, epoch_price=0.1, gco2_per_kwh=300.0, gco2_basis="as given", run_gco2=1.56),
)


def with_telemetry(telemetry: Telemetry | None) -> Session:
    return msgspec.structs.replace(starved(), telemetry=telemetry)


def test_lines_have_device_host_energy_and_cost_when_all_is_known() -> None:
    facts = dict(machine_facts(with_telemetry(FULL)))
    assert list(facts) == ["Device", "Host", "Energy", "Cost", "Per day"]
    for text in (
        "utilization 46 %",
        "312 of 400 W",
        "71 °C max",
        "1,500 of 1,980 MHz",
        "sw power cap 25 %",
        "PCIe 4 x8",
    ):
        assert text in facts["Device"]
    assert "thermal" not in facts["Device"]
    for text in ("1.20 cores", "4 workers 3 cores busy", "80 % busy", "30 % of periods"):
        assert text in facts["Host"]
    assert "device from counter, CPU not measured" in facts["Energy"]
    assert "0.5" in facts["Cost"]
    assert "1.56 g CO2e" in facts["Cost"]


def test_lines_are_in_console_and_markdown_when_there_is_telemetry() -> None:
    for text in (
        console.to_text(console.session_document(with_telemetry(FULL))),
        markdown.to_markdown(with_telemetry(FULL)),
    ):
        assert "312 of 400 W" in " ".join(text.split())
        assert "per day" in text.lower()
    assert machine_facts(with_telemetry(None)) == []


def test_money_is_left_out_when_no_price_is_given() -> None:
    free = msgspec.structs.replace(FULL, cost=None)
    assert "Cost" not in dict(machine_facts(with_telemetry(free)))
    assert finding_cost(with_telemetry(free), STARVED_BY_LOADER) == ""


def test_finding_costs_what_its_gain_would_save_of_a_day_when_priced() -> None:
    session = with_telemetry(FULL)  # 48 a day; 1.7-2.1x and 1.0-1.035x
    assert finding_cost(session, STARVED_BY_LOADER) == "19.8 to 25.1"
    assert finding_cost(session, LOGGING_EVERY_STEP) == "up to 1.62"
    assert finding_cost(session, msgspec.structs.replace(STARVED_BY_LOADER, gain=None)) == ""


def test_scalars_have_device_and_host_when_sampled() -> None:
    figures = tensorboard.scalars(with_telemetry(FULL))
    assert figures["perf/gpu_util/cuda_0"] == 0.46
    assert figures["perf/gpu_power_w/cuda_0"] == 312.0
    assert figures["perf/cpu_busy"] == 0.8
    assert figures["perf/energy_j"] == 18_720.0
    assert not [name for name in tensorboard.scalars(with_telemetry(None)) if "gpu" in name]
