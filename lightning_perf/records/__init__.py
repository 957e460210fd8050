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
    Ranks,
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
    Allocator,
    CallTime,
    CodeSite,
    Communication,
    Convolutions,
    Copies,
    CopySite,
    DeviceActivity,
    Idle,
    Kernels,
    KernelTime,
    KindTime,
    LoaderWait,
    MaterialisedAttention,
    MatrixShape,
    OperatorTime,
    PhaseWork,
    Startup,
    Syncs,
    SyncSite,
    TraceRecord,
    TraceStep,
    WhatIf,
)

__all__ = [
    "CATEGORIES", "PHASES", "SCHEMA_VERSION", "SESSION_FILE", "SEVERITIES", "STEP_PHASES", "Allocator", "Block",
    "CallTime", "CodeSite", "Communication", "Confidence", "Convolutions", "Copies", "CopySite", "Device",
    "DeviceActivity", "DeviceMemory", "DeviceTimes", "Distribution", "Effort", "Epoch", "Evidence", "Fetch",
    "Finding", "Gain", "Idle", "KernelTime", "Kernels", "KindTime", "LoaderSettings", "LoaderWait", "Machine",
    "MaterialisedAttention", "MatrixShape", "Memory", "ModelSettings", "NamedTime", "OperatorTime",
    "OptimizerSettings", "Outliers", "Overhead", "ParameterGroup", "PhaseTime", "PhaseWork", "Prescription",
    "ProbeFailure", "Ranks", "Record", "RuleOutcome", "Run", "Safety", "Session", "Settings", "Severity", "SlowStep",
    "StageTimes", "Startup", "SyncSite", "Syncs", "TorchSettings", "TraceRecord", "TraceStep", "TrainerSettings",
    "Verdict", "WhatIf", "Window", "load",
]  # fmt: skip
