from __future__ import annotations

import json

import msgspec
import pytest

from lightning_perf.records import Session
from lightning_perf.reports import formats
from reports.sessions import hostile, starved


def drawn(session: Session) -> str:
    return formats.FORMATS["json"].draw(session, False, "")


def test_json_holds_the_whole_session() -> None:
    assert msgspec.json.decode(drawn(starved()), type=Session) == starved()


def test_json_is_valid_when_a_figure_is_not_finite() -> None:
    json.loads(drawn(hostile()), parse_constant=lambda constant: pytest.fail(constant))
