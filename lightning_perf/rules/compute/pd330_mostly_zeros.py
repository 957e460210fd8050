"""PD330: products or decompositions of matrices that are mostly zeros."""

from lightning_perf.records import Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.rule import required
from lightning_perf.rules.signals import is_cpu_run, share_of_step, steady_of
from lightning_perf.rules.step_signals import model_profile_of
from lightning_perf.rules.thresholds import LOW_SHARE

_FIXES = {
    "diagonal": (
        "multiply by the diagonal",
        "d * x  # instead of torch.diag(d) @ x; d[:, None] * x for the rows of a matrix",
    ),
    "one-hot": (
        "select rows by their indices instead",
        "table[index]  # or F.embedding(index, table); instead of F.one_hot(index).float() @ table",
    ),
    "sparse": (
        "keep the matrix sparse",
        "torch.sparse.mm(adjacency.to_sparse_csr(), x)  # made sparse once, or by collate_fn; or scatter_add",
    ),
}


_DECOMPOSED = (
    "compute with the diagonal only: each of its elements is independent of the others",
    "Independent(Normal(mean, std), 1)  # instead of MultivariateNormal(mean, torch.diag_embed(std**2))\n"
    "x / d[:, None]  # instead of torch.linalg.solve(torch.diag(d), x)",
)
"""For decompositions and inverses of diagonal matrices."""


@replay_rule("PD330", "mostly-zeros")
def check(session: Session) -> Diagnosis | None:
    steady, profile = steady_of(session), model_profile_of(session)
    found = required(profile.zeros if is_cpu_run(session) else None, "no product of mostly zeros was seen on a CPU")
    share = share_of_step(steady, found.total_s)
    if share < LOW_SHARE or not found.nonzero_fraction:
        return None
    shape = " × ".join(f"{size:,}" for size in found.shape)
    what = "multiplies" if found.is_product else "decomposes or inverts"
    summary, code = _FIXES[found.kind]
    if found.kind == "diagonal" and not found.is_product:
        summary, code = _DECOMPOSED
    return Diagnosis(
        f"{found.site or 'The model'} {what} a {found.kind} matrix of {shape} as if it were dense: "
        f"one in {round(1 / found.nonzero_fraction):,} of its elements is not zero",
        (
            fact("nonzero elements", found.nonzero_fraction, "fraction"),
            fact("such operators in a step", found.n_operators, "count"),
            fact("their time in a step", found.total_s, "s"),
        ),
        fix(summary, "minutes", "numerics", code=code),
        "without the zeros, these operators run",
        replayed_as="without-zeros",
        at_stake=min(1.0, share),
        other_phases=(),
        unmeasured=None if found.kind == "sparse" else "low",  # sparse products may be slower, and few are replayed
    )
