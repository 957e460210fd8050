"""PD105: batches arrive in bursts, with one wait per round of the workers."""

from collections.abc import Sequence

from lightning_perf.records import Finding, Session, WorkerPoint
from lightning_perf.rules.findings import fact, fix, loader_fix, timed_finding
from lightning_perf.rules.loader_curve import ProbedLoader, probed_loader_of
from lightning_perf.rules.loader_signals import (
    burst_share,
    costliest_function_text,
    function_evidence,
    indexes_rows,
    is_bursty,
    wait_evidence,
    wait_fact,
    with_kept_items,
)
from lightning_perf.rules.machine_signals import wait_share
from lightning_perf.rules.rule import Skip, required, rule
from lightning_perf.rules.signals import loaders_of, steady_of
from lightning_perf.rules.thresholds import (
    BURST_MIN_FRACTION,
    BURST_MIN_SHARE,
    DEFAULT_PREFETCH,
    LOW_SHARE,
    PREFETCH_MAX,
    UNEVEN_MIN_RATIO,
    WORKERS_SLACK,
)
from lightning_perf.rules.wording import duration, percent, spent_waiting

_EVEN_SAMPLES = fix("avoid samples that are much slower than the others", "hours")


@rule("PD105", "bursty-fetch", explains=("PD101",), line_of=("data_wait",))
def check(session: Session) -> Finding | None:
    """Find samples of uneven cost; without a probe, waits that recur once per round of the workers."""
    probe = session.loader_probe
    if probe is not None and probe.getitem is not None:
        is_uneven = is_bursty(probe) and not indexes_rows(probe)
        return _probed(session, probed_loader_of(session)) if is_uneven else None
    steady = steady_of(session)
    loader = loaders_of(session)[0]
    n_workers = required(loader.num_workers, "the number of workers is not known")
    fetch = required(steady.fetch, "no fetch was timed")
    share = wait_share(steady)
    wait_s = share * steady.span_s
    if n_workers < 2 or share < LOW_SHARE:
        return None
    if fetch.burst_period is None or fetch.burst_fraction is None:
        raise Skip("fewer than 8 waits were timed")
    # Without a ratio the median wait is 0: most batches were ready, so any wait is an outlier.
    is_uneven = fetch.p90_over_p50 is None or fetch.p90_over_p50 >= UNEVEN_MIN_RATIO
    is_in_rounds = fetch.burst_period == n_workers and fetch.burst_fraction >= BURST_MIN_FRACTION
    if not (is_uneven and is_in_rounds):
        return None
    compute_s = max(0.0, steady.step_s.mean - wait_s / steady.n_span_steps)
    in_process_s = fetch.in_process_batch_s
    if in_process_s is not None and in_process_s > (1 + WORKERS_SLACK) * n_workers * compute_s:
        return None  # PD101 applies: too few workers.
    now = loader.prefetch_factor or DEFAULT_PREFETCH
    factor = _prefetch_factor((), now)
    return timed_finding(
        steady,
        summary=(
            f"{spent_waiting(share)} that comes in bursts: {percent(fetch.burst_fraction)} of the waits follow the "
            f"last one {fetch.burst_period} steps later, once per round of the {fetch.burst_period} workers."
        ),
        evidence=(
            fact(
                "data wait, 90th percentile ÷ median",
                "the median is 0" if fetch.p90_over_p50 is None else fetch.p90_over_p50,
                "" if fetch.p90_over_p50 is None else "ratio",
                UNEVEN_MIN_RATIO,
                fetch.n,
            ),
            fact(
                "waits that recur once per round of the workers", fetch.burst_fraction, "fraction", BURST_MIN_FRACTION
            ),
            wait_fact(share, steady.n_steps, LOW_SHARE),
        ),
        prescriptions=(
            loader_fix(
                loader,
                f"set prefetch_factor={factor} (now {now}) on the {loader.stage} loader",
                "loader-prefetch",
                f"num_workers={n_workers}, prefetch_factor={factor}",
                prefetch_factor=factor,
            )
            if factor > now
            else None,
            _EVEN_SAMPLES,
        ),
        claims={"data_wait": wait_s},
        basis="at most the data wait; no gain if workers are too slow on average",
        confidence="medium",
    )


def _probed(session: Session, probed: ProbedLoader) -> Finding | None:
    """Return the finding from the loader probe, which times single samples."""
    plan, probe = probed.plan, probed.probe
    getitem = probe.getitem
    if probed.share < LOW_SHARE or plan.is_too_cheap or getitem is None:
        return None
    stage, uneven = probed.stage, burst_share(probe)
    waited_s = stage.n_span_steps * probed.wait_s
    evened_s = probed.saved_s(uneven)
    workers = plan.n_workers or plan.n_now
    now = probed.loader.prefetch_factor or DEFAULT_PREFETCH
    factor = _prefetch_factor(probe.prefetch, now)
    prefetch_more = loader_fix(
        probed.loader,
        f"prefetch more: set num_workers={workers} (now {plan.n_now}) and prefetch_factor={factor} (now {now}) on the "
        f"{probed.loader.stage} loader",
        "loader-workers" if plan.n_now else "",
        num_workers=workers,
        prefetch_factor=factor,
        persistent_workers=True,
    )
    finding = timed_finding(
        stage,
        summary=(
            f"{spent_waiting(probed.share)}; a few slow samples take {percent(uneven)} of loading time. The slowest of "
            f"{getitem.n} samples took {duration(getitem.max_s)}, the median {duration(getitem.p50_s)}."
            f"{costliest_function_text(probe)}"
        ),
        evidence=(
            wait_evidence(probed, LOW_SHARE),
            fact("sample time above the median", uneven, "fraction", BURST_MIN_SHARE, getitem.n),
            fact("median time per sample", getitem.p50_s, "s", n=getitem.n),
            fact("longest time per sample", getitem.max_s, "s", n=getitem.n),
            *function_evidence(probe, "getitem", n=1),
        ),
        prescriptions=(prefetch_more if workers > plan.n_now or (workers and factor > now) else None, _EVEN_SAMPLES),
        claims={"data_wait": min(waited_s, max(evened_s, stage.n_span_steps * plan.saved_high_s))},
        low_s=min(evened_s, stage.n_span_steps * plan.saved_low_s),
        basis="at least the smaller, at most the larger saving of more workers and of samples of even cost",
        confidence="high",
        method=plan.method if plan.n_workers else "probed",
    )
    return with_kept_items(session, probed, finding)


def _prefetch_factor(probed: Sequence[WorkerPoint], now: int) -> int:
    """Return the least probed factor above ``now`` that is nearly as fast as the best, else the next of 2, 4 and 8.

    Return ``now`` if there is none.
    """
    tried = [point for point in probed if (point.prefetch_factor or 0) > now]
    best_s = min((point.batch_s for point in tried), default=0.0)
    good = [point.prefetch_factor or now for point in tried if point.batch_s <= (1 + WORKERS_SLACK) * best_s]
    factors = (DEFAULT_PREFETCH, 2 * DEFAULT_PREFETCH, PREFETCH_MAX)
    return min(good, default=next((factor for factor in factors if factor > now), now))
