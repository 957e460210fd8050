from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.records import Evidence, Gain
from lightning_perf.reports import wording


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "n/a"),
        (math.nan, "n/a"),
        (math.inf, "n/a"),
        (0.0, "0 s"),
        (3.2e-8, "32.0 ns"),
        (9.994e-7, "999 ns"),
        (9.996e-7, "1.00 µs"),
        (14.2e-6, "14.2 µs"),
        (0.0123, "12.3 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (12.28, "12.3 s"),
        (59.4, "59.4 s"),
        (59.6, "1 min 00 s"),
        (123.4, "2 min 03 s"),
        (3599.9, "1 h 00 min"),
        (3720.0, "1 h 02 min"),
        (90_000_000.0, "25,000 h 00 min"),
        (-0.002, "-2.00 ms"),
    ],
)
def test_seconds_are_shown_in_a_fitting_unit(value: float | None, expected: str) -> None:
    assert wording.seconds(value) == expected


def test_seconds_column_has_three_digits_and_one_unit_fit_for_the_largest() -> None:
    assert wording.seconds_column([6.64, 0.41, None, math.nan]) == ["6.64 s", "0.41 s", "", "n/a"]
    assert wording.seconds_column([0.1056, 0.0166, 0.00086, 1e-9]) == ["106 ms", "16.6 ms", "0.86 ms", "0.00 ms"]
    assert wording.seconds_column([]) == []
    assert wording.seconds_column([36_000.0]) == ["10.0 h"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "n/a"), (math.nan, "n/a"), (0.0, "0 %"), (0.0001, "<0.1 %"), (0.003, "0.3 %"), (0.0994, "9.9 %"),
     (0.0996, "10 %"), (0.541, "54 %"), (1.0, "100 %")],
)  # fmt: skip
def test_share_is_shown_as_percent(value: float | None, expected: str) -> None:
    assert wording.share(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "n/a"), (0, "0 B"), (999, "999 B"), (1000, "0.98 KiB"), (1536, "1.50 KiB"), (31.2 * 1024**3, "31.2 GiB"),
     (5 * 1024**4, "5.00 TiB")],
)  # fmt: skip
def test_size_is_shown_in_binary_units(value: float | None, expected: str) -> None:
    assert wording.size(value) == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.7, 2.1, "1.7–2.1x"),
        (1.08, 1.23, "1.08–1.23x"),
        (1.0, 2.1, "up to 2.1x"),
        (1.06, 1.54, "1.06–1.54x"),
        (1.46, 1.62, "1.4–1.7x"),
        (1.1, 1.2, "1.10–1.20x"),
        (1.0, 1.035, "up to 1.04x"),
        (1.0, 1.021, "up to 1.03x"),
        (1.0, 1.02, ""),
        (1.73, 1.74, "1.7–1.8x"),
        (9.6, 14.2, "9.6–15x"),
        (1.0, math.inf, ""),
    ],
)
def test_speedup_is_shown_as_an_interval(low: float, high: float, expected: str) -> None:
    assert wording.gain(Gain(low=low, high=high, basis="", method="timed")) == expected


def test_gain_is_empty_without_one() -> None:
    assert wording.gain(None) == ""


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [(0.0171, "s", "17.1 ms"), (20.0, "us", "20.0 µs"), (0.5, "fraction", "50 %"), (2048, "bytes", "2.00 KiB"),
     (12345, "count", "12,345"), (1.8, "ratio", "1.80x"), (True, "", "yes"), (False, "", "no"),
     ("mean\nof", "", "mean of"), (3.5, "watts", "3.50 watts"), (2, "", "2"), (0.00041, "", "0.00041")],
)  # fmt: skip
def test_evidence_is_shown_in_its_unit(value: float | str | bool, unit: str, expected: str) -> None:
    assert wording.quantity(value, unit) == expected


def test_evidence_basis_names_bound_and_number_of_observations() -> None:
    assert wording.evidence_basis(Evidence(metric="m", value=0.5, unit="fraction", threshold=0.2, n=1400)) == (
        "limit 20 %, n 1,400"
    )
    assert wording.evidence_basis(Evidence(metric="m", value="on")) == ""
    assert wording.evidence_basis(Evidence(metric="m", value=1, unit="s", threshold=0.005)) == "limit 5 ms"
    assert wording.evidence_basis(Evidence(metric="m", value=1, unit="ratio", threshold=1.05)) == "limit 1.05x"
    assert wording.evidence_basis(Evidence(metric="m", value=1, unit="ratio", threshold=3.0)) == "limit 3x"


def test_count_has_singular_and_plural() -> None:
    assert [wording.count(1, "batch"), wording.count(2, "batch"), wording.count(1234, "epoch")] == [
        "1 batch",
        "2 batches",
        "1,234 epochs",
    ]


def test_line_drops_escape_sequences_and_folds_blanks() -> None:
    assert wording.line("a\x1b[31mred\x1b[0m\x07\r\n  b\u202e\ud800") == "ared b"


@given(st.text(), st.integers(1, 300))
def test_line_is_one_short_line_of_printable_text(text: str, limit: int) -> None:
    shown = wording.line(text, limit)
    assert len(shown) <= limit
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000 for c in shown)
    assert len(shown.splitlines()) <= 1


@given(st.text())
def test_block_keeps_lines_and_drops_control_characters(text: str) -> None:
    for line in wording.block(text):
        assert len(line) <= 400
        assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in line)


def test_block_keeps_indentation_and_counts_omitted_lines() -> None:
    assert wording.block("\ndef f():\n\treturn 1\n") == ["def f():", "    return 1"]
    assert wording.block("x\n" * 50, max_lines=2) == ["x", "x", "# … 48 more lines"]
    assert wording.block("") == []


@given(st.text(), st.sampled_from(["ascii", "cp1252", "utf-8", "latin-1", "cp437", "no-such-encoding"]))
def test_fit_encoding_gives_text_that_can_be_written(text: str, encoding: str) -> None:
    wording.fit_encoding(text, encoding).encode("ascii" if encoding.startswith("no") else encoding)


def test_fit_encoding_replaces_signs_by_their_likeness() -> None:
    assert wording.fit_encoding("1.7–2.1x 3 µs …█≥", "ascii") == "1.7-2.1x 3 us ...#>="
    assert wording.fit_encoding("1.7–2.1x", "utf-8") == "1.7–2.1x"
    assert wording.fit_encoding("1x█", "cp1252") == "1x#"
