"""The DataLoader, measured without the training."""

from collections.abc import Iterator
from typing import NamedTuple

from lightning_perf.records import LoaderProbe, Session
from lightning_perf.reports.cells import TAB, Heads, Value
from lightning_perf.reports.cells import share as share_cell
from lightning_perf.reports.document import AnyPart, facts, listing, table
from lightning_perf.reports.wording import count, known, line, number, seconds, share, size
from lightning_perf.rules.loader_curve import ProbedLoader, probed_loader_of
from lightning_perf.rules.loader_signals import function_place, function_share
from lightning_perf.rules.rule import Skip

_MAX_FUNCTIONS = 4
_MIN_FUNCTION_SHARE = 0.05
_MAX_LINES = 2
_MIN_LINE_SHARE = 0.1


class CurveRow(NamedTuple):
    """The speed of the loader with one number of workers.

    Attributes:
        fetch_s: Seconds between batches without any training.
        step_s: The expected step time in training; None if no step was measured.
        mark: ``"best"`` (the fewest workers that are about as fast as any), ``"in use"``, both or empty.
        fill: Length of the bar, 0…1: the throughput ÷ the highest one.
    """

    num_workers: int
    fetch_s: float
    step_s: float | None
    mark: str
    fill: float


def loader_title(probe: LoaderProbe) -> str:
    """Return the heading of the section."""
    title = f"The {line(probe.stage, 16)} DataLoader alone"
    return title if probe.status == "measured" else f"{title}: {probe.status}"


def loader_parts(session: Session) -> Iterator[AnyPart]:
    """Yield throughput by number of workers, the costliest functions, and facts of a sample."""
    probe = session.loader_probe
    if probe is None:
        return
    yield facts(ceiling_facts(session), "Throughput")
    rows = curve_rows(session)
    cells = [
        (Value(str(row.num_workers), row.num_workers),
         Value(number(round(1 / row.fetch_s, 1)), 1 / row.fetch_s) if row.fetch_s > 0 else Value(""),
         Value("" if row.step_s is None else seconds(row.step_s), row.step_s), row.mark)
        for row in rows
    ]  # fmt: skip
    heads: Heads = ("workers", "batches/s alone", "expected step", "")
    yield table(heads, cells, key="curve", bars="batches/s alone")
    yield listing(function_facts(probe))
    yield facts(sample_facts(probe), "Sample")
    functions = [
        (each.name, f"{each.file}:{each.line}" if each.file else "", each.where, share_cell(each.blamed_share),
         share_cell(each.share), share_cell(each.own_share))
        for each in probe.functions
    ]  # fmt: skip
    heads = ("function", "line", "in", "own code", "total", "self")
    yield table(heads, functions, title="Functions that take the time of a sample", key="functions", min_width=TAB)


def ceiling_facts(session: Session) -> list[str]:
    """Return the speed of the loader alone and of the model alone, and which one limits."""
    probe = session.loader_probe
    if probe is None:
        return []
    others = probe.missing.get("others", "").split(". ", 1)
    texts = [line(text, 200) for text in (probe.reason, *others) if text]
    probed = _probed_loader(session)
    if probed is None or probed.plan.now is None:
        return texts
    plan = probed.plan
    fetch_s = next((p.batch_s for p in probe.curve if p.num_workers == plan.n_now), probed.plan.now.fetch_s)
    texts += [f"loader alone: {_rate(fetch_s, probe)}", f"model alone: {_rate(plan.compute_s, probe)}"]
    if plan.n_now == 0:
        return [*texts, "without workers, a step takes the sum of both"]
    return [*texts, "the loader limits" if fetch_s > plan.compute_s else "the model limits"]


def curve_rows(session: Session) -> list[CurveRow]:
    """Return what was measured by number of workers, fewest first, and what is in use and best."""
    probe, probed = session.loader_probe, _probed_loader(session)
    if probe is None or not probe.curve:
        return []
    steps = {step.num_workers: step.step_s for step in probed.plan.steps} if probed is not None else {}
    marks: dict[int, list[str]] = {}
    if probed is not None and probed.plan.chosen is not None:
        marks.setdefault(probed.plan.chosen.num_workers, []).append("best")
        marks.setdefault(probed.plan.n_now, []).append("in use")
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


def function_facts(probe: LoaderProbe) -> list[str]:
    """Return the costliest functions with file and line, and the costliest lines of the first one."""
    shown = [f for f in probe.functions if function_share(f) >= _MIN_FUNCTION_SHARE][:_MAX_FUNCTIONS]
    words = {"getitem": "the time per sample", "collate": "collate"}
    texts = [f"{line(function_place(f), 80)}: {share(function_share(f))} of {words[f.where]}" for f in shown]
    if texts and shown[0] is probe.functions[0] and shown[0].where == "getitem":
        costly = sorted((each for each in probe.lines if each.share >= _MIN_LINE_SHARE), key=lambda each: -each.share)
        lines = [line(f"line {each.line}, {share(each.share)} of this function: {each.text}", 100) for each in costly]
        texts[1:1] = lines[:_MAX_LINES]
    return texts


def sample_facts(probe: LoaderProbe) -> list[str]:
    """Return the cost of a sample, of collating and of transport, and the size of a batch."""
    kept = f"if kept in memory, {size(round(probe.kept_bytes or 0))} for all samples"
    tensors = f" in {count(probe.n_tensors, 'tensor')}" if probe.n_tensors else ""
    texts = (
        known(probe.getitem, lambda each: f"{seconds(each.p50_s)} per sample (p95 {seconds(each.p95_s)}, "
                                          f"max {seconds(each.max_s)})"),
        known(probe.getitem_cpu_fraction, lambda part: f"{share(part)} of it CPU time"),
        known(probe.kept_s, lambda kept_s: f"{seconds(kept_s)} {kept}"),
        known(probe.collate, lambda each: f"collate {seconds(each.p50_s)} per batch"),
        known(probe.transport, lambda each: f"transport from the worker {seconds(each.p50_s)} per batch"),
        known(probe.pin, lambda each: f"pinning {seconds(each.p50_s)} per batch"),
        known(probe.batch_bytes, lambda n_bytes: f"{size(n_bytes)}{tensors} per batch"),
        known(probe.read_bytes or None, lambda n_bytes: f"{size(round(n_bytes))} read per sample"),
    )  # fmt: skip
    return list(filter(None, texts))


def _probed_loader(session: Session) -> ProbedLoader | None:
    try:
        return probed_loader_of(session)
    except Skip:
        return None


def _rate(batch_s: float, probe: LoaderProbe) -> str:
    if batch_s <= 0:
        return "too fast to measure"
    samples = f", {probe.batch_size / batch_s:,.0f} samples/s" if probe.batch_size else ""
    return f"{seconds(batch_s)} per batch{samples}"
