"""Energy of device and CPU, and the cost of a run by the user's rates."""

import importlib.resources
import json
from pathlib import Path
from typing import Any

import msgspec

from lightning_perf.cgroups import read_number, read_text
from lightning_perf.records import Cost, Energy

JOULES_PER_KWH = 3.6e6


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """The user's rates for time and energy, None if not given; ``gco2_basis`` is the source of the carbon intensity."""

    hour_price: float | None = None
    gco2_per_kwh: float | None = None
    gco2_basis: str = ""


class DeviceEnergy:
    """Joules of one device: from its counter, or from integrated power if it has none."""

    def __init__(self) -> None:
        self._counted_j: float | None = None
        self._last_counter_j: float | None = None
        self._integrated_j: float | None = None
        self._last: tuple[float, float] | None = None

    def add(self, at_s: float, counter_j: float | None, power_w: float | None) -> None:
        """Add a sample; None for what the driver does not report."""
        if counter_j is not None:
            # A counter that decreased was reset with its driver; the energy since then is unknown.
            if self._last_counter_j is not None:
                self._counted_j = (self._counted_j or 0.0) + max(0.0, counter_j - self._last_counter_j)
            self._last_counter_j = counter_j
        if power_w is not None:
            if self._last is not None:
                before_s, before_w = self._last
                self._integrated_j = (self._integrated_j or 0.0) + (at_s - before_s) * (before_w + power_w) / 2
            self._last = (at_s, power_w)

    def joules(self) -> tuple[float | None, str]:
        """Return joules since the first sample, and their basis; None before the second sample."""
        if self._counted_j is not None:
            return self._counted_j, "counter"
        return self._integrated_j, "" if self._integrated_j is None else "integrated power"


class PackageEnergy:
    """Joules of the CPU packages by RAPL, if the kernel lets this user read it."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.missing_reason = ""
        self._domains: list[tuple[Path, int]] = []
        self._last_uj: dict[Path, int] = {}
        self._total_uj = 0
        # intel-rapl:0 is a package; intel-rapl:0:1 is a part of it and already counted. "psys" holds the packages.
        found = (root / "sys" / "class" / "powercap").glob("intel-rapl:*")
        folders = sorted(folder for folder in found if folder.name.count(":") == 1)
        packages = [folder for folder in folders if (read_text(folder / "name") or "").startswith("package")]
        if not packages:
            self.missing_reason = "this host shows no RAPL counters (/sys/class/powercap)"
        for folder in packages:
            now_uj = read_number(folder / "energy_uj")
            if now_uj is None:
                self.missing_reason = f"{folder.name}/energy_uj cannot be read; Linux lets only root read it by default"
                self._domains = []
                return
            self._domains.append((folder, read_number(folder / "max_energy_range_uj") or 0))
            self._last_uj[folder] = now_uj

    @property
    def is_metered(self) -> bool:
        """Whether a counter can be read."""
        return bool(self._domains)

    def read(self) -> float | None:
        """Return joules since creation; None if unknown. Call it before a counter wraps twice."""
        for folder, range_uj in self._domains:
            now_uj = read_number(folder / "energy_uj")
            if now_uj is None:
                self.missing_reason = f"{folder.name}/energy_uj could not be read any more"
                self._domains = []
                return None
            passed_uj = now_uj - self._last_uj[folder]
            self._total_uj += passed_uj if passed_uj >= 0 else passed_uj + range_uj
            self._last_uj[folder] = now_uj
        return self._total_uj / 1e6 if self._domains else None


class EnergyLedger:
    """Metered energy, up to now and by training epoch."""

    def __init__(self, start_s: float) -> None:
        self._start_s = start_s
        self._at_s = start_s
        self.device = DeviceEnergy()
        self._cpu_j: float | None = None
        self._epoch_j = 0.0
        self._n_epochs = 0
        self._samples: int | None = 0

    def add(self, at_s: float, counter_j: float | None, power_w: float | None, cpu_j: float | None) -> None:
        """Add a sample; ``cpu_j`` counts from the start."""
        self._at_s = at_s
        self.device.add(at_s, counter_j, power_w)
        self._cpu_j = cpu_j

    def epoch_ended(self, samples: int | None) -> None:
        """Count a training epoch; ``samples`` is None if unknown."""
        self._n_epochs += 1
        self._epoch_j = self._metered_j() or 0.0
        self._samples = None if samples is None or self._samples is None else self._samples + samples

    def record(self) -> Energy:
        """Return the energy up to now. The first epoch includes what came before it."""
        gpu_j, gpu_basis = self.device.joules()
        metered_j = self._metered_j()
        has_epochs = metered_j is not None and self._n_epochs > 0
        return Energy(
            span_s=self._at_s - self._start_s,
            gpu_j=gpu_j,
            gpu_basis=gpu_basis,
            cpu_j=self._cpu_j,
            cpu_basis="" if self._cpu_j is None else "RAPL",
            metered_j=metered_j,
            epoch_j=self._epoch_j / self._n_epochs if has_epochs else None,
            sample_j=self._epoch_j / self._samples if has_epochs and self._samples else None,
        )

    def _metered_j(self) -> float | None:
        parts = [part for part in (self.device.joules()[0], self._cpu_j) if part is not None]
        return sum(parts) if parts else None


def carbon_intensity(gco2_per_kwh: float | str | None) -> tuple[float | None, str]:
    """Return grams of CO2 equivalent per kWh, and the source of the figure.

    ``gco2_per_kwh`` is the figure, or a three-letter ISO 3166 country code for codecarbon's table.

    Raises:
        ValueError: codecarbon is not installed, or does not know the country; the message says what to do.
    """
    if gco2_per_kwh is None:
        return None, ""
    if not isinstance(gco2_per_kwh, str):
        return float(gco2_per_kwh), "as given"
    expected = 'expected grams per kWh, or a country such as "FRA"'
    try:
        table = importlib.resources.files("codecarbon").joinpath("data/private_infra/global_energy_mix.json")
        countries: dict[str, Any] = json.loads(table.read_text(encoding="utf-8"))
    except ModuleNotFoundError as error:
        raise ValueError(f"{expected}; countries need codecarbon: pip install 'lightning-perf[carbon]'") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{expected}; codecarbon's table could not be read ({error}): give the grams") from error
    intensity = countries.get(gco2_per_kwh.upper(), {}).get("carbon_intensity")
    if intensity is None:
        raise ValueError(f"{expected}; codecarbon's table does not hold {gco2_per_kwh!r}")
    return float(intensity), f"codecarbon's table for {gco2_per_kwh.upper()}"


def cost_of(energy: Energy | None, rates: Rates, wall_s: float, epoch_s: float | None) -> Cost | None:
    """Return the cost of a run; None without any rate.

    ``energy`` is None if nothing was metered, ``epoch_s`` (mean of training epochs) before the first ended.
    """
    price, gco2 = rates.hour_price, rates.gco2_per_kwh
    if price is None and gco2 is None:
        return None
    metered_j = energy.metered_j if energy is not None else None
    return Cost(
        hour_price=price,
        run_price=None if price is None else price * wall_s / 3600,
        epoch_price=None if price is None or epoch_s is None else price * epoch_s / 3600,
        gco2_per_kwh=gco2,
        gco2_basis=rates.gco2_basis,
        run_gco2=None if gco2 is None or metered_j is None else gco2 * metered_j / JOULES_PER_KWH,
    )
