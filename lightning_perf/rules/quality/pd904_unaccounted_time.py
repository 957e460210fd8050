"""PD904: much of the time is in no known phase."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, make_finding
from lightning_perf.rules.kernel_signals import launching_s, path_of
from lightning_perf.rules.launch_signals import is_launch_bound, late_place, tiny_operators
from lightning_perf.rules.rule import rule
from lightning_perf.rules.signals import phase_s, share_of, steady_of
from lightning_perf.rules.thresholds import UNACCOUNTED_MAX_SHARE
from lightning_perf.rules.trace_reading import complete_reading_of
from lightning_perf.rules.user_lines import lines_of
from lightning_perf.rules.wording import percent

_LATE = ("between", "launch")
_MEANING = {
    "between": "host time between operators while the device waits",
    "launch": "host time in operators while the device waits",
    "blocked": "while the host waits for the device, which is idle",
    "queue": "while the device is idle although work was launched",
    "edges": "before the first and after the last device event",
}


@rule("PD904", "unaccounted-time")
def check(session: Session) -> Finding | None:
    """Compare the phase ``other``, or the unexplained time of a trace, with the threshold."""
    if session.steady is None and session.windows:
        return _in_a_trace(session)
    steady = steady_of(session)
    # Waits of ranks for one another are named times in this phase.
    named = share_of(one for one in steady.named if one.phase == "other")
    share = phase_s(steady, "other") / steady.span_s - named
    if share <= UNACCOUNTED_MAX_SHARE:
        return None
    line = next(iter(lines_of(session, "other")), None)
    where = f" {line.where} spends {percent(line.seconds / steady.span_s)} of the time{line.doing}." if line else ""
    advice, code = "profile the code that runs between Lightning's hooks", 'Trainer(..., profiler="simple")'
    if line or not session.run.has_trainer:
        advice, code = f"check {line.where}" if line else "profile the loop outside its models and optimizers", ""
    return make_finding(
        severity="info",
        summary=f"{percent(share)} of training time is in no known phase.{where}",
        evidence=fact("share of the time in no known phase", share, "fraction", UNACCOUNTED_MAX_SHARE, steady.n_steps),
        prescriptions=fix(advice, "minutes", code=code),
    )


def _in_a_trace(session: Session) -> Finding | None:
    reading = complete_reading_of(session)
    trace = reading.trace
    is_explained = trace.device is not None and is_launch_bound(reading, launching_s(trace))
    late = "" if trace.device is not None else " while the device waits"  # without a device, nothing waits
    parts = {
        words.removesuffix(late): reading.path_s(cause)
        for cause, words in _MEANING.items()
        if not (is_explained and cause in _LATE)
    }
    if is_explained:
        parts[_MEANING["between"]] = path_of(trace).long_gaps_s
    tiny = tiny_operators(session, reading)
    unexplained_s = sum(parts.values()) - (tiny.saved_s if tiny is not None else 0.0)
    if reading.share(unexplained_s) <= UNACCOUNTED_MAX_SHARE:
        return None
    words, _ = max(parts.items(), key=lambda item: item[1])
    site = late_place(trace)
    where = f", longest at {site}" if site and words not in (_MEANING["queue"], _MEANING["edges"]) else ""
    return make_finding(
        severity="info",
        summary=f"{percent(reading.share(unexplained_s))} of the time is unexplained, mostly {words}{where}.",
        evidence=(
            reading.evidence("unexplained", unexplained_s, UNACCOUNTED_MAX_SHARE),
            *(reading.evidence(words, seconds) for words, seconds in parts.items() if seconds),
        ),
        prescriptions=fix(
            "record the trace with Python stacks, which show the lines that the host runs",
            "minutes",
            code="torch.profiler.profile(..., with_stack=True)",
        ),
    )
