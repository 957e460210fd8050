"""Validate documents before they become records: check that figures are within bounds, and clean text.

Files of sessions and traces are untrusted. They are checked once, when they are read, so that rules and reports can
compute with them. The checks are compiled from the record types: the end of a field's name is its unit, and the tables
below have the exceptions.
"""

import functools
import re
import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from .base import Record
from .finding import Gain
from .loader_probe import WorkerPoint
from .memory import Growth
from .steps import Distribution
from .telemetry import Spread
from .text import clean
from .trial import Interval

Check = Callable[[Any], Any]
"""Function that returns a value, cleaned, or raises ``Refused`` if it is out of bounds. msgspec reports wrong types."""


class Bounds(NamedTuple):
    """The range of a figure, and what an error calls it."""

    low: float
    high: float
    unit: str


_ANY = Bounds(-1e18, 1e18, "a number")
_SHARE = Bounds(0.0, 1.05, "a share")  # parts and whole are timed separately, so a part can slightly exceed the whole
_SECONDS = Bounds(0.0, 1e9, "seconds")
_RATIO = Bounds(0.0, 1e9, "a ratio")
_PLAIN = Bounds(0.0, 1e18, "a number")
_COUNT = Bounds(0, 2**53, "a count")
_POSITIVE_COUNT = Bounds(1, 2**53, "a count of 1 or more")
_BYTES = Bounds(0, 2**60, "bytes")
_SIGNED_COUNT = Bounds(-(2**53), 2**53, "a number")
_SIGNED_BYTES = Bounds(-(2**60), 2**60, "bytes")
_PROCESSES = Bounds(0, 2**20, "a count")
_RANKS = Bounds(0, 2**24, "a count")

_ROUNDING = 1e-6
"""Differences of clocks may be negative by this much; they count as 0."""

_TINY = 1e-30
"""Smaller figures count as 0, because quotients of them underflow to 0, which has no logarithm."""

_BY_SUFFIX: dict[str, Bounds] = {
    "_per_s": Bounds(0.0, 1e18, "a rate"),
    "bytes_per_step": _SIGNED_BYTES,
    "_s": _SECONDS,
    "_us": Bounds(0.0, 1e15, "microseconds"),
    "_bytes": _BYTES,
    "_fraction": _SHARE,
    "_fractions": _SHARE,
    "share": _SHARE,
    "usable_cores": Bounds(0.01, 2**20, "cores"),
    "_cores": Bounds(0.0, 2**20, "cores"),
    "_threads": _PROCESSES,
    "_c": Bounds(-273.15, 1e4, "degrees Celsius"),
    "_workers": _PROCESSES,
    "world_size": _RANKS,
}
"""By the end of a field's name; the first that fits counts."""

_BY_NAME: dict[str, Bounds] = {
    "aa": _RATIO, "claims": _SECONDS, "categories": _SECONDS, "by_name": _SECONDS, "startup": _SECONDS,
    "matrix_precisions": _SECONDS, "Epoch.phases": _SECONDS, "Block.phases": _SECONDS,
    "DeviceTimes.phases": _SECONDS, "detectable": _RATIO, "machine_factor": _RATIO,
    "speedup": _RATIO, "step_gain": _RATIO, "ratio": _RATIO, "p_value": _SHARE, "noise_band": _RATIO,
    "measured_fraction": _RATIO, "datasheet_fraction": _RATIO, "getitem_cpu_fraction": _RATIO,
    "sampler_core_fraction": _RATIO, "run_noise_fraction": _RATIO, "slow_again": _RATIO,
    "data_wait_share_mean": _SHARE, "data_wait_share_max": _SHARE, "TensorLoop.share": _RATIO, "Overhead.share": _RATIO,
    "NamedTime.share": _RATIO, "RankSummary.waiting_s": _ANY,
    # Counters of the kernel that may go back.
    "iowait_fraction": _ANY, "steal_fraction": _ANY, "involuntary_switches_per_s": _ANY,
    "voluntary_switches_per_s": _ANY, "read_bytes_per_s": _ANY, "write_bytes_per_s": _ANY,
    "Gain.low": _RATIO, "Gain.high": _RATIO, "rank": _RANKS, "prefetch_factor": _PROCESSES,
    "clock_offset_s": Bounds(-1e12, 1e12, "seconds"), "items_per_step": _ANY, "rss_growth_bytes": _SIGNED_BYTES,
    "rest_bytes": _SIGNED_BYTES, "fixed_bytes": _SIGNED_BYTES, "losses": Bounds(-1e300, 1e300, "a number"),
    "scale": Bounds(0.0, 1e300, "a number"), "first_scale": Bounds(0.0, 1e300, "a number"),
    "Evidence.value": _ANY, "Evidence.threshold": _ANY, "values": _ANY, "gradient_clip_val": _ANY,
    "FigureChange.base": _ANY, "FigureChange.new": _ANY, "max_steps": _SIGNED_COUNT, "max_epochs": _SIGNED_COUNT,
    "ArmRun.stage": _SIGNED_COUNT, "numa_node": _SIGNED_COUNT, "process_numa_nodes": _SIGNED_COUNT,
    "line": _SIGNED_COUNT, "seed": Bounds(-(2**64), 2**64, "a seed"), "num_sanity_val_steps": _SIGNED_COUNT,
    "ignore_index": _SIGNED_COUNT,
    # The end of an interval may be below 0.
    "LightningCost.cost_s": Bounds(-1e9, 1e9, "seconds"), "LightningCost.share": _ANY,
    # A request counts when it ends, perhaps in a shorter interval than it took.
    "disk_busy_fraction": _RATIO,
    # Never 0, because rules and reports divide by them.
    "StageTimes.span_s": Bounds(1e-5, 1e9, "seconds"), "StageTimes.n_steps": _POSITIVE_COUNT,
    "local_world_size": _POSITIVE_COUNT, "Generation.n": _POSITIVE_COUNT, "AskedCollection.n": _POSITIVE_COUNT,
    "HostPhase.n_effective": Bounds(1e-3, 2**53, "a positive number"),
    "forward_flops": _PLAIN, "backward_flops": _PLAIN, "recomputed_flops": _PLAIN, "flops": _PLAIN,
}  # fmt: skip
"""By a field's name, with or without its record's name: units that do not follow from the end of the name."""

_CODE = re.compile(r"PD\d{3}")
_FILE_NAME = re.compile(r"[^/\\\n]{1,200}")
_PATTERNS: dict[str, tuple[re.Pattern[str], str]] = {
    "Finding.code": (_CODE, "a code such as PD101"),
    "RuleOutcome.code": (_CODE, "a code such as PD101"),
    "Verdict.code": (_CODE, "a code such as PD101"),
    "Run.id": (_FILE_NAME, "an id of at most 200 characters without slashes"),
}
"""Required forms of texts that become names of files or pages."""

_IN_THE_UNIT_OF_ITS_FIELD: dict[type, frozenset[str]] = {
    Distribution: frozenset(Distribution.__struct_fields__),
    Spread: frozenset(Spread.__struct_fields__) - {"n"},
    Interval: frozenset(Interval.__struct_fields__),
}
"""Records whose figures have the unit of the field that holds the record."""

_ORDERED: dict[type, tuple[str, str]] = {
    Gain: ("low", "high"),
    Interval: ("low", "high"),
    Growth: ("low_bytes_per_step", "high_bytes_per_step"),
    WorkerPoint: ("low_s", "high_s"),
}
"""Ends of intervals."""

_MAX_DEPTH = 16
_MAX_SHOWN_CHARS = 60


class Refused(ValueError):
    """A value that is not valid.

    Attributes:
        path: Its place in the document, from the innermost name outwards.
        problem: The expected and the received value.
        n_lost: Number of innermost names of ``path`` within the value that can be dropped; None if none can.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path: list[str | int] = []
        self.n_lost: int | None = None

    def within(self, name: str | int, *, can_be_dropped: bool) -> None:
        """Add the name of the field, item or key that contains the value."""
        self.path.append(name)
        if can_be_dropped and self.n_lost is None:
            self.n_lost = len(self.path) - 1

    def __str__(self) -> str:
        return f"{self.problem} - at `{dotted(('$', *reversed(self.path)))}`"


def dotted(path: typing.Iterable[str | int]) -> str:
    """Return the path as errors write it: ``$.epochs[0].wall_s``."""
    text = ""
    for name in path:
        text += f"[{name}]" if isinstance(name, int) else f".{' '.join(clean(name).split())[:_MAX_SHOWN_CHARS]}"
    return text.removeprefix(".")


def checked(document: Any, record: type[Record]) -> Any:
    """Return decoded JSON for a record, with cleaned text and without unknown fields.

    Raises:
        Refused: A figure is out of bounds, or a text does not have the required form.
    """
    return _record_check(record, None)(document)


def repaired(document: Any, record: type[Record]) -> tuple[Any, dict[str, str]]:
    """Return the checked document without values that are out of bounds, and the reasons by path.

    Raises ``Refused`` if such a value is required.
    """
    dropped: dict[str, str] = {}
    while True:
        try:
            return checked(document, record), dropped
        except Refused as refusal:
            if refusal.n_lost is None:
                raise
            path = list(reversed(refusal.path))
            *folders, last = path[: len(path) - refusal.n_lost]
            dropped[dotted((*folders, last))] = f"left out: {refusal}"
            place = functools.reduce(lambda inner, name: inner[name], folders, document)
            if isinstance(last, int):
                place[last:] = place[last + 1 :]
            else:
                del place[last]


@functools.cache
def _record_check(record: type[Record], unit: Bounds | None) -> Check:
    """Return the check for a record; ``unit`` are the bounds of figures that have the unit of the field with it."""
    of_field = _IN_THE_UNIT_OF_ITS_FIELD.get(record, frozenset())
    fields: list[tuple[str, Check, bool]] = []
    for field in msgspec.structs.fields(record):
        bounds = unit if unit is not None and field.name in of_field else _bounds(record.__name__, field.name)
        check = _type_check(field.type, f"{record.__name__}.{field.name}", bounds)
        fields.append((field.name, check, field.default is None))
    ordered = _ORDERED.get(record)

    def check_record(value: Any) -> Any:
        if type(value) is not dict:
            return value
        kept = {}
        for name, check, can_be_dropped in fields:
            if name in value:
                try:
                    kept[name] = check(value[name])
                except Refused as refusal:
                    refusal.within(name, can_be_dropped=can_be_dropped)
                    raise
        if ordered is not None:
            _check_order(kept, *ordered)
        return kept

    return check_record


def _check_order(document: dict[str, Any], low: str, high: str) -> None:
    first, last = document.get(low), document.get(high)
    if isinstance(first, (int, float)) and isinstance(last, (int, float)) and first > last:
        raise Refused(f"Expected `{low}` <= `{high}`, got {first!r} and {last!r}")


def _bounds(record: str, field: str) -> Bounds | None:
    """Return the bounds of a field by the tables; None if only its type counts."""
    for name in (f"{record}.{field}", field):
        if name in _BY_NAME:
            return _BY_NAME[name]
    return next((bounds for suffix, bounds in _BY_SUFFIX.items() if field.endswith(suffix)), None)


def _type_check(kind: Any, name: str, bounds: Bounds | None) -> Check:
    """Return the check for values of a type; values of other types pass, because msgspec refuses them."""
    arguments = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        checks = [_type_check(one, name, bounds) for one in arguments if one is not type(None)]
        is_optional = type(None) in arguments
        return _union_check(checks, is_optional)
    if isinstance(kind, type) and issubclass(kind, Record):
        return _record_check(kind, bounds)
    if kind is float or kind is int:
        return _number_check(bounds or (_COUNT if kind is int else _PLAIN))
    if origin is typing.Literal:
        return _choice_check(arguments)
    if kind is str:
        return _text_check(name)
    if origin is tuple:
        return _list_check(_type_check(arguments[0], name, bounds), is_open=arguments[-1] is ...)
    if origin is dict:
        return _mapping_check(_type_check(arguments[1], name, bounds))
    return check_any if kind is Any else _keep


def _union_check(checks: list[Check], is_optional: bool) -> Check:
    def check_union(value: Any) -> Any:
        if value is None and is_optional:
            return None
        for check in checks:
            value = check(value)
        return value

    return check_union


def _number_check(bounds: Bounds) -> Check:
    low, high, unit = bounds
    least = low or _TINY

    def check_number(value: Any) -> Any:
        if type(value) is float or type(value) is int:
            if least <= value <= high:
                return value
            if low - _ROUNDING <= value < least:
                return type(value)(low)
            raise Refused(f"Expected {unit} from {low:g} to {high:g}, got {value:.6g}")
        if value is None:  # JSON has null for NaN and infinity
            raise Refused(f"Expected {unit} from {low:g} to {high:g}, got null, NaN or infinity")
        return value

    return check_number


def _text_check(name: str) -> Check:
    pattern = _PATTERNS.get(name)

    def check_text(value: Any) -> Any:
        if type(value) is not str:
            return value
        text = clean(value)
        if pattern is not None and not pattern[0].fullmatch(text):
            raise Refused(f"Expected {pattern[1]}, got {text[:_MAX_SHOWN_CHARS]!r}")
        return text

    return check_text


def _choice_check(choices: tuple[Any, ...]) -> Check:
    expected = ", ".join(map(repr, choices))

    def check_choice(value: Any) -> Any:
        if type(value) is str and value not in choices:
            raise Refused(f"Expected one of {expected}, got {clean(value)[:_MAX_SHOWN_CHARS]!r}")
        return value

    return check_choice


def _list_check(check: Check, is_open: bool) -> Check:
    def check_list(value: Any) -> Any:
        if type(value) is not list and type(value) is not tuple:
            return value
        kept = []
        for i, one in enumerate(value):
            try:
                kept.append(check(one))
            except Refused as refusal:
                refusal.within(i, can_be_dropped=is_open)
                raise
        return kept

    return check_list


def _mapping_check(check: Check) -> Check:
    def check_mapping(value: Any) -> Any:
        if type(value) is not dict:
            return value
        kept = {}
        for key, one in value.items():
            try:
                kept[clean(key)] = check(one)
            except Refused as refusal:
                refusal.within(key, can_be_dropped=True)
                raise
        return kept

    return check_mapping


def check_any(value: Any, depth: int = 0) -> Any:
    """Return a value of any type, such as an argument of the Trainer, with cleaned text; refuse deep nesting."""
    if depth > _MAX_DEPTH:
        raise Refused(f"Expected at most {_MAX_DEPTH} levels of lists and objects")
    if type(value) is str:
        return clean(value)
    if type(value) is list or type(value) is tuple:
        return [check_any(one, depth + 1) for one in value]
    if type(value) is dict:
        return {clean(key): check_any(one, depth + 1) for key, one in value.items()}
    return value


def _keep(value: Any) -> Any:
    return value
