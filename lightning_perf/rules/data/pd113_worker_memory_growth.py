"""PD113: the memory of the loader's workers grows."""

import math
from collections.abc import Sequence

from lightning_perf.records import Evidence, Finding, LoaderProbe, LoaderSettings, Session
from lightning_perf.rules.findings import fact, fix, make_finding
from lightning_perf.rules.loader_curve import predicted_steps
from lightning_perf.rules.loader_signals import costliest, function_place
from lightning_perf.rules.machine_signals import sampled_host
from lightning_perf.rules.memory_signals import growth_evidence, is_leak
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.thresholds import MEMORY_MIN_LASTING_S
from lightning_perf.rules.wording import number_of, size_text
from lightning_perf.stats.leak import LEAK_BYTES_PER_STEP

_KEEP_LESS = fix("limit what workers keep, or store it in numpy arrays or memory-mapped files that they share", "hours")
_RESTART = fix(
    "set persistent_workers=False: workers then free their memory in every epoch",
    "one line",
    loader_args={"persistent_workers": False},
    code="DataLoader(..., persistent_workers=False)",
)


@rule("PD113", "worker-memory-growth")
def check(session: Session) -> Finding | None:
    growth = next((g for g in session.memory.growth if g.where == "workers"), None)
    loader = next((each for each in session.settings.loaders if each.stage == "train"), None)
    if growth is None or not is_leak(growth):
        probed = _probed(session, session.loader_probe, loader)
        if growth is None and probed is None:
            unknown = "the loader has no workers, or they were not measured long enough"
            raise Skip(session.missing.get("memory", unknown))
        return probed
    n_workers = loader.num_workers if loader is not None and loader.num_workers else 1
    candidates = [s.name for s in growth.suspects]
    dataset = loader.dataset_class if loader is not None and loader.dataset_class else "the dataset"
    together = f", all {n_workers} together by {size_text(n_workers * growth.bytes_per_step)}" if n_workers > 1 else ""
    return _finding(
        session,
        loader,
        n_workers * growth.bytes_per_step,
        f"Each worker's memory grows by {size_text(growth.bytes_per_step)} per step{together}.",
        f"{candidates[0]} may be growing." if candidates else f"Check what {dataset} keeps.",
        growth_evidence(growth),
        [fact(f"container of {dataset}", name) for name in candidates],
    )


def _probed(session: Session, probe: LoaderProbe | None, loader: LoaderSettings | None) -> Finding | None:
    """Return the finding from a loader probe, which measures the memory of a process that only makes samples."""
    if probe is None or loader is None or not loader.num_workers or probe.rss_growth_bytes is None:
        return None
    per_step = probe.rss_growth_bytes * (probe.batch_size or 1)
    if per_step < LEAK_BYTES_PER_STEP:
        return None
    function = costliest(probe, "getitem")
    what = f", e.g. in {function_place(function)}" if function is not None else ""
    return _finding(
        session,
        loader,
        per_step,
        f"Memory grows by {size_text(probe.rss_growth_bytes)} per sample: {size_text(per_step)} per step, spread over "
        f"{loader.num_workers} workers.",
        f"Check what {loader.dataset_class or 'the dataset'} keeps{what}.",
        (
            fact("memory growth per sample in the loader probe", probe.rss_growth_bytes, "bytes"),
            fact("memory growth per 1,000 steps", 1000 * per_step, "bytes", 1000 * LEAK_BYTES_PER_STEP),
        ),
    )


def _finding(
    session: Session,
    loader: LoaderSettings | None,
    bytes_per_step: float,
    growth: str,
    advice: str,
    evidence: Sequence[Evidence],
    containers: Sequence[Evidence] = (),
) -> Finding:
    what, seconds = _time_to_full(session, bytes_per_step)
    is_soon = seconds < MEMORY_MIN_LASTING_S
    minutes = number_of(max(1, round(seconds / 60)), "minute") if is_soon else ""
    warning = f" At this rate {what} is used up in {minutes}." if is_soon else ""
    return make_finding(
        severity="high" if is_soon else "medium",
        summary=f"{growth}{warning} {advice}",
        evidence=(
            *evidence,
            fact(f"{what} is used up after", seconds, "s", MEMORY_MIN_LASTING_S) if seconds < math.inf else None,
            *containers,
        ),
        prescriptions=(_KEEP_LESS, _RESTART if loader is None or loader.persistent_workers is not False else None),
        confidence="high" if containers else "medium",
    )


def _time_to_full(session: Session, bytes_per_step: float) -> tuple[str, float]:
    """Return what is used up after how many seconds: free memory, or all memory if free memory was not sampled.

    The workers of all ranks of the node use it up. The time is infinite if step time or memory size is not known.
    """
    host = sampled_host(session)
    what, n_bytes = "this machine's memory", session.machine.memory_bytes
    if host is not None and host.available_bytes is not None:
        what, n_bytes = "free memory", int(host.available_bytes.p5)
    stage = session.steady or predicted_steps(session)
    if n_bytes is None or stage is None or stage.span_s <= 0:
        return what, math.inf
    step_bytes = bytes_per_step * session.machine.local_world_size
    return what, n_bytes / (step_bytes * stage.n_span_steps / stage.span_s)
