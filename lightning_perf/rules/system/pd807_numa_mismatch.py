"""PD807: the training runs on cores far from its device."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.machine_signals import device_telemetry_of, host_of, told
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.signals import phase_s, steady_of
from lightning_perf.rules.wording import percent

MIN_FAR_FRACTION = 0.50
# Between sockets a copy from host memory reaches about three quarters of the near rate.
MAX_TRANSFER_GAIN = 0.25

DOCS = """\
## What it measures
The NUMA node of the device's slot against the nodes of the cores that the process may use, and how often the training
thread ran on another one.

## Why it costs
Copies and launches from the far side cross the link between the sockets, which is slower and shared.

## Example
```bash
taskset -c 0-15 python train.py  # the device is attached to the second socket
```

## Prescription
`numactl`, or the binding of the job scheduler.

## When it is wrong
Trainings that copy little gain little.

## Sources
The kernel's `numa_node` of PCI devices; NVIDIA's advice on CPU affinity. What it gains differs from machine to
machine: hence the low confidence.
"""


def check(session: Session) -> Finding | None:
    """Compare the node of the device with the nodes of the process."""
    steady = steady_of(session)
    device = device_telemetry_of(session)
    host = host_of(session)
    node, nodes = device.numa_node, host.process_numa_nodes
    if node is None or not nodes:
        raise Skip("NUMA nodes are not known, or there is only one")
    far = 1.0 if node not in nodes else host.off_device_node_fraction
    if far is None or far < MIN_FAR_FRACTION:
        return None
    return timed_finding(
        steady,
        summary=(
            f"{device.device} is attached to NUMA node {node}, but training ran on other nodes {percent(far)} of the "
            "time" + (f" (it may only use node {', '.join(map(str, nodes))})." if node not in nodes else ".")
        ),
        evidence=(
            fact("NUMA node of the device", node),
            fact("NUMA nodes of the process", ", ".join(map(str, nodes))),
            *told("time on another node", far, "fraction", MIN_FAR_FRACTION),
        ),
        prescriptions=(
            fix(
                f"bind the training to NUMA node {node}",
                "one line",
                code=f"numactl --cpunodebind={node} --membind={node} python train.py",
            ),
        ),
        claims={"transfer": MAX_TRANSFER_GAIN * far * phase_s(steady, "transfer")},
        low_s=0.0,
        basis="assumed: at most copies a third faster",
        confidence="low",
    )


RULE = Rule(code="PD807", name="numa-mismatch", category="system", docs=DOCS, check=check)
