"""What reports say of a probed loader, worked out once: both ceilings, the curve, functions, transport, bytes."""

from __future__ import annotations

from typing import NamedTuple

from lightning_perf.records import LoaderProbe, Session
from lightning_perf.rules.loader_curve import Feeding, feeding_of
from lightning_perf.rules.loader_signals import blamed, place
from lightning_perf.rules.rule import Skip

from .wording import count, line, number, seconds, share, size

_MAX_FUNCTIONS = 4
_MIN_FUNCTION_SHARE = 0.05
_MAX_LINES = 2
_MIN_LINE_SHARE = 0.1


class CurveRow(NamedTuple):
    """One number of workers.

    Attributes:
        num_workers: As many.
        fetch_s: Seconds from one batch to the next with nobody computing.
        step_s: The step expected in the training; None where no step is known.
        mark: What is special about it: ``"enough"``, ``"in use"``; empty otherwise.
        fill: Its bar, 0…1: its throughput ÷ the highest of all.
    """

    num_workers: int
    fetch_s: float
    step_s: float | None
    mark: str
    fill: float


def loader_title(probe: LoaderProbe) -> str:
    """What the section is about."""
    title = f"The {line(probe.stage, 16)} loader by itself"
    return title if probe.status == "measured" else f"{title}: {probe.status}"


def ceiling_facts(session: Session) -> list[str]:
    """What the loader alone and the model alone could do, and which of them binds; why nothing is known otherwise."""
    probe = session.loader_probe
    if probe is None:
        return []
    facts = [line(probe.reason, 200)] if probe.reason else []
    feeding = _feeding(session)
    if feeding is None or feeding.plan.now is None:
        return facts
    plan = feeding.plan
    fetch_s = next((p.batch_s for p in probe.curve if p.num_workers == plan.n_now), feeding.plan.now.fetch_s)
    facts += [f"loader alone: {_rate(fetch_s, probe)}", f"model alone: {_rate(plan.compute_s, probe)}"]
    if plan.n_now == 0:
        facts.append("without workers a step takes both, one after the other")
    else:
        facts.append("the loader binds" if fetch_s > plan.compute_s else "the model binds")
    return facts


def curve_rows(session: Session) -> list[CurveRow]:
    """Return the curve, fewest workers first, with what is in use and what is enough."""
    probe, feeding = session.loader_probe, _feeding(session)
    if probe is None or not probe.curve:
        return []
    steps = {step.num_workers: step.step_s for step in feeding.plan.steps} if feeding is not None else {}
    marks: dict[int, list[str]] = {}
    if feeding is not None and feeding.plan.chosen is not None:
        marks.setdefault(feeding.plan.chosen.num_workers, []).append("enough")
        marks.setdefault(feeding.plan.n_now, []).append("in use")
    fastest_s = min((point.batch_s for point in probe.curve if point.batch_s > 0), default=0.0)
    return [
        CurveRow(
            num_workers=point.num_workers,
            fetch_s=point.batch_s,
            step_s=steps.get(point.num_workers),
            mark=", ".join(marks.get(point.num_workers, ())),
            fill=fastest_s / point.batch_s if point.batch_s > 0 else 0.0,
        )
        for point in probe.curve
    ]


def curve_cells(rows: list[CurveRow], width: int, block: str) -> list[tuple[str, str, str, str, str]]:
    """Each row as workers, bar, batches a second, the step expected, and its marks."""
    return [
        (
            str(row.num_workers),
            block * max(1, round(width * row.fill)),
            number(round(1 / row.fetch_s, 1)) if row.fetch_s > 0 else "",
            "" if row.step_s is None else seconds(row.step_s),
            row.mark,
        )
        for row in rows
    ]


CURVE_HEADS = ("workers", "", "batches/s alone", "step expected", "")


def function_rows(probe: LoaderProbe) -> list[tuple[str, str]]:
    """The costliest functions with file and line, and the costliest lines of the first, each with its share."""
    shown = [f for f in probe.functions if blamed(f) >= _MIN_FUNCTION_SHARE][:_MAX_FUNCTIONS]
    words = {"getitem": "a sample", "collate": "collate"}
    rows = [(line(place(f), 80), f"{share(blamed(f))} of {words[f.where]}") for f in shown]
    if rows and shown[0] is probe.functions[0] and shown[0].where == "getitem":
        costly = sorted((each for each in probe.lines if each.share >= _MIN_LINE_SHARE), key=lambda each: -each.share)
        told = [(line(f"line {each.line}: {each.text}", 80), f"{share(each.share)} of that") for each in costly]
        rows[1:1] = told[:_MAX_LINES]
    return rows


def sample_facts(probe: LoaderProbe) -> list[str]:
    """What a sample, a collate and a move cost, what a batch holds."""
    facts = []
    if probe.getitem is not None:
        facts.append(
            f"a sample {seconds(probe.getitem.p50_s)} (p95 {seconds(probe.getitem.p95_s)}, "
            f"longest {seconds(probe.getitem.max_s)})"
        )
    if probe.getitem_cpu_fraction is not None:
        facts.append(f"{share(probe.getitem_cpu_fraction)} of it on a core")
    if probe.collate is not None:
        facts.append(f"collate {seconds(probe.collate.p50_s)} a batch")
    if probe.transport is not None:
        facts.append(f"from worker to training {seconds(probe.transport.p50_s)} a batch")
    if probe.batch_bytes is not None:
        tensors = f" in {count(probe.n_tensors, 'tensor')}" if probe.n_tensors else ""
        facts.append(f"{size(probe.batch_bytes)}{tensors} a batch")
    if probe.read_bytes:
        facts.append(f"{size(round(probe.read_bytes))} read a sample")
    return facts


def _feeding(session: Session) -> Feeding | None:
    try:
        return feeding_of(session)
    except Skip:
        return None


def _rate(batch_s: float, probe: LoaderProbe) -> str:
    if batch_s <= 0:
        return "too fast to be timed"
    samples = f", {probe.batch_size / batch_s:,.0f} samples/s" if probe.batch_size else ""
    return f"{seconds(batch_s)} a batch{samples}"
