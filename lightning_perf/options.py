"""The options of PerfDoctor that few people change, and a check of the callback's arguments."""

import dataclasses
import difflib
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from lightning_perf import arguments, checks
from lightning_perf.errors import ConfigError

FREQUENT = ("schedule", "reports", "console", "out_dir", "probe_data", "apply", "autopilot", "select", "ignore")
"""PerfDoctor's own arguments; all others are fields of `DoctorOptions`."""


@dataclass(frozen=True)
class DoctorOptions:
    """Options of PerfDoctor that few people change.

    Args:
        every_n_epochs: Diagnose after every n-th epoch, and less often if epochs are so short that reports would take
            more than 2 % of the run. The end of a run is always diagnosed, and long epochs also within: from 10 s on,
            at least every 5 minutes, for at most 1 % of the time.
        progress: Show the share of data wait and the latest verdict in Lightning's progress bar, updated at most once
            per second.
        profiler: What profiler windows record, as keyword arguments of ``WindowOptions``: ``with_stack``,
            ``record_shapes``, ``profile_memory``, ``with_flops``, ``ranks``, ``stages``, ``skip_first``, ``emit``,
            ``export_stacks``, ``max_events``. None for the defaults.
        memory: Measure memory use.
        memory_snapshot: Record torch's allocation history (CUDA; a bounded number of events with Python stacks), and
            write it for torch's memory viewer when the run ends or runs out of memory. Slows every allocation.
        device_stats: Time steps with device events (never a synchronization), and sample device and host in a
            background thread about once per second.
        host_lines: Sample the lines of your code that the training thread runs, for at most 0.5 % of the run.
        hang_after_s: Describe a hang once nothing has moved for this many seconds and 20 median steps: the open phase,
            the stacks of all threads, workers and ranks. The run is not stopped. None or 0 switches this off.
        module_depth: Depth at which module times are reported; 1 for top-level modules. 0 disables the sampled steps
            that measure module times, synchronizing lines and loops over tensors.
        arithmetic: Count the operations and memory traffic of one training step. Its result does not change; its time
            is excluded from all statistics.
        ceilings: Allow measuring the peak rates of this device once, in a separate process after the last step of a
            run of some minutes. An earlier measurement is used either way.
        replay: Measure expected speedups: at the end of an epoch or of ``fit``, run operators of one step again on
            random tensors, as they are and as recommended. Takes at most 1 % of the run, between 0.5 s and 10 s.
        price_per_hour: Cost of the whole run per hour, in any currency, so that reports show costs. None for no costs.
        gco2_per_kwh: Grams of CO2 equivalent per kWh, or a country code such as ``"FRA"`` (needs the extra
            ``carbon``). None for no emissions.
        batch_size_fn: Returns the number of samples of a batch, e.g. of a batch of graphs of your own. Called in every
            step. None to read tensors, packed sequences and graphs in tuples, dicts and dataclasses.
        tokens_fn: Returns the number of tokens of a batch, likewise. None to read ids, attention masks and packed
            sequences.

    Raises:
        ConfigError: An option cannot be used as given.
    """

    every_n_epochs: int = 1
    progress: bool = False
    profiler: dict[str, Any] | None = None
    memory: bool = True
    memory_snapshot: bool = False
    device_stats: bool = True
    host_lines: bool = True
    hang_after_s: float | None = 60
    module_depth: int = 1
    arithmetic: bool = True
    ceilings: bool = True
    replay: bool = True
    price_per_hour: float | None = None
    gco2_per_kwh: float | str | None = None
    batch_size_fn: Callable[[Any], int] | None = None
    tokens_fn: Callable[[Any], int] | None = None

    def __post_init__(self) -> None:
        """Check each option."""
        checks.checked("every_n_epochs", self.every_n_epochs, checks.whole(least=1))
        checks.checked("module_depth", self.module_depth, checks.whole(least=0))
        for field in dataclasses.fields(self):
            if field.type is bool:
                checks.checked(field.name, getattr(self, field.name), checks.FLAG)
        checks.checked_number("hang_after_s", self.hang_after_s, "seconds, or None or 0 for no watch")
        checks.checked("batch_size_fn", self.batch_size_fn, arguments.FUNCTION)
        checks.checked("tokens_fn", self.tokens_fn, arguments.FUNCTION)
        arguments.checked_window(None, self.profiler)
        arguments.checked_rates(self.price_per_hour, self.gco2_per_kwh)


NAMES = tuple(field.name for field in dataclasses.fields(DoctorOptions))


def checked_options(options: Any, **named: Any) -> DoctorOptions:
    """Return the options of a callback.

    Args:
        options: A `DoctorOptions`, its fields as a dict, or None.
        **named: Options that were given as arguments of PerfDoctor, which is deprecated. LightningCLI gives all of
            them with their defaults, so a default here changes nothing.

    Raises:
        ConfigError: There is no such option, or it cannot be used as given.
    """
    _require_known("PerfDoctor has no argument", named, (*FREQUENT, "options", *NAMES))
    if isinstance(options, dict):
        _require_known("DoctorOptions has no field", options, NAMES)
        options = DoctorOptions(**options)
    elif options is None:
        options = DoctorOptions()
    elif not isinstance(options, DoctorOptions):
        raise ConfigError(f"options={options!r}: expected a DoctorOptions, a dict of its fields, or None")
    given, default = DoctorOptions(**named), DoctorOptions()
    changed = {name: getattr(given, name) for name in named if getattr(given, name) != getattr(default, name)}
    for name, value in changed.items():
        warnings.warn(
            f"PerfDoctor({name}=...) is deprecated: use PerfDoctor(options=DoctorOptions({name}={value!r}))",
            DeprecationWarning,
            stacklevel=3,
        )
    result: DoctorOptions = dataclasses.replace(options, **changed) if changed else options
    return result


def _require_known(problem: str, given: Iterable[str], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(known)}"
            raise ConfigError(f"{problem} {name!r}; {hint}")
