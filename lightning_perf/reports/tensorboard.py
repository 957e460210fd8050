"""Scalars of a session for any logger; its text, and the session itself, for TensorBoard."""

import math
from typing import Any

import msgspec

from lightning_perf.records import Arm, Memory, Session, Spread, StageTimes, Telemetry, Trial

from .render.markdown import to_markdown

TEXT_TAG = "perf/diagnosis"
PLUGIN_NAME = "perfdoctor"
"""The tab that reads what `SessionWriter` writes."""

EVENT_BYTES = 8 * 2**20
"""Up to this size of an event file, each report writes the session; afterwards, fewer and fewer do."""

_GIB = 1024**3


def scalars(session: Session) -> dict[str, float]:
    """Return the figures of a session by tag, all finite; what was not measured has no tag.

    ``perf/step_ms/p50`` (also p95, p99), ``perf/samples_per_s``, ``perf/tokens_per_s`` (padding included),
    ``perf/share/<phase>`` (0…1 of the steady span),
    ``perf/starved_share`` (the device's clock), ``perf/overhead_us`` (per step) and ``perf/overhead_share``,
    ``perf/memory_gib/<device>`` (peak allocated), ``perf/memory_reserved_gib/<device>`` and ``perf/memory_gib/host``
    (peaks; the host's is its resident memory), ``perf/gpu_util/<device>`` (0…1) with ``gpu_power_w``,
    ``gpu_temperature_c`` and ``gpu_clock_mhz``, ``perf/cpu_busy``, ``perf/iowait`` (0…1), ``perf/energy_j``.
    Tags of validation inside fit begin with ``perf/validation/``, those of other stages with ``perf/<stage>/``.
    """
    figures: dict[str, float | None] = {}
    if session.steady is not None:
        root = "perf" if session.run.stage == "fit" else f"perf/{session.run.stage}"
        figures.update(_stage_scalars(root, session.steady))
    if session.validation is not None:
        figures.update(_stage_scalars("perf/validation", session.validation))
    figures.update(_memory_scalars(session.memory))
    if session.telemetry is not None:
        figures.update(_telemetry_scalars(session.telemetry))
    if session.overhead is not None:
        figures["perf/overhead_us"] = session.overhead.per_step_us
        figures["perf/overhead_share"] = session.overhead.share
    return {tag: float(value) for tag, value in figures.items() if value is not None and math.isfinite(value)}


def write_scalars(writer: Any, session: Session, step: int) -> None:
    """Write ``scalars(session)`` at ``step``; ``writer`` is TensorBoard's ``SummaryWriter`` here and below."""
    for tag, value in scalars(session).items():
        writer.add_scalar(tag, value, step)


def write_text(writer: Any, session: Session, step: int) -> None:
    """Write the diagnosis as Markdown at ``step``, under ``perf/diagnosis``."""
    writer.add_text(TEXT_TAG, to_markdown(session), step)


class SessionWriter:
    """Writer of sessions as summaries of the PERFDOCTOR tab, which then needs only the event file of a run.

    Each summary holds the whole session, and event files only grow. So after ``EVENT_BYTES``, the number of reports
    doubles from one summary to the next. The session of a run that ended is always written.

    Attributes:
        step: Of the last report; None before the first.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self._n_reports = 0
        self._next = 0
        self._n_bytes = 0

    def write(self, writer: Any, session: Session, step: int) -> bool:
        """Write the session at ``step`` if it is due; return whether it was written.

        Writers other than torch's ``SummaryWriter`` do not give access to their file and are skipped.
        """
        file_writer = getattr(writer, "_get_file_writer", None)
        if file_writer is None:
            return False
        self.step = step
        self._n_reports += 1
        is_running = session.run.status == "running"
        if is_running and self._n_bytes > EVENT_BYTES and self._n_reports < self._next:
            return False
        from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_TENSOR, Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING

        content = msgspec.json.encode(session)
        about = SummaryMetadata(
            plugin_data=SummaryMetadata.PluginData(plugin_name=PLUGIN_NAME), data_class=DATA_CLASS_TENSOR
        )
        tensor = TensorProto(dtype=DT_STRING, string_val=[content])
        value = Summary.Value(tag=f"{PLUGIN_NAME}/{session.run.id}", metadata=about, tensor=tensor)
        file_writer().add_summary(Summary(value=[value]), step)
        self._n_bytes += len(content)
        self._next = 2 * self._n_reports
        return True


def write_trial(writer: Any, trial: Trial) -> int:
    """Write each measured arm as a row of TensorBoard's HPARAMS tab; return the number of arms.

    Each treatment is a column with its value, ``on`` if it has none, or ``off``. Figures are ``perf/step_ms``,
    ``perf/speedup`` (the baseline has 1) and ``perf/peak_gib``.
    """
    known = sorted({_named(text)[0] for arm in trial.arms for text in arm.treatments})
    measured = [arm for arm in trial.arms if arm.step_s is not None]
    for arm in measured:
        given = dict(map(_named, arm.treatments))
        writer.add_hparams(
            {name: given.get(name, "off") for name in known}, _arm_figures(arm), run_name=_run_name(arm.id)
        )
    return len(measured)


def _named(treatment: str) -> tuple[str, str]:
    name, _, value = treatment.partition("=")
    return name, value or "on"


def _run_name(arm: str) -> str:
    """Return a name that is valid for a folder on every system."""
    return "".join(sign if sign.isalnum() or sign in "+-_=." else "_" for sign in arm)[:150]


def _arm_figures(arm: Arm) -> dict[str, float]:
    figures = {"perf/step_ms": arm.step_s.value * 1e3 if arm.step_s is not None else math.nan}
    figures["perf/speedup"] = arm.speedup.value if arm.speedup is not None else 1.0 if not arm.treatments else math.nan
    if arm.peak_bytes is not None:
        figures["perf/peak_gib"] = arm.peak_bytes / _GIB
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def _stage_scalars(root: str, stage: StageTimes) -> dict[str, float | None]:
    figures: dict[str, float | None] = {
        f"{root}/step_ms/p50": stage.step_s.p50 * 1e3,
        f"{root}/step_ms/p95": stage.step_s.p95 * 1e3,
        f"{root}/step_ms/p99": stage.step_s.p99 * 1e3,
        f"{root}/samples_per_s": stage.samples_per_s,
        f"{root}/tokens_per_s": stage.tokens_per_s,
        f"{root}/starved_share": stage.device.starved_share if stage.device is not None else None,
    }
    figures.update({f"{root}/share/{name}": phase.share for name, phase in stage.phases.items()})
    return figures


def _memory_scalars(memory: Memory) -> dict[str, float | None]:
    figures: dict[str, float | None] = {}
    for device in memory.devices:
        name = device.device.replace(":", "_")
        figures[f"perf/memory_gib/{name}"] = device.peak_allocated_bytes / _GIB
        figures[f"perf/memory_reserved_gib/{name}"] = device.peak_reserved_bytes / _GIB
    if memory.host_peak_rss_bytes is not None:
        figures["perf/memory_gib/host"] = memory.host_peak_rss_bytes / _GIB
    return figures


def _telemetry_scalars(telemetry: Telemetry) -> dict[str, float | None]:
    figures: dict[str, float | None] = {}
    for device in telemetry.devices:
        name = device.device.replace(":", "_")
        figures |= {
            f"perf/gpu_util/{name}": _mean(device.utilisation_fraction),
            f"perf/gpu_power_w/{name}": _mean(device.power_w),
            f"perf/gpu_temperature_c/{name}": _mean(device.temperature_c),
            f"perf/gpu_clock_mhz/{name}": _mean(device.sm_clock_mhz),
        }
    if telemetry.host is not None:
        figures["perf/cpu_busy"] = _mean(telemetry.host.cpu_busy_fraction)
        figures["perf/iowait"] = _mean(telemetry.host.iowait_fraction)
    if telemetry.energy is not None:
        figures["perf/energy_j"] = telemetry.energy.metered_j
    return figures


def _mean(spread: Spread | None) -> float | None:
    return None if spread is None else spread.mean
