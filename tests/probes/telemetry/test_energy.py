"""Energy of scripted curves, and cost by rates."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.probes.telemetry import energy
from lightning_perf.probes.telemetry.energy import (
    DeviceEnergy,
    EnergyLedger,
    PackageEnergy,
    Rates,
    carbon_intensity,
    cost_of,
)
from lightning_perf.records import Energy
from tests.probes.settings.test_machine import tree


@pytest.mark.parametrize("hz", [1, 10])
def test_energy_is_within_one_percent_when_power_swings(hz: int) -> None:
    meter = DeviceEnergy()
    # 300 W, swinging by 200 W every 20 s and by 50 W every 7 s, for ten minutes.
    for i in range(600 * hz + 1):
        t = i / hz
        meter.add(t, None, 300 + 200 * math.sin(2 * math.pi * t / 20) + 50 * math.cos(2 * math.pi * t / 7))
    exact = (
        300 * 600
        + 200 * 20 / (2 * math.pi) * (1 - math.cos(2 * math.pi * 30))
        + 50 * 7 / (2 * math.pi) * math.sin(2 * math.pi * 600 / 7)
    )
    joules, basis = meter.joules()
    assert joules == pytest.approx(exact, rel=0.01)
    assert basis == "integrated power"


def test_energy_is_within_one_percent_when_samples_come_unevenly() -> None:
    meter = DeviceEnergy()
    t = 0.0
    for i in range(900):
        meter.add(t, None, 100 + t)  # a ramp, which trapezoids follow exactly
        t += 0.1 if i % 3 else 1.7
    end = t - (0.1 if 899 % 3 else 1.7)
    assert meter.joules()[0] == pytest.approx(100 * end + end**2 / 2, rel=0.001)


@pytest.mark.parametrize(
    ("counters", "power_w", "expected"),
    [
        ((1000.0, 1300.0, 1700.0), 1.0, (700.0, "counter")),
        ((1000.0, 1300.0, 50.0, 150.0), None, (400.0, "counter")),  # it was reset
        ((None, None), None, (None, "")),
    ],
)
def test_energy_is_read_from_the_counter_when_there_is_one(counters: Any, power_w: Any, expected: Any) -> None:
    meter = DeviceEnergy()
    for t, counter in enumerate(counters):
        meter.add(t, counter, power_w)
    assert meter.joules() == expected


RAPL = {
    "sys/class/powercap/intel-rapl:0/name": "package-0",
    "sys/class/powercap/intel-rapl:0/energy_uj": "9000000",
    "sys/class/powercap/intel-rapl:0/max_energy_range_uj": "10000000",
    "sys/class/powercap/intel-rapl:0:0/name": "core",
    "sys/class/powercap/intel-rapl:0:0/energy_uj": "1000000",
    "sys/class/powercap/intel-rapl:1/name": "package-1",
    "sys/class/powercap/intel-rapl:1/energy_uj": "1000000",
    "sys/class/powercap/intel-rapl:1/max_energy_range_uj": "10000000",
    "sys/class/powercap/intel-rapl:2/name": "psys",
    "sys/class/powercap/intel-rapl:2/energy_uj": "5000000",
}


def test_cpu_energy_adds_packages_and_follows_wraps_when_rapl_is_readable(tmp_path: Path) -> None:
    meter = PackageEnergy(tree(tmp_path, RAPL))
    tree(tmp_path, {"sys/class/powercap/intel-rapl:0/energy_uj": "500000",  # wrapped: 1.5 J
                    "sys/class/powercap/intel-rapl:1/energy_uj": "3000000",
                    "sys/class/powercap/intel-rapl:0:0/energy_uj": "9000000",
                    "sys/class/powercap/intel-rapl:2/energy_uj": "9000000"})  # fmt: skip
    assert meter.read() == pytest.approx(3.5)


def test_cpu_energy_is_unknown_with_the_reason_when_rapl_is_missing_or_closed(tmp_path: Path) -> None:
    absent = PackageEnergy(tmp_path)
    assert absent.read() is None
    assert "no RAPL" in absent.missing_reason
    closed = tree(tmp_path, RAPL)
    (closed / "sys/class/powercap/intel-rapl:1/energy_uj").unlink()
    meter = PackageEnergy(closed)
    assert meter.read() is None
    assert "cannot be read" in meter.missing_reason


def test_epochs_and_samples_share_the_energy_when_epochs_end() -> None:
    ledger = EnergyLedger(0.0)
    for t in range(11):
        ledger.add(float(t), None, 100.0, 20.0 * t)
        if t in (5, 10):
            ledger.epoch_ended(50)
    record = ledger.record()
    assert (record.gpu_j, record.cpu_j, record.metered_j) == (1000.0, 200.0, 1200.0)
    assert (record.epoch_j, record.sample_j) == (600.0, 12.0)
    assert (record.gpu_basis, record.cpu_basis, record.span_s) == ("integrated power", "RAPL", 10.0)


def test_energy_by_sample_is_unknown_when_samples_are_not_known() -> None:
    ledger = EnergyLedger(0.0)
    ledger.add(0.0, None, 100.0, None)
    ledger.add(1.0, None, 100.0, None)
    assert ledger.record().epoch_j is None
    ledger.epoch_ended(None)
    assert (ledger.record().epoch_j, ledger.record().sample_j, ledger.record().cpu_j) == (100.0, None, None)


def test_cost_follows_the_rates_when_given() -> None:
    metered = Energy(span_s=3600.0, gpu_j=3.6e6, metered_j=3.6e6)
    rates = Rates(hour_price=2.0, gco2_per_kwh=300.0, gco2_basis="as given")
    cost = cost_of(metered, rates, wall_s=1800.0, epoch_s=360.0)
    assert (cost.run_price, cost.epoch_price, cost.run_gco2) == (1.0, 0.2, 300.0)


def test_cost_is_none_when_no_rate_is_given() -> None:
    assert cost_of(Energy(span_s=1.0, metered_j=5.0), Rates(), 1.0, 1.0) is None
    only_price = cost_of(None, Rates(hour_price=2.0), wall_s=3600.0, epoch_s=None)
    assert (only_price.run_price, only_price.epoch_price, only_price.run_gco2) == (2.0, None, None)
    only_carbon = cost_of(None, Rates(gco2_per_kwh=300.0), wall_s=3600.0, epoch_s=None)
    assert (only_carbon.run_price, only_carbon.run_gco2) == (None, None)


def test_carbon_intensity_is_as_given_when_it_is_a_number() -> None:
    assert carbon_intensity(300) == (300.0, "as given")
    assert carbon_intensity(None) == (None, "")


def test_carbon_intensity_comes_from_codecarbon_when_a_country_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, {"data/private_infra/global_energy_mix.json": '{"FRA": {"carbon_intensity": 58.5}}'})
    monkeypatch.setattr(energy.importlib.resources, "files", lambda package: tmp_path)
    assert carbon_intensity("fra") == (58.5, "codecarbon's table for FRA")
    with pytest.raises(ValueError, match="does not hold 'XXX'"):
        carbon_intensity("XXX")


def test_country_is_refused_with_advice_when_codecarbon_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(package: str) -> Path:
        raise ModuleNotFoundError(package)

    monkeypatch.setattr(energy.importlib.resources, "files", absent)
    with pytest.raises(ValueError, match=r"lightning-perf\[carbon\]"):
        carbon_intensity("FRA")
