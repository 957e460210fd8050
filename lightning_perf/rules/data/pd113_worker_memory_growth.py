"""PD113: the memory of the loader's workers grows with the samples."""

from __future__ import annotations

from typing import Literal, NamedTuple

from lightning_perf.records import Evidence, Finding, LoaderProbe, LoaderSettings, Session
from lightning_perf.rules.loader_curve import predicted_steps
from lightning_perf.rules.loader_signals import costliest, function_place
from lightning_perf.rules.memory_signals import growth_evidence, is_leak
from lightning_perf.rules.parts import fact, fix, unsigned_finding
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.thresholds import MEMORY_MIN_LASTING_S
from lightning_perf.rules.wording import size_text
from lightning_perf.stats.leak import LEAK_BYTES_PER_STEP

PRESCRIPTIONS = (
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
    """Look for rising memory of the workers."""
    growth = next((g for g in session.memory.growth if g.where == "workers"), None)
    loader = next((each for each in session.settings.loaders if each.stage == "train"), None)
    if growth is None or not is_leak(growth):
        probed = _probed(session, session.loader_probe, loader)
        if probed is not None:
            return probed
    if growth is None:
        raise Skip(session.missing.get("memory", "there were no workers, or they were not measured for long enough"))
    if not is_leak(growth):
        return None
    n_workers = loader.num_workers if loader is not None and loader.num_workers else 1
    candidates = [s.name for s in growth.suspects]
    dataset = loader.dataset_class if loader is not None and loader.dataset_class else "the dataset"
    where = f"{candidates[0]} may be growing." if candidates else f"Check what {dataset} keeps."
    lasting = _lasting_of(session, n_workers * growth.bytes_per_step)
    return unsigned_finding(
        severity=_severity(lasting),
        summary=(
            f"Each worker's memory grows by {size_text(growth.bytes_per_step)} per step, all {n_workers} together by "
            f"{size_text(n_workers * growth.bytes_per_step)}. {_end(lasting)}{where}"
        ),
        evidence=(
            *growth_evidence(growth),
            *_told(lasting),
            *(fact(f"container of {dataset}", name) for name in candidates),
        ),
        prescriptions=PRESCRIPTIONS,
        confidence="high" if candidates else "medium",
    )


class _Lasting(NamedTuple):
    """How long memory lasts at a rate: ``what`` is free, or all that there is where nobody watched what is free."""

    what: str
    seconds: float


def _lasting_of(session: Session, bytes_per_step: float) -> _Lasting | None:
    """Return how long memory lasts; None where neither steps were timed or predicted, nor memory is known."""
    host = session.telemetry.host if session.telemetry is not None else None
    what, n_bytes = "this machine's memory", session.machine.memory_bytes
    if host is not None and host.available_bytes is not None:
        what, n_bytes = "free memory", int(host.available_bytes.p5)
    stage = session.steady or predicted_steps(session)
    if n_bytes is None or stage is None or stage.span_s <= 0:
        return None
    return _Lasting(what, n_bytes / (bytes_per_step * stage.n_steps / stage.span_s))


def _severity(lasting: _Lasting | None) -> Literal["high", "medium"]:
    return "high" if lasting is not None and lasting.seconds < MEMORY_MIN_LASTING_S else "medium"


def _end(lasting: _Lasting | None) -> str:
    if lasting is None or lasting.seconds >= MEMORY_MIN_LASTING_S:
        return ""
    return f"At this rate {lasting.what} is full in {lasting.seconds / 60:.0f} minutes. "


def _told(lasting: _Lasting | None) -> tuple[Evidence, ...]:
    if lasting is None:
        return ()
    metric = f"{lasting.what} is full after"
    return (fact(metric, lasting.seconds, "s", MEMORY_MIN_LASTING_S),)


def _probed(session: Session, probe: LoaderProbe | None, loader: LoaderSettings | None) -> Finding | None:
    """Return the same from a loader probe, which made samples in a process of its own and watched what it kept."""
    if probe is None or loader is None or not loader.num_workers or probe.rss_growth_bytes is None:
        return None
    per_step = probe.rss_growth_bytes * (probe.batch_size or 1)
    if per_step < LEAK_BYTES_PER_STEP:
        return None
    dataset = loader.dataset_class or "the dataset"
    function = costliest(probe, "getitem")
    lasting = _lasting_of(session, per_step)
    what = f", e.g. in {function_place(function)}" if function is not None else ""
    where = f"Check what {dataset} keeps{what}."
    return unsigned_finding(
        severity=_severity(lasting),
        summary=(
            f"Making a sample keeps {size_text(probe.rss_growth_bytes)}: {size_text(per_step)} per step, spread "
            f"over {loader.num_workers} workers. {_end(lasting)}{where}"
        ),
        evidence=(
            fact("memory kept per sample in the loader probe", probe.rss_growth_bytes, "bytes"),
            fact("memory kept per 1,000 steps", 1000 * per_step, "bytes", 1000 * LEAK_BYTES_PER_STEP),
            *_told(lasting),
        ),
        prescriptions=PRESCRIPTIONS,
        confidence="medium",
    )
