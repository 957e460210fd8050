"""PD326: all pairs of rows are related by broadcasting, where a matrix multiplication would do."""

from lightning_perf.records import BroadcastSum, Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.rule import required
from lightning_perf.rules.signals import is_cpu_run, share_of_step, steady_of
from lightning_perf.rules.step_signals import model_profile_of
from lightning_perf.rules.thresholds import LOW_SHARE, PAIRS_MIN_SHARE
from lightning_perf.rules.wording import percent

_CODE = {
    "products": "a @ b.T  # instead of (a[:, None] * b[None]).sum(-1)",
    "distances": "torch.cdist(a, b)  # instead of (a[:, None] - b[None]).norm(dim=-1)",
    "similarities": (
        "F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T\n"
        "# instead of F.cosine_similarity(a[:, None], b[None], dim=-1)"
    ),
}

_IN_ORDER = (
    "order = times.argsort(descending=True)  # sums over all rows with a later time:\n"
    "log_risk = hazard[order].logcumsumexp(0)  # instead of (times[None] >= times[:, None]) in an n × n matrix"
)


@replay_rule("PD326", "broadcast-pairs")
def check(session: Session) -> Diagnosis | None:
    steady = steady_of(session)
    found = required(model_profile_of(session).broadcast, "the sampled step has no broadcasting over all pairs of rows")
    share = share_of_step(steady, found.total_s)
    if is_cpu_run(session) and share < LOW_SHARE:
        return None
    shape = " × ".join(f"{size:,}" for size in found.shape)
    if found.kind == "comparisons":
        return _of_comparisons(found, shape, share)
    kind = "cosine similarities" if found.kind == "similarities" else found.kind
    return Diagnosis(
        f"{found.site or 'The model'} computes the {kind} of all pairs of rows in a broadcast tensor of {shape}",
        (
            fact("size of that tensor", found.n_bytes, "bytes"),
            fact("time of its operators in one step", found.total_s, "s") if found.total_s else None,
        ),
        fix(f"compute the {kind} by a matrix multiplication", "minutes", "numerics", code=_CODE[found.kind]),
        "with a matrix multiplication instead, these operators run",
        replayed_as="without-broadcast",
        at_stake=min(1.0, share),
        other_phases=(),
    )


def _of_comparisons(found: BroadcastSum, shape: str, share: float) -> Diagnosis | None:
    """Return the diagnosis of comparisons, which no matrix multiplication computes: nothing is replayed."""
    if share < PAIRS_MIN_SHARE:
        return None
    return Diagnosis(
        f"{found.site or 'The model'} compares each row with each other one in tensors of {shape}, and "
        f"{percent(share)} of the time goes into them",
        (
            fact("size of such a tensor", found.n_bytes, "bytes"),
            fact("time of its operators in one step", found.total_s, "s"),
        ),
        fix(
            "compute it in order instead: sort the rows, then use cumulative sums or neighbors only",
            "hours",
            "numerics",
            code=_IN_ORDER,
        ),
        "",
        at_stake=min(1.0, share),
        other_phases=(),
    )
