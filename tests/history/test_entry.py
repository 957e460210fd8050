from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect
from reports.sessions import SESSIONS

from lightning_perf.history.entry import MAX_BLOCKS, coarsened, key_of, reduced
from lightning_perf.probes.settings.provenance import digest_of
from lightning_perf.records import Session, from_json
from lightning_perf.stats.comparison import compare_sessions

from .runs import run

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "history.md"


def filled(kind: inspect.Type) -> Any:
    """Return a value of a type in which every field holds something."""
    if isinstance(kind, inspect.StructType):
        return kind.cls(**{field.name: filled(field.type) for field in kind.fields})
    if isinstance(kind, inspect.UnionType):
        return filled(next(each for each in kind.types if not isinstance(each, inspect.NoneType)))
    if isinstance(kind, inspect.DictType):
        return {"key": filled(kind.value_type)}
    if isinstance(kind, inspect.VarTupleType):
        return (filled(kind.item_type),)
    if isinstance(kind, inspect.TupleType):
        return tuple(map(filled, kind.item_types))
    values: dict[type, Any] = {inspect.BoolType: True, inspect.IntType: 1, inspect.FloatType: 1.0}
    return kind.values[0] if isinstance(kind, inspect.LiteralType) else values.get(type(kind), "text")


def fields(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield record and field of what a session holds."""
    for each in value:
        for field in each.__struct_fields__:
            found = getattr(each, field)
            inner = found.values() if isinstance(found, dict) else found if isinstance(found, tuple) else (found,)
            if any(isinstance(one, msgspec.Struct) for one in inner):
                yield from fields(inner, f"{name}.{field}".removeprefix("session."))
            elif found not in (None, "", (), {}):
                yield name, field


def test_key_is_equal_for_runs_with_other_settings_only() -> None:
    same = [run(1), run(2, loader={"batch_size": 64, "num_workers": 0}), run(3, trainer={"precision": "32-true"}),
            run(4, provenance={"commit": "b", "sample_shapes": ("3x64x64", "")}),
            run(5, machine={"versions": {"torch": "3"}})]  # fmt: skip
    assert len({key_of(each) for each in same}) == 1
    other = [run(6, machine={"cpu_model": "another"}), run(7, provenance={"parameters": "q"}),
             run(8, provenance={"sample_shapes": ("3x32x32",)})]  # fmt: skip
    assert len({key_of(each) for each in (*same, *other)}) == 4


def test_key_is_that_of_the_whole_session() -> None:
    for make in SESSIONS.values():
        assert key_of(reduced(make())) == key_of(make())


@pytest.mark.parametrize("name", sorted(set(SESSIONS) - {"hostile"}))
def test_reduced_session_is_a_valid_session(name: str) -> None:
    part = reduced(SESSIONS[name]())
    assert from_json(msgspec.json.encode(part), "row") == part
    assert reduced(part) == part


def test_kept_runs_compare_like_whole_sessions() -> None:
    whole = compare_sessions([("", run(1))], [("", run(2, slower=1.2))])
    part = compare_sessions([("", reduced(run(1)))], [("", reduced(run(2, slower=1.2)))])
    assert whole.time("step").ratio.value == pytest.approx(part.time("step").ratio.value, rel=0.02)
    assert whole.time("wall") == part.time("wall")
    assert part.settings == whole.settings


def test_texts_of_findings_are_not_kept() -> None:
    part = reduced(SESSIONS["starved"]())
    assert part.findings
    text = part.to_json().decode()
    for finding in SESSIONS["starved"]().findings:
        assert finding.summary not in text
        assert all(fix.code not in text for fix in finding.prescriptions if fix.code)


def test_certainty_of_findings_is_kept() -> None:
    session = SESSIONS["starved"]()
    unsure = msgspec.structs.replace(session.findings[0], confidence="low", is_preflight=True)
    [kept] = reduced(msgspec.structs.replace(session, findings=(unsure,))).findings
    assert (kept.confidence, kept.is_preflight) == ("low", True)


def test_timeline_is_coarse_and_has_the_same_mean() -> None:
    blocks = run(1).steady.timeline
    merged = coarsened(blocks)
    assert len(merged) <= MAX_BLOCKS < len(blocks)
    assert len({each.n_steps for each in merged}) == 1
    n = sum(each.n_steps for each in merged)
    covered = [each for each in blocks if each.first_step < merged[-1].first_step + merged[-1].n_steps]
    mean_s = sum(each.step_s * each.n_steps for each in covered) / n
    assert sum(each.step_s * each.n_steps for each in merged) / n == pytest.approx(mean_s, rel=1e-3)


def test_page_lists_each_field_that_is_kept() -> None:
    """A field that is new in a record must be described before it is kept."""
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    listed = {(record, field) for record, names in rows for field in re.findall(r"`(\w+)`", names)}
    found = set(fields([reduced(filled(inspect.type_info(Session)))], "session"))
    assert sorted(found - listed) == []
    assert sorted(listed - found) == []


def test_every_field_of_the_session_is_kept_or_left_out_on_purpose() -> None:
    left_out = {"validation", "ranks", "windows", "trials", "overhead", "probes_off", "missing",
                "loader_probe", "model_profile", "sync_calls", "compiler", "loss_scaler", "applied", "host_profile",
                "collections", "replay", "earlier", "hangs", "padding", "autopilot"}  # fmt: skip
    is_kept = {"schema_version", "run", "machine", "settings", "epochs", "steady", "memory", "findings", "outcomes",
               "verdict", "telemetry", "provenance"}  # fmt: skip
    assert left_out | is_kept == set(Session.__struct_fields__)


def test_loops_of_unwatched_models_are_distinguished_by_their_script() -> None:
    keys = []
    for script in ("a.py", "b.py"):
        keys.append(key_of(run(1, provenance={"parameters": digest_of(()), "script": script})))
    assert keys[0] != keys[1]
