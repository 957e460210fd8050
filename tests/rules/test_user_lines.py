"""Times of the user's lines from stack samples."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lightning_perf.rules.user_lines import lines_of
from tests.rules.case_files import load_cases

from .session_builder import build_session

CASES = load_cases(Path(__file__).parent / "cases" / "PD511.yml")


@pytest.mark.parametrize(("share", "operator_fraction"), [(1.05, 0.0), (0.5, 1.04)])
def test_line_has_no_negative_time_when_a_part_was_timed_longer_than_the_whole(
    share: float, operator_fraction: float
) -> None:
    session = next(s for case in CASES if (s := build_session(case.get("session"))).host_profile is not None)
    profile = session.host_profile
    assert profile is not None
    name, phase = next((name, each) for name, each in profile.phases.items() if each.lines)
    line = msgspec.structs.replace(phase.lines[0], share=share, operator_fraction=operator_fraction, n_samples=200)
    phase = msgspec.structs.replace(phase, n_effective=200.0, lines=(line,))
    profile = msgspec.structs.replace(profile, phases={name: phase})
    (found,) = lines_of(msgspec.structs.replace(session, host_profile=profile))
    assert 0.0 <= found.low_s <= found.high_s
    assert found.seconds >= 0.0
