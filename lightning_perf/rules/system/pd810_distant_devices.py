"""PD810: devices of one node communicate across NUMA nodes, without NVLink."""

from collections.abc import Sequence

from lightning_perf.records import DeviceLink, Finding, Session, StageTimes
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.machine_signals import device_telemetry_of
from lightning_perf.rules.rank_signals import exposed_s_of, ranks_of
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import steady_of
from lightning_perf.rules.thresholds import COMMUNICATION_MIN_SHARE, FAR_LEVEL
from lightning_perf.rules.trace_reading import complete_reading_of
from lightning_perf.rules.wording import percent

_FIXES = (
    fix(
        "use as many devices of one NUMA node, or with NVLink between them; `nvidia-smi topo -m` shows which these are",
        "one line",
        code="Trainer(..., devices=[0, 1])  # not SYS between them in `nvidia-smi topo -m`",
    ),
    fix(
        "if all devices are needed: start each rank on the NUMA node of its device (the scheduler's GPU binding)",
        "minutes",
    ),
    fix(
        "let NCCL read the memory of other devices across NUMA nodes, if the machine supports it",
        "one line",
        code="NCCL_P2P_LEVEL=SYS python train.py",
    ),
)


@rule("PD810", "distant-devices")
def check(session: Session) -> Finding | None:
    """Group devices by NVLink and NUMA node; several groups cost time if communication is exposed."""
    device = device_telemetry_of(session)
    missing = f"telemetry.devices.{device.device}.links"
    if device.links is None:
        is_alone = session.machine.local_world_size == 1
        unknown = "one rank on this node" if is_alone else "how the devices of this node are connected is not known"
        raise Skip(session.missing.get(missing, unknown))
    groups = _groups(device.links)
    far = [link for link in device.links if link.ancestor_level >= FAR_LEVEL and not link.has_nvlink]
    if len(groups) < 2 or not far:
        return None
    if any(link.has_nvlink is None for link in far):
        raise Skip(session.missing.get(f"{missing}.has_nvlink", "the driver does not report which devices have NVLink"))
    span, share, claims, basis = _exposed(session)
    if share < COMMUNICATION_MIN_SHARE:
        return None
    return timed_finding(
        span,
        summary=(
            f"The devices {' | '.join(', '.join(group) for group in groups)} communicate across NUMA nodes, without "
            f"NVLink, and {percent(share)} of the time is exposed communication."
        ),
        evidence=(
            fact("exposed communication", share, "fraction", COMMUNICATION_MIN_SHARE),
            fact("pairs without NVLink or a common NUMA node", len(far), "count", n=len(device.links)),
            fact("level of their common ancestor (NVML)", max(link.ancestor_level for link in far), "", FAR_LEVEL),
        ),
        prescriptions=_FIXES,
        claims=claims,
        basis=f"assumed: at most the exposed communication ({basis})",
        confidence="low",
        method="modeled",
    )


def _groups(links: Sequence[DeviceLink]) -> list[tuple[str, ...]]:
    """Return the devices in groups that communicate without crossing NUMA nodes, directly or through each other."""
    groups = {name: frozenset((name,)) for link in links for name in link.devices}
    for link in links:
        if link.has_nvlink or link.ancestor_level < FAR_LEVEL:
            both = groups[link.devices[0]] | groups[link.devices[1]]
            groups.update(dict.fromkeys(both, both))
    return sorted({tuple(sorted(group)) for group in groups.values()})


def _exposed(session: Session) -> tuple[StageTimes, float, dict[str, float], str]:
    """Return the span of time, the share of exposed communication, its seconds by phase, and how they were obtained.

    Without a trace, the rank that waits least is assumed to wait for the exchange only.
    """
    try:
        reading = complete_reading_of(session)
    except Skip:
        steady, summaries = steady_of(session), ranks_of(session).summaries
        waits = [one.waiting_s / one.step_s for one in summaries if one.waiting_s is not None and one.step_s > 0]
        if len(waits) < len(summaries):
            raise Skip("communication was neither traced nor measured on all ranks") from None
        share = max(0.0, min(waits))
        return steady, share, {"backward": share * steady.span_s}, "the least wait of any rank"
    exposed_s = exposed_s_of(session, reading)
    return reading.span, reading.share(exposed_s), reading.claims(exposed_s), reading.basis
