"""PD201: batches are copied to the device from pageable memory."""

from lightning_perf.records import Copies, Finding, Prescription, Session
from lightning_perf.rules.findings import fact, fix, loader_fix
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import loader_stage
from lightning_perf.rules.thresholds import PAGEABLE_MIN_SHARE
from lightning_perf.rules.trace_reading import device_reading_of
from lightning_perf.rules.wording import percent, place


@rule("PD201", "pageable-copies")
def check(session: Session) -> Finding | None:
    reading, _ = device_reading_of(session)
    copies = reading.trace.copies
    if "h2d_pageable_n" in reading.trace.missing:
        raise Skip(reading.trace.missing["h2d_pageable_n"])
    exposed_s = reading.path_s("pageable_copy")
    if copies is None or reading.share(exposed_s) < PAGEABLE_MIN_SHARE:
        return None
    least_s, most_s = reading.saved_s("pageable_copy", exposed_s)
    return reading.finding(
        summary=(
            f"{percent(reading.share(exposed_s))} of the time is exposed copies from pageable memory. "
            f"The trace has {copies.h2d_pageable_n} of them{_where(copies)}."
        ),
        evidence=(
            reading.evidence(
                "copies from pageable memory while no kernel ran, and idle after them", exposed_s, PAGEABLE_MIN_SHARE
            ),
            fact("copies from pageable memory", copies.h2d_pageable_n, "count"),
            fact("time of these copies", copies.h2d_pageable_s, "s", n=copies.h2d_pageable_n),
        ),
        prescriptions=_prescription(session),
        low_s=least_s,
        high_s=most_s,
        basis="at most the copies, if they overlapped with kernels",
    )


def _where(copies: Copies) -> str:
    sites = [site for site in copies.sites if site.is_pageable and site.direction == "h2d"]
    return f", most by {place(sites[0].function, sites[0].site)}" if sites else ""


def _prescription(session: Session) -> Prescription:
    stage = loader_stage(session)
    loaders = [loader for loader in session.settings.loaders if loader.stage == stage]
    if any(loader.pin_memory for loader in loaders):
        return _CREATE_ON_DEVICE
    summary, treatment = f"set pin_memory=True on the {stage} loader", "loader-pin-memory"
    if loaders:
        return loader_fix(loaders[0], summary, treatment, pin_memory=True)
    return fix(summary, "one line", treatment=treatment, code="DataLoader(..., pin_memory=True)")


_CREATE_ON_DEVICE = fix(
    "create these tensors on the device: the loader already pins its batches",
    "minutes",
    code="torch.zeros(n, device=self.device)  # instead of torch.zeros(n).to(self.device)",
)
