"""PD113: the memory of the loader's workers grows."""

from typing import Literal, NamedTuple

from lightning_perf.records import Evidence, Finding, LoaderProbe, LoaderSettings, Session
from lightning_perf.rules.findings import fact, fix, unsigned_finding
from lightning_perf.rules.loader_curve import predicted_steps
from lightning_perf.rules.loader_signals import costliest, function_place
from lightning_perf.rules.memory_signals import growth_evidence, is_leak
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.thresholds import MEMORY_MIN_LASTING_S
from lightning_perf.rules.wording import size_text
from lightning_perf.stats.leak import LEAK_BYTES_PER_STEP

RECOMMENDATIONS = (
    fix("limit what workers keep, or store it in numpy arrays or memory-mapped files that they share", "hours"),
    fix(
        "set persistent_workers=False: workers then free their memory in every epoch",
        "one line",
        loader_args={"persistent_workers": False},
        code="DataLoader(..., persistent_workers=False)",
    ),
)


@rule("PD113", "worker-memory-growth")
def check(session: Session) -> Finding | None:
    """Check whether the memory of the workers grows."""
    growth = next((g for g in session.memory.growth if g.where == "workers"), None)
    loader = next((each for each in session.settings.loaders if each.stage == "train"), None)
    if growth is None or not is_leak(growth):
        probed = _probed(session, session.loader_probe, loader)
        if probed is not None:
            return probed
    if growth is None:
        raise Skip(session.missing.get("memory", "the loader has no workers, or they were not measured long enough"))
    if not is_leak(growth):
        return None
    n_workers = loader.num_workers if loader is not None and loader.num_workers else 1
    candidates = [s.name for s in growth.suspects]
    dataset = loader.dataset_class if loader is not None and loader.dataset_class else "the dataset"
    where = f"{candidates[0]} may be growing." if candidates else f"Check what {dataset} keeps."
    time_to_full = _time_to_full(session, n_workers * growth.bytes_per_step)
    return unsigned_finding(
        severity=_severity(time_to_full),
        summary=(
            f"Each worker's memory grows by {size_text(growth.bytes_per_step)} per step, all {n_workers} together by "
            f"{size_text(n_workers * growth.bytes_per_step)}. {_warning(time_to_full)}{where}"
        ),
        evidence=(
            *growth_evidence(growth),
            *_time_evidence(time_to_full),
            *(fact(f"container of {dataset}", name) for name in candidates),
        ),
        prescriptions=RECOMMENDATIONS,
        confidence="high" if candidates else "medium",
    )


class _TimeToFull(NamedTuple):
    """The time until memory is full. ``what`` is free memory, or all memory if free memory was not sampled."""

    what: str
    seconds: float


def _time_to_full(session: Session, bytes_per_step: float) -> _TimeToFull | None:
    """Return the time until memory is full; None if step time or memory size is not known."""
    host = session.telemetry.host if session.telemetry is not None else None
    what, n_bytes = "this machine's memory", session.machine.memory_bytes
    if host is not None and host.available_bytes is not None:
        what, n_bytes = "free memory", int(host.available_bytes.p5)
    stage = session.steady or predicted_steps(session)
    if n_bytes is None or stage is None or stage.span_s <= 0:
        return None
    return _TimeToFull(what, n_bytes / (bytes_per_step * stage.n_steps / stage.span_s))


def _severity(time_to_full: _TimeToFull | None) -> Literal["high", "medium"]:
    return "high" if time_to_full is not None and time_to_full.seconds < MEMORY_MIN_LASTING_S else "medium"


def _warning(time_to_full: _TimeToFull | None) -> str:
    if time_to_full is None or time_to_full.seconds >= MEMORY_MIN_LASTING_S:
        return ""
    return f"At this rate {time_to_full.what} is full in {time_to_full.seconds / 60:.0f} minutes. "


def _time_evidence(time_to_full: _TimeToFull | None) -> tuple[Evidence, ...]:
    if time_to_full is None:
        return ()
    metric = f"{time_to_full.what} is full after"
    return (fact(metric, time_to_full.seconds, "s", MEMORY_MIN_LASTING_S),)


def _probed(session: Session, probe: LoaderProbe | None, loader: LoaderSettings | None) -> Finding | None:
    """Return the finding from a loader probe, which measures the memory of a process that only makes samples."""
    if probe is None or loader is None or not loader.num_workers or probe.rss_growth_bytes is None:
        return None
    per_step = probe.rss_growth_bytes * (probe.batch_size or 1)
    if per_step < LEAK_BYTES_PER_STEP:
        return None
    dataset = loader.dataset_class or "the dataset"
    function = costliest(probe, "getitem")
    time_to_full = _time_to_full(session, per_step)
    what = f", e.g. in {function_place(function)}" if function is not None else ""
    where = f"Check what {dataset} keeps{what}."
    return unsigned_finding(
        severity=_severity(time_to_full),
        summary=(
            f"Memory grows by {size_text(probe.rss_growth_bytes)} per sample: {size_text(per_step)} per step, spread "
            f"over {loader.num_workers} workers. {_warning(time_to_full)}{where}"
        ),
        evidence=(
            fact("memory growth per sample in the loader probe", probe.rss_growth_bytes, "bytes"),
            fact("memory growth per 1,000 steps", 1000 * per_step, "bytes", 1000 * LEAK_BYTES_PER_STEP),
            *_time_evidence(time_to_full),
        ),
        prescriptions=RECOMMENDATIONS,
        confidence="medium",
    )
