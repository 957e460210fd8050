"""PD322: an embedding table gets a dense gradient, though a batch looks up few of its rows."""

from lightning_perf.records import Finding, OperatorProfile, Session
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.rule import Skip, required, rule
from lightning_perf.rules.signals import is_cpu_run, phase_s, steady_of
from lightning_perf.rules.step_signals import counted
from lightning_perf.rules.thresholds import LOW_SHARE, ROWS_LOOKED_UP_MAX_FRACTION
from lightning_perf.rules.user_lines import computing_s
from lightning_perf.rules.wording import percent

_TAKES_SPARSE = ("Adagrad", "SGD", "SparseAdam")
"""Optimizers of torch that take sparse gradients."""


@rule("PD322", "dense-embedding-gradients")
def check(session: Session) -> Finding | None:
    """Compare the bytes of the gradients with those looked up, both counted in the profiled step."""
    profile, steady = counted(session), steady_of(session)
    model = required(session.settings.model, session.missing.get("settings.model", "the model is not known"))
    found = {operator.name: operator for operator in profile.operators}
    lookup, gradient = found.get("aten::embedding"), found.get("aten::embedding_dense_backward")
    if lookup is None or gradient is None or not profile.parameters_bytes:
        return None
    looked_up_bytes = lookup.n_bytes / 2  # each row is read and written
    table_bytes = gradient.n_bytes - looked_up_bytes
    fraction = looked_up_bytes / table_bytes if table_bytes > 0 else 1.0
    part = table_bytes / profile.parameters_bytes
    # With a layer whose gradient is dense anyway: then the table counts twice. Indices are part of the bytes, too.
    is_shared = part + (model.matmul_parameter_fraction or 0.0) > 1.05
    if fraction > ROWS_LOOKED_UP_MAX_FRACTION or is_shared:
        return None
    if not is_cpu_run(session) and steady.device is None:
        raise Skip("the device's time in the optimizer was not measured")
    backward_s = _part_of(profile.operators, gradient) * computing_s(session, steady, "forward", "backward")
    optimizer_s = phase_s(steady, "optimizer")
    if steady.device is not None:
        optimizer_s = min(optimizer_s, steady.n_steps * steady.device.phases.get("optimizer", 0.0))
    claims = {"optimizer": (1 - fraction) * part * optimizer_s, "backward": (1 - fraction) * backward_s}
    share = sum(claims.values()) / steady.span_s
    if share < LOW_SHARE:
        return None
    names = [optimizer.class_name for optimizer in model.optimizers]
    is_ready = bool(names) and all(name in _TAKES_SPARSE for name in names)
    change = (
        ", and fused=False" if is_ready else ", updated by torch.optim.SparseAdam, the rest by an optimizer of its own"
    )
    return timed_finding(
        steady,
        summary=(
            f"{percent(share)} of the time goes into gradients and updates of embedding rows that no batch looked up: "
            f"a batch looks up at most {percent(fraction)} of {table_bytes / 2**20:.0f} MiB."
        ),
        evidence=(
            fact(
                "rows looked up ÷ rows of the tables", fraction, "fraction", ROWS_LOOKED_UP_MAX_FRACTION, lookup.calls
            ),
            fact("share of the time in gradients and updates of other rows", share, "fraction", LOW_SHARE),
        ),
        prescriptions=fix(
            f"create large embeddings with sparse=True{change}",
            "minutes",
            "numerics" if is_ready else "semantics",
            code="nn.Embedding(n_rows, width, sparse=True)",
        ),
        claims=claims,
        basis="at most the part of backward and of the optimizer that concerns rows not looked up",
        confidence="medium",
    )


def _part_of(operators: tuple[OperatorProfile, ...], one: OperatorProfile) -> float:
    """Return the part of the operators' time in one of them; 0 where they were not timed."""
    total_s = sum(each.total_s or 0.0 for each in operators)
    return (one.total_s or 0.0) / total_s if total_s else 0.0
