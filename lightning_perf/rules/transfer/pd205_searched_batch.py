"""PD205: Lightning searches batches of many objects for tensors."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.machine_signals import sampled_host
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.signals import steady_of
from lightning_perf.rules.thresholds import TRANSPORT_MIN_OBJECTS, WAIT_MIN_SHARE
from lightning_perf.rules.user_lines import searched_for_tensors_s
from lightning_perf.rules.wording import percent


@rule("PD205", "searched-batch")
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    host = sampled_host(session)
    most = f", most of them in batch{host.batch_entry}" if host is not None and host.batch_entry else ""
    n_objects = required(host.batch_objects if host is not None else None, "the objects of a batch were not counted")
    searched_s = searched_for_tensors_s(session, steady)
    share = searched_s / steady.span_s
    if n_objects < TRANSPORT_MIN_OBJECTS or share < WAIT_MIN_SHARE:
        return None
    return timed_finding(
        steady,
        summary=(
            f"{percent(share)} of training time is spent searching batches for tensors to move; "
            f"the first batch holds at least {n_objects:,} objects{most}."
        ),
        evidence=(
            fact("share of the search for tensors", share, "fraction", WAIT_MIN_SHARE),
            fact("objects of the first batch, at least", n_objects, "count", TRANSPORT_MIN_OBJECTS),
        ),
        prescriptions=fix(
            "leave out of the batch what the step does not use, and pack numbers into tensors",
            "minutes",
            code="def transfer_batch_to_device(self, batch, device, dataloader_idx):\n"
            '    return {**batch, "x": batch["x"].to(device)}  # where the rest must stay as it is',
        ),
        claims={"transfer": searched_s},
        low_s=searched_s,
        basis="time before each step in which batches are moved, without the user's own lines",
    )
