"""PD115: workers block one another."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.loader_curve import probed_loader_of
from lightning_perf.rules.loader_signals import (
    is_bursty,
    is_serialized,
    max_serialized_speedup,
    serialized_speedup,
    wait_evidence,
    with_kept_items,
)
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.thresholds import SAME_LINE_MIN_SHARE, WAIT_MIN_SHARE
from lightning_perf.rules.wording import spent_waiting


@rule("PD115", "serialized-workers", explains=("PD101", "PD102", "PD106"), line_of=("data_wait",))
def check(session: Session) -> Finding | None:
    probed = probed_loader_of(session)
    probe = probed.probe
    if probed.share < WAIT_MIN_SHARE:
        return None
    reason = probe.missing.get("curve", "the loader was not probed with several workers")
    n_workers, low, high = required(serialized_speedup(probe), reason)
    if not is_serialized(probe) or is_bursty(probe):
        return None
    times = dict.fromkeys((f"{low:.1f}", f"{high:.1f}"))
    line = next(iter(probe.worker_lines), None)
    waited = 1.0 - (probe.getitem_cpu_fraction or 0.0)
    finding = timed_finding(
        probed.stage,
        summary=(
            f"{spent_waiting(probed.share)}; {n_workers} workers deliver {'–'.join(times)}x the batches of "
            "one process: they block one another."
        ),
        evidence=(
            wait_evidence(probed),
            fact(
                f"throughput of {n_workers} workers ÷ that of one process, at most",
                high,
                "ratio",
                max_serialized_speedup(n_workers),
            ),
            fact("fraction of sample time spent blocked", waited, "fraction"),
            fact("worker time spent in one line of code", line.share, "fraction", SAME_LINE_MIN_SHARE, line.n_samples)
            if line is not None
            else None,
        ),
        prescriptions=fix(
            "open a file handle or connection per worker, and hold no lock while reading",
            "minutes",
            code=(
                "def open_own_handle(worker_id):\n    get_worker_info().dataset.file = open(path, 'rb')\n\n"
                "DataLoader(..., worker_init_fn=open_own_handle)  # not more workers"
            ),
        ),
        claims={"data_wait": probed.saved_s(waited)},
        basis="at most the blocked time of samples, if workers no longer took turns",
        confidence="high" if line is not None else "medium",
        method="modeled",
    )
    return with_kept_items(session, probed, finding)
