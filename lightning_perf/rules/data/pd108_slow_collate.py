"""PD108: collating takes much of making a batch."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.loader_curve import feeding_of
from lightning_perf.rules.loader_signals import (
    blamed,
    costliest,
    function_evidence,
    function_place,
    indexes_rows,
    is_transport_costly,
    sample_share,
    wait_evidence,
)
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.thresholds import COLLATE_MIN_SHARE, WAIT_MIN_SHARE
from lightning_perf.rules.wording import duration, percent, spent_waiting


@rule("PD108", "slow-collate", explains=("PD101", "PD102", "PD107"))
def check(session: Session) -> Finding | None:
    """Compare collating with making the whole batch."""
    feeding = feeding_of(session)
    probe, plan = feeding.probe, feeding.plan
    if (
        feeding.share < WAIT_MIN_SHARE
        or plan.is_too_cheap
        or plan.cost_more
        or indexes_rows(probe)
        or is_transport_costly(feeding)
    ):
        return None
    if probe.collate is None:
        raise Skip(probe.missing.get("collate", "collate was not timed"))
    share = 1.0 - sample_share(probe)
    if share < COLLATE_MIN_SHARE:
        return None
    function = costliest(probe, "collate")
    who = function_place(function) if function is not None else feeding.loader.collate or "the collate function"
    is_own = function.is_users if function is not None else feeding.loader.collate != "default_collate"
    return timed_finding(
        feeding.stage,
        summary=(
            f"{spent_waiting(feeding.share)}; collating in {who} takes "
            f"{percent(share)} of making a batch, {duration(probe.collate.p50_s)} per batch."
        ),
        evidence=(
            wait_evidence(feeding),
            fact("collate's share of making a batch", share, "fraction", COLLATE_MIN_SHARE, probe.collate.n),
            fact("collating time per batch", probe.collate.p50_s, "s", n=probe.collate.n),
            *function_evidence(probe, "collate"),
        ),
        prescriptions=(
            fix(
                (
                    "stack samples with one call instead of looping over them"
                    if is_own
                    else f"pack the {probe.n_tensors or 'many'} fields of a sample into few tensors"
                ),
                "minutes",
                code="def collate(samples):\n    return torch.stack(samples)  # or pad_sequence",
            ),
        ),
        # Of collating, only the function that the fix replaces goes away.
        claims={"data_wait": feeding.saved_s(share * (blamed(function) if function is not None else 1.0))},
        basis=f"at most the time of {who}; with the workers in use",
        confidence="medium" if feeding.is_predicted else "high",
        method="modeled",
    )
