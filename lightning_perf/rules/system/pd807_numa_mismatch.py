"""PD807: training runs on cores of another NUMA node than its device."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.machine_signals import device_telemetry_of, host_telemetry_of
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import phase_s, steady_of
from lightning_perf.rules.thresholds import FAR_NODE_MAX_GAIN, FAR_NODE_MIN_FRACTION
from lightning_perf.rules.wording import percent


@rule("PD807", "numa-mismatch")
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    device = device_telemetry_of(session)
    host = host_telemetry_of(session)
    node, nodes = device.numa_node, host.process_numa_nodes
    if node is None or not nodes:
        raise Skip("NUMA nodes are not known, or there is only one")
    far = 1.0 if node not in nodes else host.off_device_node_fraction
    if far is None or far < FAR_NODE_MIN_FRACTION:
        return None
    return timed_finding(
        steady,
        summary=(
            f"{device.device} is attached to NUMA node {node}, but training ran on other nodes {percent(far)} of the "
            "time" + (f" (allowed nodes: {', '.join(map(str, nodes))})." if node not in nodes else ".")
        ),
        evidence=(
            fact("NUMA node of the device", node),
            fact("NUMA nodes of the process", ", ".join(map(str, nodes))),
            fact("time on another node", far, "fraction", FAR_NODE_MIN_FRACTION),
        ),
        prescriptions=fix(
            f"bind the training to NUMA node {node}",
            "one line",
            code=f"numactl --cpunodebind={node} --membind={node} python train.py",
        ),
        claims={"transfer": FAR_NODE_MAX_GAIN * far * phase_s(steady, "transfer")},
        basis="assumed: copies at most a third faster",
        confidence="low",
        method="modeled",
    )
