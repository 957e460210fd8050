"""PD326: all pairs of rows are related by broadcasting, where a matrix multiplication would do."""

from lightning_perf.records import Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.rule import required
from lightning_perf.rules.signals import is_cpu_run, steady_of
from lightning_perf.rules.step_signals import model_profile_of
from lightning_perf.rules.thresholds import LOW_SHARE

_CODE = {
    "products": "a @ b.T  # instead of (a[:, None] * b[None]).sum(-1)",
    "distances": "torch.cdist(a, b)  # instead of (a[:, None] - b[None]).norm(dim=-1)",
    "similarities": (
        "F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T\n"
        "# instead of F.cosine_similarity(a[:, None], b[None], dim=-1)"
    ),
}


@replay_rule("PD326", "broadcast-pairs")
def check(session: Session) -> Diagnosis | None:
    steady = steady_of(session)
    found = required(model_profile_of(session).broadcast, "no operators of the sampled step relate all pairs")
    share = found.total_s / steady.step_s.mean
    if is_cpu_run(session) and share < LOW_SHARE:
        return None
    shape = " × ".join(f"{size:,}" for size in found.shape)
    kind = "cosine similarities" if found.kind == "similarities" else found.kind
    return Diagnosis(
        f"{found.site or 'The model'} computes the {kind} of all pairs of rows by broadcasting to a tensor of {shape}",
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
