"""PD702: exposed communication: collectives not hidden behind compute."""

from lightning_perf.records import Finding, Prescription, Session
from lightning_perf.rules.findings import fact, fix, optional_fact, trainer_fix
from lightning_perf.rules.memory_signals import half_precision_of
from lightning_perf.rules.rank_signals import exposed_s_of, waited_s
from lightning_perf.rules.rule import rule
from lightning_perf.rules.thresholds import COMMUNICATION_MIN_SHARE
from lightning_perf.rules.trace_reading import complete_reading_of
from lightning_perf.rules.wording import percent

_BASIS = "at most the exposed communication; no gain if this rank waits for another rank"
_BASIS_COMPARED = "at most the exposed communication, without waiting for slower ranks"
_STATIC_GRAPH = fix(
    "set static_graph=True on DDP if every step has the same graph: it then exchanges buckets as early as possible",
    "one line",
    treatment="ddp-static-graph",
    code="Trainer(..., strategy=DDPStrategy(..., static_graph=True, gradient_as_bucket_view=True))",
)
_COMPRESSED = fix(
    "compress gradients to bf16: half the bytes",
    "one line",
    "numerics",
    code="Trainer(..., strategy=DDPStrategy(..., ddp_comm_hook=default_hooks.bf16_compress_hook))",
)
_SHARDED = (
    fix(
        "prefetch the next layer's parameters in FSDP, in forward and in backward",
        "one line",
        code="FSDPStrategy(forward_prefetch=True, backward_prefetch=BackwardPrefetch.BACKWARD_PRE)",
    ),
    fix(
        (
            "shard only within each node, or keep parameters after forward (SHARD_GRAD_OP): fewer all-gathers, "
            "more memory"
        ),
        "one line",
        code='FSDPStrategy(sharding_strategy="HYBRID_SHARD")  # or "SHARD_GRAD_OP"',
    ),
)


def _advice(session: Session, is_sharded: bool) -> tuple[Prescription | None, ...]:
    """Recommend arguments of the strategy only if it takes them; that of a trace alone is not known."""
    trainer = session.settings.trainer
    strategy = trainer.strategy or "DDP or FSDP"
    half = half_precision_of(session, "ranks then exchange half the bytes")
    if is_sharded and "FSDP" in strategy:
        return (*_SHARDED, half)
    less_often = trainer_fix(
        "exchange gradients less often: accumulate over several batches",
        "semantics",
        "accumulate",
        accumulate_grad_batches=4 * (trainer.accumulate_grad_batches or 1),
    )
    if is_sharded or "DDP" not in strategy:
        return half if is_sharded else None, less_often
    return None if trainer.static_graph else _STATIC_GRAPH, _COMPRESSED, less_often


@rule("PD702", "exposed-communication")
def check(session: Session) -> Finding | None:
    reading = complete_reading_of(session)
    communication = reading.trace.communication
    if communication is None:
        return None
    waiting_s = waited_s(session, reading)
    is_compared = communication.waiting_s is not None
    exposed_s = exposed_s_of(session, reading)
    if reading.share(exposed_s) < COMMUNICATION_MIN_SHARE:
        return None
    least_s, most_s = reading.saved_s("communication", exposed_s)
    by_name = sorted(communication.by_name.items(), key=lambda item: -item[1])[:2]
    hidden = communication.overlap_fraction
    return reading.finding(
        summary=(
            f"{percent(reading.share(exposed_s))} of the time is exposed communication "
            f"({reading.step_words(exposed_s)}). Collectives: {reading.per_step(communication.n)}"
            + (f", {percent(hidden)} of their time hidden behind compute." if hidden is not None else ".")
        ),
        evidence=(
            reading.evidence("exposed communication", exposed_s, COMMUNICATION_MIN_SHARE),
            reading.evidence("collectives", communication.total_s),
            optional_fact("waiting for slower ranks", waiting_s or None, "s"),
            *(fact(name, seconds, "s") for name, seconds in by_name),
        ),
        prescriptions=_advice(session, bool(communication.shards)),
        low_s=max(0.0, least_s - waiting_s),
        high_s=most_s,
        basis=_BASIS_COMPARED if is_compared else _BASIS,
        confidence="high" if is_compared else "medium",
    )
