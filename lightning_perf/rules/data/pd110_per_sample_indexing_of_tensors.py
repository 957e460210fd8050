"""PD110: rows of tensors in memory are fetched one at a time."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.loader_curve import probed_loader_of
from lightning_perf.rules.loader_signals import (
    AT_LEAST_COLLECTIONS,
    SAMPLERS,
    collecting_low_s,
    indexes_rows,
    is_transport_costly,
    is_waiting,
    wait_evidence,
)
from lightning_perf.rules.rule import rule
from lightning_perf.rules.thresholds import WAIT_MIN_SHARE
from lightning_perf.rules.wording import duration, spent_waiting


@rule("PD110", "per-sample-indexing-of-tensors", explains=("PD101", "PD508"), line_of=("data_wait",))
def check(session: Session) -> Finding | None:
    probed = probed_loader_of(session)
    probe = probed.probe
    claimed_s = probed.stage.n_span_steps * probed.wait_s  # without the sampler's time, of which PD511 names the line
    if not indexes_rows(probe) or claimed_s < WAIT_MIN_SHARE * probed.stage.span_s:
        return None
    if is_waiting(probe) or is_transport_costly(probed):
        return None  # PD106 or PD109 applies.
    batch_size, batch_s = probe.batch_size or 1, probed.plan.batch_s
    loader, sampler = probed.loader, "sampler"  # the user's own
    if loader.sampler_class in (None, *SAMPLERS):
        sampler = "SequentialSampler(dataset)" if loader.is_shuffled is False else "RandomSampler(dataset)"
    return timed_finding(
        probed.stage,
        summary=(
            f"{spent_waiting(probed.share)}: tensors in memory are indexed "
            f"sample by sample. Fetching {batch_size} rows one at a time takes {duration(batch_s)} per batch."
        ),
        evidence=(
            wait_evidence(probed),
            fact("time per batch, row by row", batch_s, "s"),
            fact("num_workers", probed.plan.n_now),
        ),
        prescriptions=fix(
            "fetch whole batches: pass a BatchSampler as sampler, and batch_size=None",
            "minutes",
            code=(
                f"sampler = BatchSampler({sampler}, batch_size={batch_size}, drop_last={bool(loader.drop_last)})\n"
                "DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=0)"
            ),
        ),
        claims={"data_wait": claimed_s},
        low_s=(low_s := collecting_low_s(session, probed)),
        basis="at most the data wait, if indexing a whole batch took no time" + (AT_LEAST_COLLECTIONS if low_s else ""),
        confidence="high" if probed.plan.n_now == 0 else "medium",
        method="timed" if low_s else "modeled",
    )
