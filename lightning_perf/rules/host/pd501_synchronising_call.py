"""PD501: the host waits for the device inside the step, and the device then waits for the host."""

import msgspec

from lightning_perf.records import STEP_PHASES, Finding, Prescription, Session
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.rule import rule
from lightning_perf.rules.signals import COMPUTE_PHASES, claims_within, phase_s
from lightning_perf.rules.step_signals import (
    are_in_one_file,
    from_trace_or_steps,
    is_within,
    loops_of,
    sampled_steps_of,
    user_sync_calls,
)
from lightning_perf.rules.thresholds import SYNC_MIN_SHARE
from lightning_perf.rules.trace_reading import device_reading_of
from lightning_perf.rules.user_lines import whole_lines_of
from lightning_perf.rules.wording import duration, number_of, percent, place, place_of


@rule("PD501", "synchronising-call")
def check(session: Session) -> Finding | None:
    return from_trace_or_steps(session, _from_trace, _from_steps)


def _from_steps(session: Session) -> Finding | None:
    calls, steady = sampled_steps_of(session)
    loops = loops_of(calls)  # they are reported with all that they call
    waits = [call for call in user_sync_calls(calls) if not any(is_within(loop, call) for loop in loops)]
    if not waits:
        return None
    is_host = calls.device == "cpu"
    share = min(1.0, sum(call.cost_s or 0.0 for call in waits) / calls.step_s) if calls.step_s > 0 else 0.0
    is_timed = any(call.cost_s is not None for call in waits)
    n = sum(call.per_step for call in waits)
    n_more = len({(call.file, call.line) for call in waits}) - 1
    more = f"; {number_of(n_more, 'more such line')}" if n_more else ""
    often = "every step" if waits[0].per_step >= 1 else "some steps"
    lines = whole_lines_of(
        session,
        COMPUTE_PHASES,
        lambda line: any(call.line == line.line and are_in_one_file(call, line) for call in waits),
    )
    sampled_s = sum(time.line.operator_fraction * time.low_s for time in lines)
    if not is_host:
        cost = "The host waits there for all queued work; a profiler window measures the cost"
    elif not is_timed:
        cost = "On a GPU the host would wait there for all queued work"
    else:
        cost = (
            f"On this CPU these calls take {percent(share)} of the step; on a GPU the host would wait there for all "
            "queued work"
        )
    finding = timed_finding(
        steady,
        summary=f"{place_of(waits[0])} reads a result on the host in {often} ({waits[0].operator}{more}). {cost}.",
        evidence=(
            *(
                fact(f"{place_of(call)}: {call.operator}", call.per_step, "per step", n=calls.n_steps)
                for call in waits[:5]
            ),
            fact("synchronizing calls per step", n, "count", n=calls.n_steps),
        ),
        prescriptions=_prescription(f" at {place_of(waits[0])}"),
        claims=claims_within(steady, share * phase_s(steady, *STEP_PHASES) if is_host else 0.0, COMPUTE_PHASES),
        low_s=sampled_s,
        basis=(
            f"{'at least the stack samples of these lines, ' if sampled_s else ''}at most the calls, timed in sampled "
            "steps"
        ),
        confidence="high" if is_host and is_timed else "medium",
    )
    if is_host and is_timed:
        return finding
    # Host time in these calls is a wait for work that has to be done anyway: no gain follows from it.
    return msgspec.structs.replace(finding, severity="low", gain=None)


def _prescription(at: str) -> Prescription:
    return fix(
        f"keep results on the device{at}: no .item(), .cpu() or nonzero() in the step",
        "minutes",
        code="self.total += loss.detach()  # .item() once, at the end of the epoch",
    )


def _from_trace(session: Session) -> Finding | None:
    reading, _ = device_reading_of(session)
    syncs = reading.trace.syncs
    delayed_s = reading.path_s("sync_communication")
    lost_s = min(reading.path_s("sync"), reading.idle_limit_s) + delayed_s
    if syncs is None or reading.share(lost_s) < SYNC_MIN_SHARE:
        return None
    least_s, most_s = reading.saved_s("sync", lost_s)
    sites = sorted((s for s in syncs.sites if s.idle_after_s), key=lambda site: -(site.idle_after_s or 0.0))
    costliest = at = ""
    if sites:
        site, idle_s = sites[0].site, sites[0].idle_after_s or 0.0
        costliest = (
            f"{place(sites[0].function, site)} costs most ({sites[0].n} x {sites[0].call}, {duration(idle_s)} idle in "
            "the trace); "
        )
        at = f" at {site}" if ":" in site and "::" not in site else ""
    n = syncs.n + syncs.blocking_copy_n
    return reading.finding(
        summary=(
            f"The device is idle{' or runs only collectives' if delayed_s else ''} "
            f"{percent(reading.share(lost_s))} of the time because the host waits for its results and then launches "
            "kernels late. "
            f"{costliest}{reading.per_step(n, 'such wait')}."
        ),
        evidence=(
            reading.evidence("device idle after the host waited", lost_s - delayed_s, SYNC_MIN_SHARE),
            reading.evidence("device running only collectives while the host waited", delayed_s) if delayed_s else None,
            *(
                fact(f"idle after {place(s.function, s.site)} ({s.call})", s.idle_after_s or 0.0, "s", n=s.n)
                for s in sites[:3]
            ),
            fact("host wait in these calls", syncs.wait_s + syncs.blocking_copy_wait_s, "s", n=n),
            fact("calls of aten::item", syncs.item_n, "count"),
        ),
        prescriptions=_prescription(at),
        low_s=least_s,
        high_s=most_s,
        basis="at most the device's idle time; no gain if another wait follows",
    )
