"""PD322: an embedding table gets a dense gradient, though a batch looks up few of its rows."""

from collections.abc import Sequence
from typing import NamedTuple

from lightning_perf.records import Finding, Hypothesis, ModelProfile, OperatorProfile, Session
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.replay_signals import replayed
from lightning_perf.rules.rule import Skip, required, rule
from lightning_perf.rules.signals import claims_of, is_cpu_run, named_by_kind, steady_of
from lightning_perf.rules.step_signals import model_profile_of
from lightning_perf.rules.thresholds import LOW_SHARE, ROWS_LOOKED_UP_MAX_FRACTION
from lightning_perf.rules.user_lines import computing_s
from lightning_perf.rules.wording import percent, place

_REPLAYED_AS = "sparse-embeddings"
_TAKES_SPARSE = ("Adagrad", "SGD", "SparseAdam")
"""Optimizers of torch that take sparse gradients."""

_TABLES = ("Embedding", "EmbeddingBag")
_MAX_NAMED = 2

_GRADIENTS = ("aten::embedding_dense_backward", "aten::_embedding_bag_backward")


class _Tables(NamedTuple):
    """Fraction of the tables' rows that a step looks up, and the seconds that the other rows take at most, by phase.

    ``is_bag``: all are of an ``EmbeddingBag``.
    """

    fraction: float
    claims: dict[str, float]
    is_bag: bool


def _hypothesis(session: Session) -> Hypothesis | None:
    """Return the replay of gradients and updates of the tables, if they take a noticeable time."""
    tables, steady = _tables_of(session), steady_of(session)
    if tables is None:
        return None
    at_stake_s = sum(tables.claims.values())
    least_part = min(1.0, LOW_SHARE * steady.span_s / at_stake_s)
    return Hypothesis(treatment=_REPLAYED_AS, at_stake_s=at_stake_s, least_part=least_part)


@rule("PD322", "dense-embedding-gradients", hypothesis=_hypothesis)
def check(session: Session) -> Finding | None:
    """Compare the bytes of the gradients with those looked up, both counted in the profiled step."""
    tables, steady = _tables_of(session), steady_of(session)
    if tables is None:
        return None
    share = sum(tables.claims.values()) / steady.span_s
    result = replayed(session, _REPLAYED_AS)
    speedup = result.speedup if result is not None else None
    if result is not None and (result.is_negligible or (speedup is not None and speedup.high <= 1.0)):
        return None
    if tables.is_bag and (result is None or not result.n_operators):
        return None  # of a bag with mode="max", say, the gradient cannot be sparse
    claims, least_s = tables.claims, 0.0
    is_seen = is_cpu_run(session)  # on a device, the host may be what takes the time
    if is_seen and result is not None and result.before_s and speedup is not None and speedup.low > 1.0:
        claimed_s = sum(claims.values())
        replayed_s = min(claimed_s, steady.n_span_steps * result.before_s)
        least_s = replayed_s * (1 - 1 / speedup.low)
        if result.after_s:
            least_s = min(least_s, max(0.0, claimed_s - steady.n_span_steps * result.after_s))
        most_s = claimed_s - replayed_s / speedup.high  # sparse updates take time as well
        claims = {name: most_s / claimed_s * seconds for name, seconds in claims.items()}
    names = [one.class_name for one in session.settings.model.optimizers] if session.settings.model is not None else []
    is_ready = bool(names) and all(name in _TAKES_SPARSE for name in names)
    change = (
        ", and leave fused=True and weight_decay out of the optimizer"
        if is_ready
        else " and update them by torch.optim.SparseAdam, the rest by another optimizer (needs manual optimization)"
    )
    return timed_finding(
        steady,
        summary=(
            f"Up to {percent(share)} of the time goes into gradients and updates of embedding rows that a step does "
            f"not use: it looks up at most {percent(tables.fraction)} of the rows{_named(model_profile_of(session))}."
        ),
        evidence=(
            fact("rows looked up ÷ rows of the tables", tables.fraction, "fraction", ROWS_LOOKED_UP_MAX_FRACTION),
            fact("share of the time in gradients and updates of other rows", share, "fraction", LOW_SHARE),
            fact("measured speedup of gradients and updates", speedup.value, "ratio", n=result.n_rounds)
            if result is not None and speedup is not None
            else None,
        ),
        prescriptions=fix(
            f"create large embeddings with sparse=True{change}",
            "minutes" if is_ready else "hours",
            "numerics" if is_ready else "semantics",
            code=f"nn.{'EmbeddingBag' if tables.is_bag else 'Embedding'}(n_rows, width, sparse=True)",
        ),
        claims=claims,
        low_s=least_s,
        basis="at most the part of backward and of the optimizer that concerns rows not looked up"
        + (", without what sparse gradients took in a replay; at least what that saves" if least_s else ""),
        confidence="medium",
        method="replayed" if least_s else "timed",
    )


def _tables_of(session: Session) -> _Tables | None:
    """Return the embedding tables with dense gradients; None if there are none, or they take no noticeable time.

    Raises:
        Skip: Lookups, the model or the device's time are not known.
    """
    profile, steady = model_profile_of(session), steady_of(session)
    model = required(session.settings.model, session.missing.get("settings.model", "the model is not known"))
    lookups = [one for one in profile.operators if one.name == "aten::embedding"]
    bags = [one for one in profile.operators if one.name == "aten::_embedding_bag"]
    gradients = [one for one in profile.operators if one.name in _GRADIENTS]
    if not gradients or not profile.parameters_bytes:
        return None
    if not lookups and not bags:
        raise Skip("the lookups of embeddings are not among the operators listed")
    returned_bytes = sum(one.n_bytes for one in lookups) / 2  # each row is read and written
    looked_up_bytes = returned_bytes + sum(one.n_bytes for one in bags)  # which sum the rows that they read
    n_tables = sum(model.layers.get(name, 0) for name in _TABLES)
    n_uses = max(1.0, sum(one.calls for one in gradients) / n_tables) if n_tables else 1.0  # of a table in one step
    table_bytes = (sum(one.n_bytes for one in gradients) - returned_bytes) / n_uses
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
        optimizer_s = min(optimizer_s, steady.n_span_steps * steady.device.phases.get("optimizer", 0.0))
    claims = {"optimizer": (1 - fraction) * part * optimizer_s, "backward": (1 - fraction) * backward_s}
    return _Tables(fraction, claims, not lookups) if sum(claims.values()) >= LOW_SHARE * steady.span_s else None


def _named(profile: ModelProfile) -> str:
    """Return the largest tables, ``" of item (model.py:31) and user"``, if half as large as the largest; else empty."""
    tables = sorted((one for one in profile.modules if one.class_name in _TABLES), key=lambda one: -one.n_parameters)
    large = [place(one.path, one.site) for one in tables if 2 * one.n_parameters >= tables[0].n_parameters]
    named = [*large[:_MAX_NAMED], "others"] if len(large) > _MAX_NAMED else large
    return f" of {' and '.join([', '.join(named[:-1]), named[-1]] if len(named) > 1 else named)}" if large else ""


def _part_of(operators: Sequence[OperatorProfile], some: Sequence[OperatorProfile]) -> float:
    """Return the part of the operators' time in some of them; 0 where they were not timed."""
    total_s = sum(one.total_s or 0.0 for one in operators)
    return sum(one.total_s or 0.0 for one in some) / total_s if total_s else 0.0
