"""The table of phases, with the device's times where there are any."""

from __future__ import annotations

import msgspec
import pytest

from lightning_perf.records import Session
from lightning_perf.reports.cells import text_of
from lightning_perf.reports.document import Table
from lightning_perf.reports.render.html import to_page
from lightning_perf.reports.sections.phases import steady_parts
from lightning_perf.reports.session_document import session_document
from reports.sessions import ddp, starved


def phases_of(session: Session) -> Table:
    (table,) = [part for part in steady_parts(session) if isinstance(part, Table)]
    return table


def test_device_has_a_column_that_every_report_shows_when_it_was_timed() -> None:
    table = phases_of(ddp())
    column = table.heads.index("p50 on device")
    shown = {row[0]: text_of(row[column]) for row in table.rows if text_of(row[column])}
    assert shown == {"backward": "45.1 ms", "forward": "22.5 ms", "optimizer": "2.10 ms"}
    assert "p50 on device" in to_page(ddp())
    assert b"p50 on device" in msgspec.json.encode(session_document(ddp()))  # what the tab draws


@pytest.mark.parametrize("has_clock", [False, True])
def test_device_has_no_column_when_its_phases_were_not_timed(has_clock: bool) -> None:
    session = starved()
    if has_clock:
        steady = ddp().steady
        assert steady is not None
        assert steady.device is not None
        device = msgspec.structs.replace(steady.device, phases={})
        session = msgspec.structs.replace(ddp(), steady=msgspec.structs.replace(steady, device=device))
    assert phases_of(session).heads == ("phase", "share", "total", "p50 per step", "p95 per step")


def test_phase_that_is_short_on_the_host_has_its_own_row_when_the_device_timed_it() -> None:
    session = ddp()
    steady = session.steady
    assert steady is not None
    short = {name: msgspec.structs.replace(steady.phases["optimizer"], total_s=0.01) for name in ("optimizer", "other")}
    other = msgspec.structs.replace(short["other"], total_s=0.02)
    phases = {**steady.phases, **short, "logging": other}
    session = msgspec.structs.replace(session, steady=msgspec.structs.replace(steady, phases=phases))
    names = [row[0] for row in phases_of(session).rows]
    assert "optimizer" in names
    assert "2 smaller" in names
