"""PD108: collating takes much of the time to make a batch."""

from lightning_perf.records import Finding, HotFunction, Prescription, Session
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.loader_curve import probed_loader_of
from lightning_perf.rules.loader_signals import (
    AT_LEAST_COLLECTIONS,
    collecting_low_s,
    costliest,
    function_evidence,
    function_place,
    function_share,
    indexes_rows,
    is_transport_costly,
    sample_share,
    wait_evidence,
)
from lightning_perf.rules.remedies import remedy_for
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.thresholds import COLLATE_MIN_SHARE, WAIT_MIN_SHARE
from lightning_perf.rules.user_lines import MAKING_TENSORS, is_line_of, lines_of
from lightning_perf.rules.wording import duration, percent, spent_waiting

_STACK = "def collate(samples):\n    return torch.stack(samples)  # or pad_sequence"
_OF_ARRAYS = "torch.from_numpy(np.stack(arrays))  # instead of torch.tensor(arrays)"


@rule("PD108", "slow-collate", explains=("PD101", "PD102", "PD107"), line_of=("data_wait",))
def check(session: Session) -> Finding | None:
    probed = probed_loader_of(session)
    probe, plan = probed.probe, probed.plan
    if probed.share < WAIT_MIN_SHARE or plan.is_too_cheap or plan.cost_more:
        return None
    if indexes_rows(probe) or is_transport_costly(probed):
        return None  # PD110 or PD109 applies.
    collate = required(probe.collate, probe.missing.get("collate", "collate was not timed"))
    share = 1.0 - sample_share(probe)
    if share < COLLATE_MIN_SHARE:
        return None
    function = costliest(probe, "collate")
    who, part, low_s = probed.loader.collate or "the collate function", 1.0, 0.0
    is_own = probed.loader.collate != "default_collate"
    if function is not None:
        who, is_own = function_place(function), function.is_users
        # The fix replaces the default function alone, or a user's function with all functions that it calls.
        part = function.share if is_own else function_share(function)
        # Objects that start collections are made by a function of the user's, not by stacking tensors.
        low_s = collecting_low_s(session, probed, share * part) if is_own else 0.0
    return timed_finding(
        probed.stage,
        summary=(
            f"{spent_waiting(probed.share)}; collating in {who} takes "
            f"{percent(share)} of the time to make a batch, {duration(collate.p50_s)} per batch."
        ),
        evidence=(
            wait_evidence(probed),
            fact("collate time ÷ time to make a batch", share, "fraction", COLLATE_MIN_SHARE, collate.n),
            fact("collate time per batch", collate.p50_s, "s", n=collate.n),
            *function_evidence(probe, "collate"),
        ),
        prescriptions=(
            _faster(session, function)
            if is_own
            else fix(
                f"pack the {probe.n_tensors or 'many'} fields of a sample into few tensors", "minutes", code=_STACK
            )
        ),
        claims={"data_wait": probed.saved_s(share * part)},
        low_s=low_s,
        basis=f"at most the time of {who}, with the workers in use" + (AT_LEAST_COLLECTIONS if low_s else ""),
        confidence="medium" if probed.is_predicted else "high",
        method="timed" if low_s else "modeled",
    )


def _faster(session: Session, function: HotFunction | None) -> Prescription:
    """Recommend what makes the user's function faster, by the line that takes most of it in the training process."""
    lines = (time.line for time in lines_of(session, "data_wait"))
    line = next((one for one in lines if function is not None and is_line_of(one, function)), None)
    call, name = (line.call, line.function) if line is not None else ("", "")
    remedy = remedy_for(call, line.code) if line is not None else ""
    summary, code = "stack samples with one call instead of looping over them", _STACK
    if call in MAKING_TENSORS:
        summary, code = f"stack arrays before they become a tensor: {call} copies them number by number", _OF_ARRAYS
    elif remedy:
        summary, code = f"{remedy} ({call or name})", ""
    elif line is not None and not call:
        summary = f"vectorize line {line.line} of {name}: operate on whole arrays instead of looping in Python"
        code = "# numpy or torch operations on whole arrays instead of a loop over their elements"
    elif call and not call.startswith(("torch.", "numpy.", "np.")):
        summary, code = f"call {call} once for all samples, or before training, not in {name}", ""
    return fix(summary, "minutes", code=code)
