"""PD204: results are copied to the host within the step."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.rule import rule
from lightning_perf.rules.thresholds import LOW_SHARE
from lightning_perf.rules.trace_reading import device_reading_of
from lightning_perf.rules.wording import percent, place


@rule("PD204", "device-to-host-in-step")
def check(session: Session) -> Finding | None:
    reading, _ = device_reading_of(session)
    copies = reading.trace.copies
    exposed_s = reading.path_s("device_to_host")
    if copies is None or reading.share(exposed_s) < LOW_SHARE:
        return None
    least_s, most_s = reading.saved_s("device_to_host", exposed_s)
    sites = [site for site in copies.sites if site.direction == "d2h"]
    where = f", most by {place(sites[0].function, sites[0].site)}" if sites else ""
    return reading.finding(
        summary=(
            f"{percent(reading.share(exposed_s))} of the time is exposed copies to the host: "
            f"{reading.per_step(copies.d2h_n, 'copy', 'copies')}{where}."
        ),
        evidence=(
            reading.evidence("copies to the host while no kernel ran", exposed_s, LOW_SHARE),
            fact("copies to the host", copies.d2h_n, "count"),
        ),
        prescriptions=fix(
            "keep results on the device: reduce there, and copy once at the end of the epoch",
            "minutes",
            code="self.total += loss.detach()  # .cpu() once, in on_train_epoch_end",
        ),
        low_s=least_s,
        high_s=most_s,
        basis="at most the copies while no kernel ran",
    )
