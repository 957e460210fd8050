"""A session from a stranger is refused in one line, or shown in every form without harm."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from rules.session_builder import build_session

from lightning_perf.errors import SessionError
from lightning_perf.records import Session, from_json
from lightning_perf.reports.console import brief_report, to_text
from reports.sessions import SESSIONS
from reports.trials import broken, climbed, fruitless
from tests.fuzzing import FUZZ
from tests.hostile import assert_harmless, filled, mutated, plain_figures, refusal_of, session_forms

TESTS = Path(__file__).parents[1]
N_CHUNKS = 10
N_SESSIONS = 2_000 * FUZZ if FUZZ > 1 else 200
"""Of all chunks together: 20,000 in ``make torture``."""

__all__ = ["plain_figures"]


@functools.cache
def rich_sessions() -> tuple[bytes, ...]:
    """Return sessions that fill as many fields as possible."""
    whole: dict[str, Any] = filled(Session)
    on_cpu = {**whole, "machine": {**whole["machine"], "devices": []}}
    golden = (TESTS / "records" / "golden" / "session_v1.json").read_bytes()
    tried = msgspec.structs.replace(SESSIONS["starved"](), trials=(climbed(), fruitless(), broken()))
    return msgspec.json.encode(whole), msgspec.json.encode(on_cpu), golden, tried.to_json()


@functools.cache
def made_up_sessions() -> tuple[bytes, ...]:
    """Return the sessions that reports and rules are tested on."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    reported = [make().to_json() for name, make in SESSIONS.items() if name != "hostile"]
    ruled = [
        build_session(case.get("session")).to_json()
        for file in sorted((TESTS / "rules" / "cases").glob("*.yml"))
        for case in yaml.load(file.read_text(encoding="utf-8"), loader)
    ]
    return (*reported, *ruled)


def test_session_of_ours_is_loaded_when_it_is_healthy_or_not() -> None:
    for content in (*rich_sessions(), *made_up_sessions()):
        session = from_json(content, "a session of ours")
        assert session == from_json(session.to_json(), "the same")


@pytest.mark.usefixtures("plain_figures")
@pytest.mark.parametrize("chunk", range(N_CHUNKS))
def test_session_is_refused_or_shown_without_harm_when_its_content_is_hostile(chunk: int) -> None:
    rich, made_up = rich_sessions(), made_up_sessions()
    base = from_json(rich[2], "base")
    for i in range(chunk, N_SESSIONS, N_CHUNKS):
        rng = random.Random(i)
        content = msgspec.json.encode(mutated(rich if rng.random() < 0.4 else made_up, rng))
        try:
            if refusal_of(lambda: from_json(content, "a file"), SessionError) is None:  # noqa: B023
                session = from_json(content, "a file")
                assert_harmless("console", to_text(brief_report(session, "run")))
                for form, text in session_forms(session, base, is_whole=i % 4 == 0):
                    assert_harmless(form, text)
        except Exception as error:
            raise AssertionError(f"session {i} fails") from error
