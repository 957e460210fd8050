"""PD606: single steps that take several times the median take a share of the time."""

from lightning_perf.records import Finding, Outliers, Session
from lightning_perf.rules.findings import fact, fix, optional_fact, timed_finding
from lightning_perf.rules.machine_signals import sampled_host
from lightning_perf.rules.rule import Skip, required, rule
from lightning_perf.rules.signals import COMPUTE_PHASES, steady_of
from lightning_perf.rules.thresholds import COMMON_LINE_MIN_SHARE, LINES_SHOWN, LOW_SHARE, MANY, OUTLIER_MIN_OWN_PART
from lightning_perf.rules.user_lines import RARER_COLLECTIONS, slow_lines_of
from lightning_perf.rules.wording import duration, number_of, percent, place_of


@rule("PD606", "step-outliers", yields_its_time=True)
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    outliers = required(steady.outliers, "fewer than 20 steps: too few to find outliers")
    if outliers.share < LOW_SHARE or outliers.n == 0:
        return None
    if steady.device is not None and outliers.threshold_s < steady.device.step_s.p50:
        raise Skip("slow steps of the host take no longer than the device's: at first, the host ran ahead of it")
    phase = max(sorted(outliers.excess_by_phase_s), key=lambda p: outliers.excess_by_phase_s[p], default="other")
    if phase == "optimizer" and phase in steady.phases and steady.phases[phase].p50_s == 0.0:
        return None  # it runs in few steps: gradients are accumulated in the others
    worst = outliers.worst[0] if outliers.worst else None
    queueing = _queueing_share(session)
    # Waiting for a core is caused by other programs. All of it is attributed to the slow steps.
    own = max(0.0, 1.0 - queueing / outliers.share)
    cause, advice, common = _in_common(session, phase, outliers)
    if own < OUTLIER_MIN_OWN_PART:
        cause = f" The training thread waited {percent(queueing)} of its time for a core."
        advice, common = "stop other programs on these cores, or use fewer threads than cores", 0.0
    claims = {phase: own * seconds for phase, seconds in outliers.excess_by_phase_s.items()}
    return timed_finding(
        steady,
        summary=(
            f"{number_of(outliers.n, 'slow step')} cost {percent(outliers.share)} of training time: each took more "
            f"than {duration(outliers.threshold_s)} (three times the median), mostly in {phase.replace('_', ' ')}."
            f"{cause}"
        ),
        evidence=(
            fact("extra time of slow steps, share of the time", outliers.share, "fraction", LOW_SHARE, outliers.n),
            fact("threshold for slow steps", outliers.threshold_s, "s"),
            optional_fact("training thread waiting for a core, share of its time", queueing or None, "fraction"),
            fact(f"slowest: step {worst.step}", worst.duration_s, "s") if worst else None,
        ),
        prescriptions=fix(advice, "hours", treatment="gc-freeze" if advice == RARER_COLLECTIONS else ""),
        claims=claims,
        low_s=(1 - 1 / MANY) * common * sum(claims.values()),
        basis=(
            "at least most of this line's time, by stack samples; at most all time above the median step"
            if common
            else "at most the time above the median step, without waiting for a core"
        ),
        confidence="medium",
    )


def _in_common(session: Session, phase: str, outliers: Outliers) -> tuple[str, str, float]:
    """Return the common cause of slow steps as a sentence, the advice, and the least share of their time it takes."""
    worst = sorted(one.step for one in outliers.worst[:LINES_SHOWN])
    these = f"{'step' if len(worst) == 1 else 'steps'} {', '.join(map(str, worst))}" if worst else "slow steps"
    unknown = f"compare the batches of {these} with others: size, length, and what is computed only for them"
    if phase not in COMPUTE_PHASES:
        unknown = f"find what runs in {these} only"
    if phase == "data_wait":
        return "", "avoid samples that are much slower than the others, or prefetch more batches", 0.0
    if session.host_profile is None:
        return " Their common cause is unknown: no stack was sampled.", unknown, 0.0
    found = slow_lines_of(session)
    if not found or found[0][1] < COMMON_LINE_MIN_SHARE:
        why = "no stack sample fell into one" if not found else "they are slow in different lines or in operators"
        return f" Their common cause is unknown: {why}.", unknown, 0.0
    line, share, least = found[0]
    if line is None:
        text = f" {percent(share)} of their extra time is automatic garbage collection."
        return text, RARER_COLLECTIONS, least
    where = place_of(line)
    text = f" {percent(share)} of their extra time is spent in {where}{f', in {line.call}' if line.call else ''}."
    return text, f"run {where} in every tenth of these steps, or in the background", least


def _queueing_share(session: Session) -> float:
    """Return the share of its time that the training thread waited for a core; 0 if not known.

    This is its time in the kernel's run queue, plus CPU steal in a virtual machine, during which the kernel counts the
    thread as running.
    """
    host = sampled_host(session)
    if host is None:
        return 0.0
    stolen = host.steal_fraction.mean if host.steal_fraction is not None else 0.0
    busy = host.cpu_busy_fraction.mean if host.cpu_busy_fraction is not None else 1.0
    # The training thread alone uses one core.
    stolen_when_busy = stolen / max(busy, 1 / session.machine.usable_cores)
    return min(1.0, (host.process_queueing_fraction or 0.0) + stolen_when_busy)
