"""Facts on a probed loader."""

from __future__ import annotations

import msgspec

from lightning_perf.records import HotFunction, HotLine, LoaderProbe
from lightning_perf.records.loader_probe import Repeated
from lightning_perf.reports.sections.loader import ceiling_facts, function_facts, sample_facts
from reports.sessions import loader_probed

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
        "Images.augment (images.py:31): 80 % of the time per sample",
        "line 32, 65 % of this function: for x in image:",
        "line 33, 30 % of this function: x = x * 0.5",
        "pad (images.py:60): 90 % of collate",
    ]


def test_no_line_is_shown_when_its_function_is_not() -> None:
    assert function_facts(LoaderProbe(status="measured", functions=(PAD,), lines=(hot(32, "x", 1.0),))) == [
        "pad (images.py:60): 90 % of collate"
    ]
    assert function_facts(LoaderProbe(status="measured")) == []


def test_time_to_pin_is_shown_if_measured() -> None:
    pin = Repeated(n=5, mean_s=0.002, p50_s=0.002, p95_s=0.003, max_s=0.003)
    assert "pinning 2.00 ms per batch" in sample_facts(LoaderProbe(status="measured", pin=pin))


def test_other_loaders_are_named() -> None:
    session = loader_probed()
    assert session.loader_probe is not None
    texts = ["the Trainer combines 2 training loaders; this is the slowest", "loader 0: 1.20 ms per batch"]
    probe = msgspec.structs.replace(session.loader_probe, missing={"others": ". ".join(texts)})
    assert ceiling_facts(msgspec.structs.replace(session, loader_probe=probe))[:2] == texts
