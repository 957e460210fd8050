from __future__ import annotations

import html
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.plugin_util import markdown_to_safe_html

from lightning_perf.records import ModelProfile
from lightning_perf.reports.render.markdown import escape, to_markdown
from reports.sessions import SESSIONS, hostile, memory_sampled, starved
from reports.test_html import everything
from tests.golden_files import assert_golden


@pytest.mark.parametrize("name", SESSIONS)
def test_markdown_matches_its_golden_file(name: str) -> None:
    assert_golden(f"reports/{name}.md", to_markdown(SESSIONS[name]()))


@pytest.mark.parametrize("name", SESSIONS)
def test_markdown_tables_have_at_most_five_columns_all_alike(name: str) -> None:
    for table in re.findall(r"(?:^\|.*\n)+", to_markdown(SESSIONS[name](), show_all=True), re.M):
        widths = {len(re.findall(r"(?<!\\)\|", row)) - 1 for row in table.splitlines()}
        assert len(widths) == 1
        assert widths.pop() <= 5


def test_markdown_has_verdict_and_table_before_anything_else() -> None:
    text = to_markdown(starved())
    assert text.startswith("**PerfDoctor: The loader starves the model")
    assert text.index("| data wait") < text.index("### Findings")


def test_markdown_shows_memory_contents_growth_and_headroom() -> None:
    text = to_markdown(memory_sampled())
    assert "| activations | 30.0 % | 12.0 GiB | saved tensors, batch of 64 |" in text
    assert "| buffers" not in text
    assert "### Memory (cuda:0): peak 31.2 GiB, 8.80 GiB cached\n" in text
    assert "\nencoder 12.0 GiB · head\\_a 4.00 GiB\n" in text
    assert "\nafter forward 28.4 GiB · after backward 20.4 GiB · after optimizer 16.4 GiB · " in text
    assert "cuda:0 memory grows 500 MiB per 1,000 steps (95 % CI 488–518 MiB)" in text
    assert "host: no steady growth in 200 readings\n" in text
    assert "largest batch that fits: about 567 (now 64)" in text


def test_markdown_shows_no_headroom_when_no_operator_reads_the_batch() -> None:
    profile = ModelProfile(
        class_name="Net", device="cuda:0", n_parameters=9, n_trainable=9, parameters_bytes=36, reads_batch=False
    )
    assert "largest batch" not in to_markdown(msgspec.structs.replace(memory_sampled(), model_profile=profile))


def test_markdown_reports_no_steady_growth_when_memory_jumped_once() -> None:
    base = memory_sampled()
    jump = msgspec.structs.replace(base.memory.growth[0], is_steady=False)
    memory = msgspec.structs.replace(base.memory, devices=(), breakdown=None, headroom=None, growth=(jump,))
    text = to_markdown(msgspec.structs.replace(base, memory=memory))
    assert "### Memory\n\ncuda:0: no steady growth in 200 readings\n" in text


def test_markdown_shows_hostile_text_unchanged_when_tensorboard_renders_it() -> None:
    shown = markdown_to_safe_html(to_markdown(hostile()))
    assert "<script" not in shown
    assert shown.count("<h1>") == 0
    assert "[bold]x[/bold] [/] &lt;script&gt;alert(1)&lt;/script&gt; | ``` `a` red evil # head takes 12 %" in shown
    assert shown.count("<pre>") == 1
    assert shown.index("About this measurement") > shown.index("</pre>")


def test_markdown_puts_the_fix_into_a_fence_that_its_code_cannot_close() -> None:
    text = to_markdown(hostile())
    assert text.count("````python\n") == 1
    assert text.count("\n````\n") == 1


def test_markdown_shows_the_outcome_of_each_rule_when_all_are_requested() -> None:
    assert "| PD105 bursty-fetch | skipped | no fetch blocked often enough: 3 waits, 8 needed |" in to_markdown(
        starved(), show_all=True
    )
    assert "PD105" not in to_markdown(starved())


def test_folded_heading_shows_no_image_when_a_name_contains_one() -> None:
    session = starved()
    finding = msgspec.structs.replace(session.findings[0], name="![x](https://e.example/x.png)")
    text = to_markdown(msgspec.structs.replace(session, findings=(finding,)), is_folded=True)
    heading = next(line for line in text.splitlines() if "<summary>" in line and "e.example" in line)
    assert not {"[", "]"} & set(heading)
    assert "![x](https://e.example/x.png)" in html.unescape(heading)


@given(st.text(alphabet=st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1))
def test_escaped_text_is_shown_unchanged_when_rendered(text: str) -> None:
    text = " ".join(text.split())
    rendered = markdown_to_safe_html("x " + escape(text))
    assert html.unescape(re.sub(r"<[^>]*>", "", rendered)).strip() == ("x " + text).strip()


@pytest.mark.parametrize("name", ["starved", "hostile", "twelve_findings"])
def test_folded_markdown_matches_its_golden_file(name: str) -> None:
    assert_golden(f"reports/folded_{name}.md", to_markdown(SESSIONS[name](), is_folded=True))


def plain_words(text: str) -> list[str]:
    """Return the words without Markdown's marks of headings and escapes."""
    return html.unescape(re.sub(r"^#+ ", "", text, flags=re.M).replace("\\", "")).split()


def test_folded_markdown_shows_time_and_fixes_outside_the_folds_and_fits_a_comment() -> None:
    text = to_markdown(everything(), is_folded=True)
    open_part = text[: text.index("<details>")]
    assert open_part.index("PerfDoctor") < open_part.index("| data wait") < open_part.index("| rule | fix | speedup")
    assert len(text) < 65_536  # GitHub's limit


@pytest.mark.parametrize("name", SESSIONS)
def test_folded_markdown_has_the_same_text_and_closes_its_tags(name: str) -> None:
    whole, folded = to_markdown(SESSIONS[name](), show_all=True), to_markdown(SESSIONS[name](), True, is_folded=True)
    unfolded = re.sub(r"(<details><summary>|</summary>|</details>)", "", folded)
    assert plain_words(unfolded) == plain_words(whole)
    assert folded.count("<details>") == folded.count("</details>")
