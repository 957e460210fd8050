"""Check PerfDoctor's arguments; errors say what was received and what was expected."""

import os
from pathlib import Path
from typing import Any

from lightning_perf.checks import FLAG, Check, checked, checked_number, is_list_of, is_text, is_whole
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

FUNCTION: Check = (lambda v: v is None or callable(v), "a function of a batch, or None")
PROBE_DATA: Check = (lambda v: isinstance(v, bool) or v == "auto", "True, False or 'auto'")
AUTOPILOT: Check = (lambda v: v in (None, "exact", "numerics"), "'exact', 'numerics' or None")
RUN_REPORTS: Check = (
    lambda v: is_list_of(v, lambda report: report in KNOWN_REPORTS),
    f"a list of some of {', '.join(map(repr, KNOWN_REPORTS))}",
)
CODES: Check = (
    lambda v: v is None or is_list_of(v, is_text),
    'a list of rule codes or prefixes, e.g. ["PD1", "PD502"]',
)
_CONSOLE: Check = (lambda v: v in CONSOLE, f"one of {', '.join(map(repr, CONSOLE))}")
_SCHEDULE: Check = (
    lambda v: is_list_of(v, lambda n: is_whole(n) and n >= 0) and len(v) in (3, 4) and v[2] >= 1,
    '"auto", None or (wait, warmup, active[, repeat]) in steps with active ≥ 1, e.g. (5, 2, 3, 1)',
)
_TREATMENTS: Check = (lambda v: is_list_of(v, is_text), 'a list of treatments, e.g. ["loader-workers"]')
_STAGES = ("fit", "validate", "test", "predict")
_PROFILER_OPTIONS: dict[str, Check] = {
    "ranks": (
        lambda v: v == "all" or (is_list_of(v, lambda rank: type(rank) is int and rank >= 0) and len(v) > 0),
        '"all" or a list of at least one rank',
    ),
    "stages": (
        lambda v: is_list_of(v, lambda stage: stage in _STAGES) and len(v) > 0,
        f"a list of at least one of {', '.join(_STAGES)}",
    ),
    "emit": (lambda v: v in ("kineto", "nsys"), '"kineto" or "nsys"'),
    "skip_first": (lambda v: type(v) is int and v >= 0, "a whole number of steps"),
    "max_events": (lambda v: type(v) is int and v > 0, "a whole number above 0"),
}
"""For each option that is not a flag, its check and what it expects."""


def checked_schedule(schedule: Any) -> str | tuple[int, ...] | None:
    is_choice = schedule is None or schedule == "auto"
    return schedule if is_choice else checked("schedule", schedule, _SCHEDULE)  # type: ignore[no-any-return]


def checked_window(schedule: str | tuple[int, ...] | None, profiler: Any) -> WindowOptions | None:
    """Return the options of profiler windows; None if no window may open."""
    options = {} if profiler is None else profiler
    scheduled = ("wait", "warmup", "active", "repeat")
    known = [name for name in WindowOptions._fields if name not in scheduled]
    if not isinstance(options, dict) or not set(options) <= set(known):
        raise ConfigError(f"profiler={profiler!r}: expected a dict with some of {', '.join(known)}, or None")
    options = {
        name: checked(f"profiler[{name!r}]", value, _PROFILER_OPTIONS.get(name, FLAG))
        for name, value in options.items()
    }
    if options.get("export_stacks") and not options.get("with_stack"):
        raise ConfigError("profiler['export_stacks']=True: expected 'with_stack': True beside it, which records stacks")
    if schedule is None:
        return None
    timing: dict[str, Any] = {} if schedule == "auto" else dict(zip(scheduled, schedule, strict=False))
    return WindowOptions(**timing, **options)


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


def checked_console(console: Any) -> str:
    """Return how much the console shows; None means the environment's choice, else ``"brief"``."""
    name, value = "console", console
    if console is None:
        name, value = CONSOLE_VARIABLE, os.environ.get(CONSOLE_VARIABLE) or CONSOLE[0]
    return str(checked(name, value, _CONSOLE))


def checked_apply(treatments: Any) -> tuple[str, ...]:
    """Return the treatments to apply between epochs, by the names given."""
    names: tuple[str, ...] = checked("apply", treatments, _TREATMENTS)
    for spec in parse_all(names):
        if not spec.treatment.is_live:
            live = ", ".join(treatment.id for treatment in all_treatments() if treatment.is_live)
            raise ConfigError(
                f"apply={spec.text!r}: it cannot be applied between epochs, only before the training starts, "
                f"e.g. by lightning-perf run --with {spec.text}; expected some of {live}"
            )
    return names


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
