"""What reports say of a probed loader."""

from __future__ import annotations

from lightning_perf.records import HotFunction, HotLine, LoaderProbe
from lightning_perf.reports.sections.loader import function_facts

AUGMENT = HotFunction(
    name="Images.augment", file="/home/me/images.py", line=31, share=0.9, own_share=0.8, blamed_share=0.8
)
PAD = HotFunction(
    name="pad", file="/home/me/images.py", line=60, share=1.0, own_share=0.9, blamed_share=0.9, where="collate"
)


def hot(number: int, text: str, share: float) -> HotLine:
    return HotLine(file="/home/me/images.py", line=number, text=text, share=share)


def test_lines_are_listed_under_the_costliest_function_when_known() -> None:
    lines = (hot(34, "if done:", 0.05), hot(33, "x = x * 0.5", 0.3), hot(32, "for x in image:", 0.65))
    rows = function_facts(LoaderProbe(status="measured", functions=(AUGMENT, PAD), lines=lines))
    assert rows == [
        "Images.augment (me/images.py:31): 80 % of the time per sample",
        "line 32, 65 % of this function: for x in image:",
        "line 33, 30 % of this function: x = x * 0.5",
        "pad (me/images.py:60): 90 % of collate",
    ]


def test_no_line_is_shown_when_its_function_is_not() -> None:
    assert function_facts(LoaderProbe(status="measured", functions=(PAD,), lines=(hot(32, "x", 1.0),))) == [
        "pad (me/images.py:60): 90 % of collate"
    ]
    assert function_facts(LoaderProbe(status="measured")) == []
