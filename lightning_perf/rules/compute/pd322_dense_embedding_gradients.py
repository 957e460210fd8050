"""PD322: an embedding table gets a dense gradient, though a batch looks up few of its rows."""

from collections.abc import Sequence

from lightning_perf.records import Finding, OperatorProfile, Session
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.rule import Skip, required, rule
from lightning_perf.rules.signals import claims_of, is_cpu_run, named_by_kind, steady_of
from lightning_perf.rules.step_signals import model_profile_of
from lightning_perf.rules.thresholds import LOW_SHARE, ROWS_LOOKED_UP_MAX_FRACTION
from lightning_perf.rules.user_lines import computing_s
from lightning_perf.rules.wording import percent

_TAKES_SPARSE = ("Adagrad", "SGD", "SparseAdam")
"""Optimizers of torch that take sparse gradients."""


@rule("PD322", "dense-embedding-gradients")
def check(session: Session) -> Finding | None:
    """Compare the bytes of the gradients with those looked up, both counted in the profiled step."""
    profile, steady = model_profile_of(session), steady_of(session)
    model = required(session.settings.model, session.missing.get("settings.model", "the model is not known"))
    lookups = [one for one in profile.operators if one.name == "aten::embedding"]
    gradients = [one for one in profile.operators if one.name == "aten::embedding_dense_backward"]
    if not gradients or not profile.parameters_bytes:
        return None
    if not lookups:
        raise Skip("the lookups of embeddings are not among the operators listed")
    looked_up_bytes = sum(one.n_bytes for one in lookups) / 2  # each row is read and written
    n_tables = model.layers.get("Embedding", 0)
    n_uses = max(1.0, sum(one.calls for one in gradients) / n_tables) if n_tables else 1.0  # of a table in one step
    table_bytes = (sum(one.n_bytes for one in gradients) - looked_up_bytes) / n_uses
    n_batches = session.settings.trainer.accumulate_grad_batches or 1
    fraction = n_batches * looked_up_bytes / table_bytes if table_bytes > 0 else 1.0
    part = table_bytes / profile.parameters_bytes
    # A table shared with a dense layer counts in both parts. The margin is for the indices, which the bytes include.
    is_shared = part + (model.matmul_parameter_fraction or 0.0) > 1.05
    if fraction > ROWS_LOOKED_UP_MAX_FRACTION or is_shared:
        return None
    if not is_cpu_run(session) and steady.device is None:
        raise Skip("the device's time in the optimizer was not measured")
    backward_s = _part_of(profile.operators, gradients) * computing_s(session, steady, "forward", "backward")
    clipping = named_by_kind(steady, "loop").get("gradient_clipping", [])
    optimizer_s = max(0.0, computing_s(session, steady, "optimizer") - sum(claims_of(clipping, steady.span_s).values()))
    if steady.device is not None:
        optimizer_s = min(optimizer_s, steady.n_steps * steady.device.phases.get("optimizer", 0.0))
    claims = {"optimizer": (1 - fraction) * part * optimizer_s, "backward": (1 - fraction) * backward_s}
    share = sum(claims.values()) / steady.span_s
    if share < LOW_SHARE:
        return None
    names = [optimizer.class_name for optimizer in model.optimizers]
    is_ready = bool(names) and all(name in _TAKES_SPARSE for name in names)
    change = (
        ", without fused=True and weight_decay"
        if is_ready
        else " and update them by torch.optim.SparseAdam, the rest by another optimizer (needs manual optimization)"
    )
    return timed_finding(
        steady,
        summary=(
            f"Up to {percent(share)} of the time goes into gradients and updates of embedding rows that a step does "
            f"not use: it looks up at most {percent(fraction)} of the rows."
        ),
        evidence=(
            fact("rows looked up ÷ rows of the tables", fraction, "fraction", ROWS_LOOKED_UP_MAX_FRACTION),
            fact("share of the time in gradients and updates of other rows", share, "fraction", LOW_SHARE),
        ),
        prescriptions=fix(
            f"create large embeddings with sparse=True{change}",
            "minutes" if is_ready else "hours",
            "numerics" if is_ready else "semantics",
            code="nn.Embedding(n_rows, width, sparse=True)",
        ),
        claims=claims,
        basis="at most the part of backward and of the optimizer that concerns rows not looked up",
        confidence="medium",
    )


def _part_of(operators: Sequence[OperatorProfile], some: Sequence[OperatorProfile]) -> float:
    """Return the part of the operators' time in some of them; 0 where they were not timed."""
    total_s = sum(one.total_s or 0.0 for one in operators)
    return sum(one.total_s or 0.0 for one in some) / total_s if total_s else 0.0
