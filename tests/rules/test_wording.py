"""How findings write numbers."""

from __future__ import annotations

import pytest

from lightning_perf.rules.wording import duration, number_of, size_text, statement_of


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (320e-6, "320 µs"),
        (12.5e-3, "12.5 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (3.21, "3.21 s"),
        (999.6, "1,000 s"),
        (1800.0, "1,800 s"),
    ],
)
def test_duration_has_three_digits_and_no_exponent(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(12, "12 B"), (1000 * 2**10, "1,000 KiB"), (1010 * 2**20, "1,010 MiB"), (1.5 * 2**30, "1.5 GiB")],
)
def test_size_has_three_digits_and_no_exponent(n_bytes: float, text: str) -> None:
    assert size_text(n_bytes) == text


def test_numbers_have_three_digits_and_no_exponent() -> None:
    assert number_of(1500.0, "time") == "1,500 times"
    assert number_of(1.333, "time") == "1.33 times"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("self.acc(y, t)", "self.acc(y, t)"),
        ("self.total += self.acc(y, t)", "self.total += self.acc(y, t)"),
        ("acc = self.acc(y, t)", "acc = self.acc(y, t)  # and what uses acc"),
        ("a, b = self.acc(y, t), 1", "a, b = self.acc(y, t), 1  # and what uses a, b"),
        ("loss = f(y); self.acc(y, t)", "..."),
        ("return self.acc(y, t)", "..."),
        ("self.acc(", "..."),
        ("", "..."),
    ],
)
def test_statement_that_is_moved_takes_along_what_uses_its_names(code: str, expected: str) -> None:
    assert statement_of(code) == expected
