from __future__ import annotations

import msgspec
import pytest

from lightning_perf.errors import SessionError
from lightning_perf.records import Autopilot, AutopilotTry, Interval, Session
from lightning_perf.records.session import from_json
from lightning_perf.reports.brief import brief_report
from lightning_perf.reports.console import session_document, to_text
from lightning_perf.reports.render.html import to_page
from lightning_perf.reports.render.markdown import to_markdown
from lightning_perf.reports.sections.autopilot import decision_line
from reports.sessions import SESSIONS

KEPT = AutopilotTry(
    treatment="loader-workers=2", setting="num_workers=2", finding="PD101", status="kept", unit="epoch",
    first_step=40, last_step=1_000, n_pairs=12, speedup=Interval(value=1.74, low=1.69, high=1.8),
)  # fmt: skip
UNDONE = AutopilotTry(
    treatment="threads=2", setting="threads=2", finding="PD304", status="undone", unit="step", block_steps=20,
    first_step=1_000, last_step=1_300, n_pairs=6, speedup=Interval(value=0.97, low=0.95, high=0.99), lost_s=0.4,
)  # fmt: skip
REFUSED = msgspec.structs.replace(UNDONE, status="refused", n_pairs=0, speedup=None, reason="it \x1b[31mfailed")
TRYING = msgspec.structs.replace(REFUSED, status="trying", reason="", is_treated=True)


def session(*tries: AutopilotTry) -> Session:
    pilot = Autopilot(
        safety="numerics", tries=tries, waiting=("anomaly-off",), lost_s=0.4, budget_s=2.0,
        speedup=KEPT.speedup, code="DataLoader(..., num_workers=2)",
    )  # fmt: skip
    return msgspec.structs.replace(SESSIONS["starved"](), autopilot=pilot)


def test_decisions_are_one_line_each() -> None:
    assert decision_line(KEPT) == "kept num_workers=2: 1.74x (1.69–1.80), 12 + 12 epochs"
    assert decision_line(UNDONE) == "undid threads=2: 0.97x (0.95–0.99), 6 + 6 blocks"
    assert decision_line(REFUSED) == "left out threads=2: it failed"


def test_section_has_a_row_per_decision_and_the_lines_for_the_next_run() -> None:
    text = to_text(session_document(session(KEPT, UNDONE, TRYING)), width=200)
    shown = to_markdown(session(KEPT, UNDONE, TRYING)).splitlines()
    rows = [
        "workers=2 | kept | 1.74x | 1.69–1.80 | 12 + 12 epochs |",
        "threads=2 | undid | 0.97x | 0.95–0.99 | 6 + 6 blocks |",
    ]
    assert all(any(row in line for line in shown) for row in rows)
    assert any("the run ended in a block with it" in line for line in shown)
    assert any("not tried: anomaly-off" in line for line in shown)
    assert "DataLoader(..., num_workers=2)" in text
    for page in (to_markdown(session(KEPT)), to_page(session(KEPT), "")):
        assert "1.74x (1.69–1.80)" in page


def test_brief_report_has_the_total_and_how_the_next_run_starts() -> None:
    lines = to_text(brief_report(session(KEPT), None), width=80).splitlines()
    assert any(line.startswith("kept ") and "1.74x (1.69–1.80): num_workers=2" in line for line in lines)
    assert "next run DataLoader(..., num_workers=2)" in lines


def test_kept_fix_is_reported_as_set_with_its_measured_speedup() -> None:
    (fix, *_) = SESSIONS["starved"]().findings[0].prescriptions
    kept = msgspec.structs.replace(KEPT, treatment=fix.treatment)
    lines = to_text(brief_report(session(kept), None), width=80).splitlines()
    assert "the autopilot set" in " ".join(line.strip() for line in lines[:2]).replace("PD101 ", "")
    assert any("kept" in line and "1.7x measured" in line for line in lines)
    assert "the autopilot did so in this run" in to_markdown(session(kept))
    other = msgspec.structs.replace(kept, setting="num_workers=9")
    text = to_text(brief_report(session(other), None), width=80)
    assert "the autopilot set" not in text
    assert "measured" not in text


@pytest.mark.parametrize(("high", "is_shown"), [(0.99, True), (1.34, False)])
def test_speedup_of_an_undone_fix_is_shown_if_it_is_conclusive(high: float, is_shown: bool) -> None:
    starved = session(UNDONE)
    fix = starved.findings[0].prescriptions[0]
    speedup = Interval(value=0.97, low=0.7, high=high)
    undone = msgspec.structs.replace(UNDONE, treatment=fix.treatment, setting="num_workers=2", speedup=speedup)
    text = to_text(brief_report(session(undone), None), width=80)
    assert ("0.97x measured" in text) == is_shown
    assert any("no gain" in why for why in session(undone).left_out().values()) == is_shown


def test_session_file_holds_the_decisions_and_refuses_impossible_ones() -> None:
    before = session(KEPT, UNDONE)
    assert from_json(before.to_json(), "test").autopilot == before.autopilot
    broken = msgspec.json.decode(before.to_json())
    broken["autopilot"]["lost_s"] = -5.0
    with pytest.raises(SessionError, match="lost_s"):
        from_json(msgspec.json.encode(broken), "test")


def test_there_is_no_section_without_an_autopilot() -> None:
    assert "Autopilot" not in to_text(session_document(SESSIONS["starved"]()), width=80)
