"""PD337: one call of the user's code takes 30 % or more of the time, and no other rule explains it."""

from lightning_perf.records import Finding, HostLine, Session
from lightning_perf.rules.findings import AT_STAKE, WHY_NOT_MEASURED, fact, fix, how_to_measure, make_finding
from lightning_perf.rules.line_signals import evidence_of
from lightning_perf.rules.rule import rule
from lightning_perf.rules.signals import is_cpu_run, steady_of
from lightning_perf.rules.thresholds import COSTLY_LINE_MIN_SHARE, EXPLAINED_PART
from lightning_perf.rules.user_lines import check_is_sampled, is_metric, whole_lines_of
from lightning_perf.rules.wording import duration, percent, site_of

_LAYERS = ("nn.", "F.", "torch.nn.", "torch._")  # and code around compiled functions
_USUAL = {
    "addmm", "baddbmm", "backward", "bmm", "checkpoint", "checkpoint_sequential", "conv1d", "conv2d", "conv3d",
    "einsum", "fn", "forward", "functional_call", "grad", "manual_backward", "matmul", "mm", "relu", "softmax", "step",
    "tensordot",
}  # fmt: skip
"""Functions that are the training itself: products, gradients, and code that runs layers (``fn`` runs pooling)."""


@rule("PD337", "costly-line", yields_its_time=True)
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    check_is_sampled(session)
    if not is_cpu_run(session):
        return None  # the host does not wait for what it launches
    known, lines = _known_sites(session), whole_lines_of(session, ("forward", "transfer", "other"), _is_unusual)
    worst = next((one for one in lines if site_of(one.line.file, one.line.line) not in known), None)
    if worst is None or worst.seconds < COSTLY_LINE_MIN_SHARE * steady.span_s:
        return None
    share = worst.seconds / steady.span_s
    prescription = fix(
        f"look for a cheaper way to compute what {worst.line.call} returns, or for less of it",
        "hours",
        "numerics",
        code=f"# {worst.line.file}:{worst.line.line}\n{worst.line.code}" if worst.line.code else "",
    )
    return make_finding(
        "low",
        f"{worst.subject} spends {percent(share)} of the time in {worst.line.call}: "
        f"{duration(worst.seconds / steady.n_span_steps)} per step. {how_to_measure([prescription])}",
        (
            evidence_of(worst, steady),
            fact(AT_STAKE, share, "fraction", COSTLY_LINE_MIN_SHARE, worst.n),
            fact(WHY_NOT_MEASURED, "it is not known what can take the place of this call"),
        ),
        prescription,
        confidence="low",
        claims={worst.phase: worst.seconds},
    )


def _is_unusual(line: HostLine) -> bool:
    """Return whether a line calls operators of torch other than products, layers and losses."""
    owner, _, name = line.call.rpartition(".")
    is_operator = line.operator_fraction >= EXPLAINED_PART and bool(owner)
    return is_operator and not (line.call.startswith(_LAYERS) or name in _USUAL or is_metric(line))


def _known_sites(session: Session) -> set[str]:
    """Return the lines whose operators other rules look at."""
    profile = session.model_profile
    if profile is None:
        return set()
    found = (profile.broadcast, profile.zeros, profile.repeated_rows, profile.cheaper, *profile.known_results)
    return {one.site for one in found if one is not None}
