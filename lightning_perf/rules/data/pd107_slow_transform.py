"""PD107: one function takes most of the time to make a sample."""

from collections.abc import Sequence

from lightning_perf.records import Finding, HotFunction, HotLine, Prescription, Session
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.line_signals import evidence_of
from lightning_perf.rules.loader_curve import probe_of, probed_loader_of
from lightning_perf.rules.loader_signals import (
    costliest,
    costly_line,
    function_evidence,
    function_place,
    function_share,
    indexes_rows,
    is_bursty,
    is_transport_costly,
    is_waiting,
    items_in_memory,
    sample_share,
    wait_evidence,
    wait_fact,
    with_kept_items,
)
from lightning_perf.rules.machine_signals import wait_share
from lightning_perf.rules.remedies import remedy_for
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.signals import loaders_of, phase_s, steady_of
from lightning_perf.rules.thresholds import FUNCTION_MIN_SHARE, HOST_LINE_MIN_STEP_S, WAIT_MIN_SHARE
from lightning_perf.rules.user_lines import is_line_of, lines_of
from lightning_perf.rules.wording import duration, percent, site_of, spent_waiting


@rule("PD107", "slow-transform", explains=("PD101", "PD102"), line_of=("data_wait",))
def check(session: Session) -> Finding | None:
    if session.steady is not None and session.loader_probe is not None and session.loader_probe.getitem is None:
        return _from_stack_samples(session)
    probed = probed_loader_of(session)
    probe, plan = probed.probe, probed.plan
    if probed.share < WAIT_MIN_SHARE or plan.is_too_cheap or plan.cost_more:
        return None
    if is_waiting(probe) or is_bursty(probe) or indexes_rows(probe) or is_transport_costly(probed):
        return None  # PD106, PD105, PD110 or PD109 applies.
    reason = probe.missing.get("functions", "no function of the dataset was profiled")
    function = required(costliest(probe, "getitem"), reason)
    share = function_share(function)
    of_batch = share * sample_share(probe)
    if share < FUNCTION_MIN_SHARE or of_batch < FUNCTION_MIN_SHARE / 2:
        return None
    line = costly_line(probe)
    what, most_of_it = function.name.rsplit(".", 1)[-1], ""
    if line is not None:
        what = f"line {line.line} of {what}"
        most_of_it = f", {percent(line.share)} of it in {site_of(function.file, line.line)}: {line.text.strip()}"
    who = "Python code" if function.kind == "python" else "C code that it calls"
    finding = timed_finding(
        probed.stage,
        summary=(
            f"{spent_waiting(probed.share)}; {function_place(function)} takes "
            f"{percent(share)} of the time to make a sample, in {who}{most_of_it}. That is "
            f"{duration(plan.batch_s * of_batch)} of {duration(plan.batch_s)} per batch."
        ),
        evidence=(
            wait_evidence(probed),
            *function_evidence(probe, "getitem"),
            fact("CPU time ÷ wall time of a sample", probe.getitem_cpu_fraction or 0.0, "fraction"),
            fact("profiled by", function.basis),
        ),
        prescriptions=(
            _prescription(what, function.kind == "python", _texts(session, function, line)),
            items_in_memory(session),
        ),
        claims={"data_wait": probed.saved_s(of_batch)},
        basis="at most the function's time, with the workers in use",
        confidence="medium" if probed.is_predicted else "high",
        method="modeled",
    )
    return with_kept_items(session, probed, finding)


def _from_stack_samples(session: Session) -> Finding | None:
    """Find the dataset's costliest line in the training process, if the probe could not copy the loader."""
    steady, loader = steady_of(session), loaders_of(session)[0]
    wait_s, host_s = wait_share(steady) * steady.span_s, phase_s(steady, "data_wait")
    entries: tuple[str, ...] = () if loader.is_iterable else ("__getitem__", "__getitems__")
    if loader.is_iterable or not loader.is_plain:  # otherwise __iter__ is a sampler's
        entries += ("__iter__", "__next__")
    found = [line for line in lines_of(session, "data_wait") if line.line.entry in entries]
    if loader.num_workers != 0 or not found:
        probe_of(session)  # raises Skip with the reason
    elif wait_s >= WAIT_MIN_SHARE * steady.span_s and found[0].seconds >= FUNCTION_MIN_SHARE * host_s:
        worst, call = found[0], found[0].line.call
        return timed_finding(
            steady,
            summary=(
                f"{spent_waiting(wait_s / steady.span_s)}; {worst.where} takes {percent(worst.seconds / host_s)} of it"
                f"{worst.doing}: {duration(worst.seconds / steady.n_span_steps)} per batch."
            ),
            evidence=(wait_fact(wait_s / steady.span_s, steady.n_steps), evidence_of(worst, steady)),
            prescriptions=_prescription(
                call or f"line {worst.line.line} of {worst.line.function}", not call, (call, worst.line.code)
            ),
            claims={"data_wait": min(1.0, worst.high_s / host_s) * wait_s},  # on a device, part of it is hidden
            basis=f"at most the time of this line, from {worst.n} stack samples",
            confidence="high" if steady.step_s.mean >= HOST_LINE_MIN_STEP_S else "medium",
            method="modeled",
        )
    return None


def _texts(session: Session, function: HotFunction, line: HotLine | None) -> tuple[str, ...]:
    """Return the costliest line, after the call that takes most of it where loading happens in the training process.

    Without a costliest line, return what the function's lines call.
    """
    lines = [time.line for time in lines_of(session, "data_wait")]
    if line is None:
        return tuple(one.call for one in lines if is_line_of(one, function))
    at = site_of(line.file, line.line)
    return *(one.call for one in lines if site_of(one.file, one.line) == at), line.text


def _prescription(what: str, is_python: bool, texts: Sequence[str]) -> Prescription:
    remedy = remedy_for(*texts)
    if remedy:
        summary, code = f"{remedy} ({what})", ""
    elif is_python:
        summary = f"vectorize {what}: operate on whole arrays instead of looping in Python"
        code = "# numpy or torch operations on whole arrays instead of a loop over their elements"
    else:
        summary = f"speed up {what}: use a faster library or smaller inputs, run it on the device"
        code = "def on_after_batch_transfer(self, batch, dataloader_idx):\n    ...  # the same for the whole batch"
    return fix(summary, "minutes" if remedy else "hours", code=code)
