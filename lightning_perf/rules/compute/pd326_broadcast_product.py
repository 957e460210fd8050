"""PD326: a tensor is made by broadcasting only to be summed, where a matrix multiplication would do."""

from lightning_perf.records import Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.rule import required
from lightning_perf.rules.signals import CODE_PHASES, steady_of
from lightning_perf.rules.step_signals import model_profile_of
from lightning_perf.rules.user_lines import cpu_computing_share


@replay_rule("PD326", "broadcast-product")
def check(session: Session) -> Diagnosis | None:
    steady_of(session)
    found = required(model_profile_of(session).broadcast, "the sampled step has no such sum")
    shape = " × ".join(f"{size:,}" for size in found.shape)
    return Diagnosis(
        f"{found.site or 'A line'} broadcasts to a tensor of {shape} only to sum it over one dimension",
        (
            fact("size of that tensor", found.n_bytes, "bytes"),
            fact("time of its operators in one step", found.total_s, "s") if found.total_s else None,
        ),
        fix(
            "compute the sum as a matrix multiplication, which makes no such tensor",
            "minutes",
            "numerics",
            code=(
                "a @ b.T  # instead of (a[:, None] * b[None]).sum(-1)\n"
                "F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T  # cosine similarity of all pairs\n"
                "torch.cdist(a, b)  # distances of all pairs"
            ),
        ),
        "a matrix multiplication in place of these operators runs",
        replayed_as="matrix-multiplication",
        at_stake=cpu_computing_share(session, *CODE_PHASES),
    )
