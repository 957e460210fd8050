"""Limits of the certain part of a gain: without the saved work, the host would wait for the device or the loader."""

import msgspec

from lightning_perf.records import SEVERITIES, STEP_PHASES, Finding, Session, StageTimes

from .findings import gain_span_s, severity_of_gain
from .rule import Skip
from .signals import is_cpu_run, phase_s
from .thresholds import WAITING_PART
from .trace_reading import device_reading_of, shows_device
from .wording import percent


def within_limits(finding: Finding, session: Session, is_host_time: bool) -> Finding:
    """Return the finding with the certain part of its gain limited to what the device and the loader allow.

    Host code that runs while the device computes saves only time in which the device is idle, and steps do not get
    shorter than workers need to make a batch. The upper end of the gain stays.
    """
    gain, steady = finding.gain, session.steady
    claimed_s = sum(finding.claims.values())
    if gain is None or steady is None or claimed_s <= 0 or not finding.prescriptions:
        return finding
    idle_s = _idle_s(session, steady) if is_host_time and not is_cpu_run(session) else None
    limits = [] if idle_s is None else [idle_s]
    if "data_wait" not in finding.claims and (period_s := _batch_period_s(session, steady)) is not None:
        limits.append(steady.n_span_steps * max(0.0, steady.step_s.mean - period_s))
    if not limits:
        return finding
    in_steps = sum(finding.claims.get(name, 0.0) for name in STEP_PHASES if name != "data_wait") / claimed_s
    span_s = gain_span_s(steady)
    low_s = (1 - 1 / gain.low) * span_s
    most_s = min([in_steps * low_s, *limits]) + (1 - in_steps) * low_s
    if most_s >= low_s:
        return finding
    if idle_s is not None and shows_device(session) and idle_s < WAITING_PART * in_steps * low_s:
        waiting = f" The device is idle for only {percent(idle_s / span_s)} of the time; the rest may be a wait for it."
        finding = msgspec.structs.replace(finding, summary=finding.summary + waiting)
    gain = msgspec.structs.replace(gain, low=1 / (1 - most_s / span_s))
    severity = max(severity_of_gain(gain), finding.severity, key=SEVERITIES.index)
    return msgspec.structs.replace(finding, gain=gain, severity=severity)


def _idle_s(session: Session, steady: StageTimes) -> float:
    """Return the seconds of the steps in which the device has nothing to do, except when it waits for data.

    They are known from a profiler window, or between the steps' work by the device's own clock; 0 without either.
    """
    idle_s, device = 0.0, steady.device
    if device is not None and device.n:
        idle_s = steady.n_span_steps * (steady.step_s.mean - (device.busy_s + device.starved_s) / device.n)
    try:
        reading, _ = device_reading_of(session)
        traced_s = reading.idle_limit_s - reading.path_s("loader")
    except Skip:
        return max(0.0, idle_s)
    return max(0.0, idle_s, reading.share(traced_s) * phase_s(steady, *STEP_PHASES))


def _batch_period_s(session: Session, steady: StageTimes) -> float | None:
    """Return the seconds from one batch of the training loader's workers to the next; None without workers or unknown.

    It is known from the loader probe, or else at best: the time of a batch in one process, divided among the workers.
    """
    loaders = [one for one in session.settings.loaders if one.stage == "train"]
    n_workers = loaders[0].num_workers if len(loaders) == 1 else None
    if session.run.stage != "fit" or not n_workers:
        return None
    probe, fetch = session.loader_probe, steady.fetch
    point = probe.point_at(n_workers) if probe is not None and probe.stage == "train" else None
    if point is not None:
        return point.high_s
    return fetch.in_process_batch_s / n_workers if fetch is not None and fetch.in_process_batch_s else None
