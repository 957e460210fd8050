"""PD109: moving a batch from a worker to the training process takes much of the fetch time."""

from lightning_perf.records import Finding, Prescription, Session
from lightning_perf.rules.findings import SPREAD, fact, fix, optional_fact, timed_finding, without_workers
from lightning_perf.rules.loader_curve import ProbedLoader, probed_loader_of, saved_by
from lightning_perf.rules.loader_signals import transport_share, wait_evidence
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.thresholds import (
    TRANSPORT_MIN_BYTES,
    TRANSPORT_MIN_OBJECTS,
    TRANSPORT_MIN_SHARE,
    TRANSPORT_MIN_TENSORS,
    WAIT_MIN_SHARE,
)
from lightning_perf.rules.user_lines import searched_for_tensors_s
from lightning_perf.rules.wording import duration, percent, spent_waiting


@rule("PD109", "costly-worker-transport", explains=("PD101", "PD102", "PD103", "PD205"))
def check(session: Session) -> Finding | None:
    probed = probed_loader_of(session)
    probe, plan, stage = probed.probe, probed.plan, probed.stage
    n_tensors, n_objects = probe.n_tensors or 0, probe.n_objects or 0
    is_in_pieces = n_tensors >= TRANSPORT_MIN_TENSORS or n_objects >= TRANSPORT_MIN_OBJECTS
    searched_s = searched_for_tensors_s(session, stage) if is_in_pieces else 0.0
    is_searching = searched_s > stage.n_span_steps * probed.wait_s
    if plan.n_now == 0 or probed.share + is_searching * searched_s / stage.span_s < WAIT_MIN_SHARE:
        return None
    transport = required(probe.transport, probe.missing.get("transport", "moving a batch was not timed"))
    share = transport_share(probed)
    if share < TRANSPORT_MIN_SHARE:
        return None
    moved_s = transport.p50_s
    what = _what(n_tensors, n_objects, probe.batch_bytes or 0)
    certain_s = 0.0
    if is_searching:  # each piece takes as long, and TRANSPORT_MIN_TENSORS of them may remain
        certain_s = (1 - SPREAD) * (1 - TRANSPORT_MIN_TENSORS / max(n_tensors, n_objects)) * searched_s
    low_s, high_s = _packed_s(probed), min(probed.wait_s, moved_s)
    prescriptions: tuple[Prescription, ...] = (_PACK,)
    alone = plan.chosen if plan.chosen is not None and plan.chosen.num_workers == 0 else None
    if alone is not None and alone.step_s < stage.step_s.mean:
        prescriptions = (_PACK, _alone(probed))
        if alone.is_measured and not is_searching:
            prescriptions = (_alone(probed), _PACK)
            low_s, alone_s = saved_by(session, stage.step_s.mean, plan.now, alone)
            high_s = max(high_s, alone_s)
    return timed_finding(
        stage,
        summary=(
            f"{spent_waiting(probed.share)}; moving a batch of {what} from a worker to the training process takes "
            f"{duration(moved_s)}, {percent(share)} of the fetch time."
            + (f" Searching it for tensors takes {percent(searched_s / stage.span_s)}." if is_searching else "")
        ),
        evidence=(
            wait_evidence(probed),
            fact("time to move a batch from a worker", moved_s, "s", n=transport.n),
            fact("transport time ÷ fetch time", share, "fraction", TRANSPORT_MIN_SHARE),
            optional_fact("tensors per batch", probe.n_tensors, "count", TRANSPORT_MIN_TENSORS),
            optional_fact("other objects per batch", probe.n_objects, "count", TRANSPORT_MIN_OBJECTS),
            optional_fact("bytes per batch", probe.batch_bytes, "bytes", TRANSPORT_MIN_BYTES),
        ),
        prescriptions=prescriptions,
        claims={"data_wait": stage.n_span_steps * high_s, "transfer": searched_s},
        low_s=stage.n_span_steps * min(probed.wait_s, low_s) + certain_s,
        method="probed",
        basis="time to move a batch, measured by the loader probe",
        confidence="medium",
    )


def _packed_s(probed: ProbedLoader) -> float:
    """Return the seconds per step that packing saves at least: the time to receive all tensors but one.

    The training process opens the shared memory of each tensor separately. Returns 0 for batches of objects or large
    tensors, because it is unknown how many remain, and if workers are too slow, because their work hides this time.
    """
    probe, plan = probed.probe, probed.plan
    point = probe.point_at(plan.n_now)
    if point is None or not point.take_s or probe.transport is None or (probe.n_tensors or 0) < TRANSPORT_MIN_TENSORS:
        return 0.0
    if (plan.batch_s + probe.transport.p50_s) / plan.n_now > plan.compute_s + point.take_s:
        return 0.0
    return (1 - SPREAD) * point.take_s * (1 - 1 / (probe.n_tensors or 1))


_PACK = fix(
    "pack the fields of a batch into few tensors, with the smallest dtype that fits",
    "minutes",
    code="def collate(samples):\n    return torch.stack([torch.cat(list(sample.values())) for sample in samples])",
)


def _alone(probed: ProbedLoader) -> Prescription:
    summary = f"set num_workers=0 (now {probed.plan.n_now}): batches are then not moved between processes"
    return without_workers(probed.loader, summary)


def _what(n_tensors: int, n_objects: int, n_bytes: int) -> str:
    if n_tensors >= TRANSPORT_MIN_TENSORS:
        return f"{n_tensors} tensors"
    return f"{n_objects} Python objects" if n_objects >= TRANSPORT_MIN_OBJECTS else f"{n_bytes / 2**20:.0f} MiB"
