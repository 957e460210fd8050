import copy
import functools
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from reports.sessions import starved

from lightning_perf.errors import SessionError
from lightning_perf.records import (
    HostTelemetry,
    Interval,
    LightningCost,
    Session,
    Spread,
    Telemetry,
    Trial,
    from_json,
    load,
)
from lightning_perf.records.session import SCHEMA_VERSION
from lightning_perf.records.validation import Refused, checked
from tests.hostile import filled

WHOLE: dict[str, Any] = filled(Session)
HOSTILE = "\x1b[31mred\x1b[0m\x07 \u202eevil\x9b1m"


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not isinstance(value, (dict, list)):
        yield path, value
    for key, inner in items:
        yield from leaves(inner, (*path, key))


def replaced(path: tuple[str | int, ...], value: Any) -> bytes:
    document = copy.deepcopy(WHOLE)
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return msgspec.json.encode(document)


def refusal(content: bytes) -> str:
    with pytest.raises(SessionError, match="is not a valid session") as refused:
        from_json(content, "a file")
    return str(refused.value)


def with_wall_s(session: Session, wall_s: float) -> Session:
    return msgspec.structs.replace(session, run=msgspec.structs.replace(session.run, wall_s=wall_s))


FIGURES = [
    path
    for path, value in leaves(WHOLE)
    if type(value) in (int, float) and path != ("schema_version",) and not {"trainer_flags", "loader_args"} & {*path}
]


def test_figure_is_refused_with_its_name_when_it_is_beyond_every_bound() -> None:
    assert len(FIGURES) > 1_000
    document = copy.deepcopy(WHOLE)
    for path in FIGURES:
        *folders, last = path
        place = functools.reduce(lambda inner, name: inner[name], folders, document)
        for value in (1e308, -1e308):
            kept, place[last] = place[last], value
            with pytest.raises(Refused) as refused:
                checked(document, Session)
            place[last] = kept
            assert str(last) in str(refused.value).rpartition("$")[2]
            assert len(str(refused.value)) < 200
    checked(document, Session)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("run.wall_s", -1.0, "Expected seconds from 0 to 1e+09, got -1 - at `$.run.wall_s`"),
        ("run.n_steps", 2**63, "Expected a count from 0 to 9.0072e+15, got 9.22337e+18 - at `$.run.n_steps`"),
        ("run.world_size", -2, "Expected a count from 0 to"),
        ("machine.local_world_size", 0, "Expected a count of 1 or more from 1 to"),
        ("machine.usable_cores", 0.0, "Expected cores from 0.01 to"),
        ("steady.device.starved_share", 1.2, "Expected a share from 0 to 1.05, got 1.2"),
        ("steady.step_s.p50", 1e10, "Expected seconds from 0 to 1e+09, got 1e+10 - at `$.steady.step_s.p50`"),
        ("telemetry.host.cpu_busy_fraction.max", 3.0, "Expected a share from 0 to 1.05, got 3"),
        ("telemetry.host.rss_bytes.p50", -1.0, "Expected bytes from 0 to"),
        ("findings.0.gain.low", 2.0, "Expected `low` <= `high`, got 2.0 and 0.5 - at `$.findings[0].gain`"),
        ("loader_probe.curve.0.high_s", 0.0, "Expected `low_s` <= `high_s`, got"),
        ("steady.span_s", 0.0, "Expected seconds from 1e-05 to 1e+09, got 0"),
        ("steady.n_steps", 0, "Expected a count of 1 or more from 1 to"),
        ("collections.generations.0.n", 0, "Expected a count of 1 or more from 1 to"),
        ("collections.asked.0.n", 0, "Expected a count of 1 or more from 1 to"),
        (
            "host_profile.phases." + next(iter(WHOLE["host_profile"]["phases"])) + ".n_effective",
            0.0,
            "Expected a positive number from 0.001 to",
        ),
        ("findings.0.code", "PD\x1b[31m1", "Expected a code such as PD101, got 'PD1' - at `$.findings[0].code`"),
        ("outcomes.1.code", "<b>", "Expected a code such as PD101, got '<b>'"),
        ("run.id", "../../other", "Expected an id of at most 200 characters without slashes"),
        ("run.status", "x" * 9_000, "Expected one of 'running', 'finished', 'interrupted', 'failed', got 'xxxx"),
        ("epochs.0.phases.data_wait", None, "Expected seconds from 0 to 1e+09, got null, NaN or infinity"),
    ],
)
def test_load_names_the_bounds_when_a_value_is_outside(path: str, value: object, expected: str) -> None:
    steps = tuple(int(step) if step.isdigit() else step for step in path.split("."))
    message = refusal(replaced(steps, value))
    assert expected in message
    assert "\n" not in message
    assert len(message) < 300


def test_load_takes_control_characters_out_of_every_text_and_key() -> None:
    document = copy.deepcopy(WHOLE)
    choices = {"PD101", *(choice for choices in _literals(Session, set()) for choice in choices)}

    def hostile(value: Any) -> Any:
        if isinstance(value, dict):
            is_record = all(isinstance(key, str) and key.isidentifier() and key in FIELDS for key in value)
            return {key if is_record else HOSTILE + key: hostile(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [hostile(one) for one in value]
        return HOSTILE + value if isinstance(value, str) and value not in choices else value

    text = from_json(msgspec.json.encode(hostile(document)), "a file").to_json().decode()
    assert text.count("red evil") > 500
    assert [sign for sign in ("\\u001b", "\\u0007", "\u202e", "\x9b") if sign in text] == []


def _literals(kind: Any, seen: set[Any]) -> Iterator[tuple[Any, ...]]:
    if typing.get_origin(kind) is typing.Literal:
        yield typing.get_args(kind)
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if kind not in seen:
            seen.add(kind)
            FIELDS.update(kind.__struct_fields__)
            for hint in typing.get_type_hints(kind).values():
                yield from _literals(hint, seen)
    else:
        for argument in typing.get_args(kind):
            yield from _literals(argument, seen)


FIELDS: set[str] = set()


@pytest.mark.parametrize("seconds", [-1e-9, 5e-324, -0.0])
def test_figure_counts_as_zero_when_rounding_made_it(seconds: float) -> None:
    assert from_json(replaced(("run", "wall_s"), seconds), "a file").run.wall_s == 0


def test_load_refuses_arguments_of_a_trainer_when_they_are_nested_deeply() -> None:
    nested: Any = []
    for _ in range(400):
        nested = [nested]
    content = replaced(("findings", 0, "prescriptions", 0, "trainer_flags", "a"), nested)
    assert "Expected at most 16 levels" in refusal(content)


def test_save_drops_optional_values_with_a_reason_when_they_are_out_of_bounds(tmp_path: Any) -> None:
    whole = from_json(msgspec.json.encode(WHOLE), "a session")
    steady = msgspec.structs.replace(
        whole.steady,
        gc_s=-5.0,
        step_s=msgspec.structs.replace(whole.steady.step_s, p50=float("nan")),
    )
    epochs = (msgspec.structs.replace(whole.epochs[0], wall_s=float("inf")), whole.epochs[1])
    saved = load(msgspec.structs.replace(whole, steady=steady, epochs=epochs).save(tmp_path))
    assert saved.steady is None
    assert saved.epochs == whole.epochs[1:]
    assert saved.findings == whole.findings
    assert "got null, NaN or infinity" in saved.missing["steady"]
    assert "at `$.epochs[0].wall_s`" in saved.missing["epochs[0]"]
    assert load(saved.save(tmp_path)) == saved


def test_save_drops_a_single_optional_figure_when_only_that_is_out_of_bounds(tmp_path: Any) -> None:
    session = starved()
    steady = msgspec.structs.replace(session.steady, gc_s=-5.0)
    saved = load(msgspec.structs.replace(session, steady=steady).save(tmp_path))
    assert saved.steady == msgspec.structs.replace(steady, gc_s=None)
    assert "got -5" in saved.missing["steady.gc_s"]


@pytest.mark.parametrize("wall_s", [float("nan"), float("inf"), -3.0, 1e12])
def test_save_writes_nothing_when_a_required_figure_is_out_of_bounds(wall_s: float, tmp_path: Any) -> None:
    with pytest.raises(SessionError, match=r"this session is not valid: .*\$\.run\.wall_s"):
        with_wall_s(starved(), wall_s).save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_saved_session_has_an_interval_of_costs_that_reaches_below_zero(tmp_path: Any) -> None:
    cost = LightningCost(step_s=0.1, cost_s=Interval(value=0.001, low=-0.001, high=0.003),
                         share=Interval(value=0.01, low=-0.01, high=0.03))  # fmt: skip
    trial = Trial(id="t", command=("x",), status="finished", started_at="", lightning_cost=cost)
    saved = load(msgspec.structs.replace(starved(), trials=(trial,)).save(tmp_path))
    assert saved.trials[0].lightning_cost == cost


def test_saved_session_has_a_disk_that_was_busy_for_longer_than_an_interval(tmp_path: Any) -> None:
    busy = Spread(n=9, mean=0.4, p5=0.0, p50=0.2, p95=1.1, min=0.0, max=1.4)
    telemetry = Telemetry(hz=1.0, host=HostTelemetry(disk_busy_fraction=busy))
    saved = load(msgspec.structs.replace(starved(), telemetry=telemetry).save(tmp_path))
    assert saved.telemetry.host.disk_busy_fraction == busy


def test_session_of_this_version_is_written_as_it_is_loaded(tmp_path: Any) -> None:
    content = msgspec.json.encode({**WHOLE, "schema_version": SCHEMA_VERSION})
    session = from_json(content, "a file")
    assert load(session.save(tmp_path)) == session
