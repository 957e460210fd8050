import inspect
import typing

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_perf import records
from lightning_perf.records import Record, Session

TEXTS = st.text(max_size=12)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | TEXTS, lambda inner: st.lists(inner, max_size=2))


def values(kind: object, depth: int) -> st.SearchStrategy[object]:
    """Values of an annotated type, for every type that a record uses; a new one must be added here."""
    simple = {float: FLOATS, int: st.integers(-(2**53), 2**53), bool: st.booleans(), str: TEXTS,
              type(None): st.none(), typing.Any: JSON}  # fmt: skip
    if kind in simple:
        return simple[kind]  # type: ignore[index]
    if isinstance(kind, type) and issubclass(kind, Record):
        return records_of(kind, depth - 1)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[1:] == (...,):
        return st.lists(values(arguments[0], depth), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*(values(argument, depth) for argument in arguments))
    if origin is dict:
        return st.dictionaries(TEXTS, values(arguments[1], depth), max_size=2)
    if arguments:
        return st.one_of(*(values(argument, depth) for argument in arguments))
    raise AssertionError(f"no values are known for {kind}")


def records_of(record: type[Record], depth: int) -> st.SearchStrategy[Record]:
    """Records; below ``depth`` only what they cannot do without: each kind has its own turn at the top."""
    hints = typing.get_type_hints(record)
    names = [name for name in record.__struct_fields__ if name != "schema_version"]
    if depth <= 0:
        names = [field.name for field in msgspec.structs.fields(record) if field.required]
    return st.builds(record, **{name: values(hints[name], depth) for name in names})


RECORDS = sorted(
    (value for value in vars(records).values() if isinstance(value, type) and issubclass(value, Record)),
    key=lambda record: record.__name__,
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_record_is_the_same_after_a_round_trip_through_json(record: type[Record]) -> None:
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(records_of(record, depth=2 if record is not Session else 1))
    def check(value: Record) -> None:
        assert msgspec.json.decode(msgspec.json.encode(value), type=record) == value

    check()


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_record_is_frozen_tolerant_and_keyword_only(record: type[Record]) -> None:
    assert record.__struct_config__.frozen
    assert not record.__struct_config__.forbid_unknown_fields
    kinds = {parameter.kind for parameter in inspect.signature(record).parameters.values()}
    assert kinds <= {inspect.Parameter.KEYWORD_ONLY}


NOT_NOTHING = {
    "ArmRun.batches_per_step": 1, "ArmRun.loss_every": 1, "DeviceActivity.n_devices": 1, "DeviceActivity.n_streams": 1,
    "GraphBreak.n": 1, "HotFunction.is_users": True, "Machine.usable_cores": 1.0, "Machine.local_world_size": 1,
    "ModelProfile.module_depth": 1, "RepeatedRows.is_regular": True, "Run.has_trainer": True, "Run.world_size": 1,
    "Session.schema_version": 1, "TrainerSettings.world_size": 1, "Trial.noise_band": 0.01,
}  # fmt: skip
"""Numeric fields with another default than 0 or None."""


def test_number_is_zero_or_none_when_it_was_not_measured() -> None:
    found = {
        f"{record.__name__}.{field.name}": field.default
        for record in RECORDS
        for field in msgspec.structs.fields(record)
        if isinstance(field.default, int | float) and field.default
    }
    assert found == NOT_NOTHING


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_record_has_no_bare_percent(record: type[Record]) -> None:
    assert not [field for field in record.__struct_fields__ if "percent" in field or field.endswith("_pct")]
