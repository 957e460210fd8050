"""What was seen and said about a run: immutable records with units in their names, JSON in and out."""

from .base import Record
from .finding import (
    SEVERITIES,
    Confidence,
    Effort,
    Evidence,
    Finding,
    Gain,
    Prescription,
    RuleOutcome,
    Safety,
    Severity,
    Verdict,
)
from .machine import Device, Machine
from .memory import DeviceMemory, Memory
from .session import (
    SCHEMA_VERSION,
    SESSION_FILE,
    Overhead,
    ProbeFailure,
    Run,
    Session,
    Window,
    load,
)
from .settings import (
    LoaderSettings,
    ModelSettings,
    OptimizerSettings,
    ParameterGroup,
    Settings,
    TorchSettings,
    TrainerSettings,
)
from .steps import (
    PHASES,
    STEP_PHASES,
    Block,
    DeviceTimes,
    Distribution,
    Epoch,
    Fetch,
    NamedTime,
    Outliers,
    PhaseTime,
    SlowStep,
    StageTimes,
)
from .trace import (
    CATEGORIES,
    Communication,
    Copies,
    Idle,
    Kernels,
    KernelTime,
    OperatorTime,
    Syncs,
    SyncSite,
    TraceRecord,
    TraceStep,
)

__all__ = [
    "CATEGORIES", "PHASES", "SCHEMA_VERSION", "SESSION_FILE", "SEVERITIES", "STEP_PHASES",
    "Block", "Communication", "Confidence", "Copies", "Device", "DeviceMemory", "DeviceTimes", "Distribution",
    "Effort", "Epoch", "Evidence", "Fetch", "Finding", "Gain", "Idle", "KernelTime", "Kernels", "LoaderSettings",
    "Machine", "Memory", "ModelSettings", "NamedTime", "OperatorTime", "OptimizerSettings", "Outliers", "Overhead",
    "ParameterGroup", "PhaseTime", "Prescription", "ProbeFailure", "Record", "RuleOutcome", "Run", "Safety",
    "Session", "Settings", "Severity", "SlowStep", "StageTimes", "SyncSite", "Syncs", "TorchSettings", "TraceRecord",
    "TraceStep", "TrainerSettings", "Verdict", "Window", "load",
]  # fmt: skip
