from __future__ import annotations

from lightning_perf.reports.document import facts, note, section, table


def test_section_leaves_out_parts_without_content() -> None:
    kept = note("text")
    parts = [note(""), kept, facts([""], "label"), table(("a",), []), table(("a", "b"), [("", "")])]
    assert section("key", "title", parts).parts == (kept,)
