from __future__ import annotations

import json

import msgspec
import pytest

from lightning_perf.errors import ConfigError
from lightning_perf.records import Session
from lightning_perf.reports.json import to_json
from reports.sessions import hostile, starved


def test_json_holds_the_whole_session() -> None:
    assert msgspec.json.decode(to_json(starved()), type=Session) == starved()


def test_json_holds_only_the_fields_asked_for_and_the_schema_version() -> None:
    document = json.loads(to_json(starved(), ["verdict", "findings"]))
    assert sorted(document) == ["findings", "schema_version", "verdict"]
    assert document["verdict"]["code"] == "PD101"


def test_json_refuses_a_field_that_no_session_has() -> None:
    with pytest.raises(ConfigError, match=r"no 'verdicts'; its fields are .*verdict"):
        to_json(starved(), ["verdicts"])


def test_json_is_valid_when_a_figure_is_not_finite() -> None:
    text = to_json(hostile())
    json.loads(text, parse_constant=lambda constant: pytest.fail(constant))
