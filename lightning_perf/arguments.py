"""Check PerfDoctor's arguments; errors say what was received and what was expected."""

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from lightning_perf.errors import ConfigError
from lightning_perf.probes.profiler.recording import WindowOptions
from lightning_perf.probes.telemetry.energy import Rates, carbon_intensity
from lightning_perf.records.remote import AnyPath, RemotePath, any_path
from lightning_perf.reports.formats import RUN_FORMATS
from lightning_perf.treatments.specs import all_treatments, parse_all

REPORTS = ("console", "tensorboard", "json", "upload")
"""Reports that PerfDoctor makes by default."""

KNOWN_REPORTS = (*REPORTS, *RUN_FORMATS)

CONSOLE = ("brief", "full", "off")
"""How much the console shows; the first is the default."""

CONSOLE_VARIABLE = "LIGHTNING_PERF_CONSOLE"


def checked_schedule(schedule: Any) -> str | tuple[int, ...] | None:
    if schedule is None or schedule == "auto":
        return schedule  # type: ignore[no-any-return]
    expected = 'expected "auto", None or (wait, warmup, active[, repeat]) in steps with active ≥ 1, e.g. (5, 2, 3, 1)'
    is_steps = _is_list_of(schedule, lambda n: isinstance(n, int) and not isinstance(n, bool) and n >= 0)
    if not is_steps or len(schedule) not in (3, 4) or schedule[2] < 1:
        raise ConfigError(f"schedule={schedule!r}: {expected}")
    return tuple(schedule)


_STAGES = ("fit", "validate", "test", "predict")

_PROFILER_OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "ranks": (
        lambda v: v == "all" or (_is_list_of(v, lambda rank: type(rank) is int and rank >= 0) and len(v) > 0),
        '"all" or a list of at least one rank',
    ),
    "stages": (
        lambda v: _is_list_of(v, lambda stage: stage in _STAGES) and len(v) > 0,
        f"a list of at least one of {', '.join(_STAGES)}",
    ),
    "emit": (lambda v: v in ("kineto", "nsys"), '"kineto" or "nsys"'),
    "skip_first": (lambda v: type(v) is int and v >= 0, "a whole number of steps"),
    "max_events": (lambda v: type(v) is int and v > 0, "a whole number above 0"),
}
"""For each option that is not a flag, its check and what it expects."""


def checked_window(schedule: str | tuple[int, ...] | None, profiler: Any) -> WindowOptions | None:
    """Return the options of profiler windows; None if no window may open."""
    options = {} if profiler is None else profiler
    scheduled = ("wait", "warmup", "active", "repeat")
    known = [name for name in WindowOptions._fields if name not in scheduled]
    if not isinstance(options, dict) or not set(options) <= set(known):
        raise ConfigError(f"profiler={profiler!r}: expected a dict with some of {', '.join(known)}, or None")
    for name, value in options.items():
        is_valid, expected = _PROFILER_OPTIONS.get(name, (lambda v: isinstance(v, bool), "True or False"))
        if not is_valid(value):
            raise ConfigError(f"profiler[{name!r}]={value!r}: expected {expected}")
    if options.get("export_stacks") and not options.get("with_stack"):
        raise ConfigError("profiler['export_stacks']=True: expected 'with_stack': True beside it, which records stacks")
    if schedule is None:
        return None
    tuples: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }
    timing: dict[str, Any] = {} if schedule == "auto" else dict(zip(scheduled, schedule, strict=False))
    return WindowOptions(**{**timing, **tuples})


def _is_list_of(value: Any, is_valid: Callable[[Any], bool]) -> bool:
    return isinstance(value, (list, tuple)) and all(map(is_valid, value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def checked_whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}={value!r}: expected a whole number of at least {least}")
    return value


def checked_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r}: expected True or False")
    return value


def checked_function(name: str, value: Any) -> Any:
    if value is not None and not callable(value):
        raise ConfigError(f"{name}={value!r}: expected a function of a batch, or None")
    return value


def checked_probe_data(value: Any) -> bool | Literal["auto"]:
    if isinstance(value, bool):
        return value
    if value != "auto":
        raise ConfigError(f"probe_data={value!r}: expected True, False or 'auto'")
    return "auto"


def checked_path(value: Any) -> AnyPath | None:
    if value is None:
        return None
    if not isinstance(value, (str, Path, RemotePath)) or not str(value):
        raise ConfigError(f"out_dir={value!r}: expected a folder's path, its URL or None")
    path = any_path(value)
    if isinstance(path, RemotePath):
        return path
    path = Path(os.path.expanduser(path))
    # A path that cannot be read fails later, when files are written, and does not stop the run.
    if os.path.exists(path) and not os.path.isdir(path):
        raise ConfigError(f"out_dir={str(path)!r} is a file: expected a folder, which is created if it is missing")
    return path


def checked_reports(reports: Any) -> tuple[str, ...]:
    if not _is_list_of(reports, lambda report: report in KNOWN_REPORTS):
        raise ConfigError(f"reports={reports!r}: expected a list of some of {', '.join(map(repr, KNOWN_REPORTS))}")
    return tuple(reports)


def checked_console(console: Any) -> str:
    """Return how much the console shows; None means the environment's choice, else ``"brief"``."""
    name, value = "console", console
    if console is None:
        name, value = CONSOLE_VARIABLE, os.environ.get(CONSOLE_VARIABLE) or CONSOLE[0]
    if value not in CONSOLE:
        raise ConfigError(f"{name}={value!r}: expected one of {', '.join(map(repr, CONSOLE))}")
    return str(value)


def checked_codes(name: str, codes: Any) -> Sequence[str] | None:
    if codes is None:
        return None
    if not _is_list_of(codes, _is_text):
        raise ConfigError(f'{name}={codes!r}: expected a list of rule codes or prefixes, e.g. ["PD1", "PD502"]')
    return tuple(codes)


def checked_apply(treatments: Any) -> tuple[str, ...]:
    """Return the treatments to apply between epochs, by the names given."""
    if not _is_list_of(treatments, _is_text):
        raise ConfigError(f'apply={treatments!r}: expected a list of treatments, e.g. ["loader-workers"]')
    for spec in parse_all(treatments):
        if not spec.treatment.is_live:
            live = ", ".join(treatment.id for treatment in all_treatments() if treatment.is_live)
            raise ConfigError(
                f"apply={spec.text!r}: it cannot be applied between epochs, only before the training starts, "
                f"e.g. by lightning-perf run --with {spec.text}; expected some of {live}"
            )
    return tuple(treatments)


def checked_autopilot(safety: Any) -> Literal["exact", "numerics"] | None:
    """Return what the autopilot may change; None if there is none."""
    if safety not in (None, "exact", "numerics"):
        raise ConfigError(f"autopilot={safety!r}: expected 'exact', 'numerics' or None")
    return safety  # type: ignore[no-any-return]


def checked_rates(price_per_hour: Any, gco2_per_kwh: Any) -> Rates:
    price = checked_number("price_per_hour", price_per_hour, "a number of at least 0, in any currency, or None")
    if not isinstance(gco2_per_kwh, str):
        grams = 'grams of at least 0, a country such as "FRA" (with codecarbon installed), or None'
        gco2_per_kwh = checked_number("gco2_per_kwh", gco2_per_kwh, grams)
    try:
        gco2, basis = carbon_intensity(gco2_per_kwh)
    except ValueError as error:
        raise ConfigError(f"gco2_per_kwh={gco2_per_kwh!r}: {error}") from error
    return Rates(hour_price=price, gco2_per_kwh=gco2, gco2_basis=basis)


def checked_number(name: str, value: Any, expected: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ConfigError(f"{name}={value!r}: expected {expected}")
    return float(value)
