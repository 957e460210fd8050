"""Comparison of ranks: eight and a thousand."""

from __future__ import annotations

import msgspec
import pytest

from lightning_perf.records import MissingRank, RankSummary, combine_ranks
from lightning_perf.reports import console
from lightning_perf.reports.cells import Value
from lightning_perf.reports.render.markdown import to_markdown
from lightning_perf.reports.sections.ranks import rank_facts, rank_parts, rank_rows, rank_strip, rank_title

from .sessions import ddp


def ranks_of(n: int, slow: dict[int, float] | None = None, n_missing: int = 0):
    slow = slow or {}
    summaries = []
    for rank in range(n):
        data_s = 0.001 + slow.get(rank, 0.0)
        summaries.append(
            RankSummary(
                rank=rank,
                node=f"node{rank // 8}",
                n_steps=500,
                step_s=0.08,
                own_s=0.05 + data_s,
                waiting_s=max(0.0, 0.03 - data_s),
                waiting_n=20,
                parts_s={"data": data_s, "compute": 0.048, "host": 0.002},
                n_batches=500,
            )
        )
    missing = tuple(MissingRank(rank=n + i, reason="it did not report within 2 s") for i in range(n_missing))
    return combine_ranks(tuple(summaries), n + n_missing, missing)


def test_each_of_few_ranks_has_its_row() -> None:
    rows = rank_rows(ranks_of(4, {2: 0.02}))
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    assert rows[2][2] == Value("21.0 ms", 0.021)
    assert rows[2][5] == Value("9.00 ms", pytest.approx(0.009))
    assert rank_strip(ranks_of(4)) == ""


def test_thousand_ranks_are_summarized_in_a_few_rows() -> None:
    ranks = ranks_of(1024, {700: 0.02, 3: 0.01})
    rows = rank_rows(ranks)
    assert [row[0] for row in rows[:2]] == ["700", "3"]
    assert rows[-2][0] == "median"
    assert len(rows) <= 8
    strip = rank_strip(ranks)
    assert len(strip) == 64
    assert strip[700 * 64 // 1024] == "█"
    assert strip[3 * 64 // 1024] in "▄▅"
    assert strip.count("▁") == 62
    assert rank_title(ranks) == "Ranks: 1024 on 128 machines, mean per step"


def test_strip_is_flat_when_ranks_are_alike() -> None:
    assert set(rank_strip(ranks_of(100))) == {"▁"}


def test_missing_ranks_are_reported() -> None:
    ranks = ranks_of(8, n_missing=5)
    assert rank_title(ranks).startswith("Ranks: 8 of 13 on 1 machine")
    facts = rank_facts(ranks)
    assert "rank 8: it did not report within 2 s" in facts
    assert facts[-1] == "2 more ranks did not report"


@pytest.mark.parametrize("n", [2, 8, 1024])
def test_reports_hold_the_ranks_at_any_width(n: int) -> None:
    session = msgspec.structs.replace(ddp(), ranks=ranks_of(n, {1: 0.02}))
    assert "Ranks: " in to_markdown(session)
    for width in (60, 80, 120):
        text = console.to_text(console.session_document(session), width=width)
        lines = text[text.index(f"Ranks: {n} on") :].split("\n\n")[0].splitlines()
        assert len(lines) <= 14
        assert max(map(len, lines)) <= width


def test_findings_of_few_ranks_are_reported_with_their_numbers() -> None:
    ranks = ranks_of(8)
    found = {3: ("PD801 thermal-throttling", "PD606 step-outliers"), 5: ("PD801 thermal-throttling",)}
    summaries = tuple(
        msgspec.structs.replace(one, found=(*found.get(one.rank, ()), "PD301 full-precision-matmul"))
        for one in ranks.summaries
    )
    facts = rank_facts(msgspec.structs.replace(ranks, summaries=summaries))
    assert "PD801 thermal-throttling on ranks 3, 5" in facts
    assert not any("PD301" in fact or "PD606" in fact for fact in facts)


def test_ranks_are_shown_when_several_reported_or_one_is_missing() -> None:
    assert list(rank_parts(ranks_of(2)))
    assert list(rank_parts(ranks_of(1, n_missing=1)))
    assert not list(rank_parts(ranks_of(1)))
