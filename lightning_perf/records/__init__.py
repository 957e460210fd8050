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
from .loader_probe import HotFunction, HotLine, LoaderProbe, Repeated, WorkerPoint
from .machine import Device, Machine
from .memory import (
    AllocationSite,
    Breakdown,
    DeviceMemory,
    Growth,
    Headroom,
    HostMemory,
    HostPhaseMemory,
    LiveTensor,
    Memory,
    ModuleMemory,
    OutOfMemory,
    PhaseMemory,
    Suspect,
)
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
from .telemetry import (
    Cost,
    DatasetDisk,
    Energy,
    GpuTelemetry,
    HostTelemetry,
    Spread,
    Telemetry,
    TelemetryPoint,
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
from .trial import Arm, ArmRun, ArmVerdict, Interval, LossVerdict, Rung, Trial

__all__ = [
    "CATEGORIES", "PHASES", "SCHEMA_VERSION", "SESSION_FILE", "SEVERITIES", "STEP_PHASES", "AllocationSite",
    "Allocator", "Arm", "ArmRun", "ArmVerdict", "Block", "Breakdown", "CallTime", "CodeSite", "Communication",
    "Confidence", "Convolutions", "Copies", "CopySite", "Cost", "DatasetDisk", "Device", "DeviceActivity",
    "DeviceMemory", "DeviceTimes", "Distribution", "Effort", "Energy", "Epoch", "Evidence", "Fetch", "Finding", "Gain",
    "GpuTelemetry", "Growth", "Headroom", "HostMemory", "HostPhaseMemory", "HostTelemetry", "HotFunction", "HotLine",
    "Idle", "Interval", "KernelTime", "Kernels", "KindTime", "LiveTensor", "LoaderProbe", "LoaderSettings",
    "LoaderWait", "LossVerdict", "Machine", "MaterialisedAttention", "MatrixShape", "Memory", "ModelSettings",
    "ModuleMemory", "NamedTime", "OperatorTime", "OptimizerSettings", "OutOfMemory", "Outliers", "Overhead",
    "ParameterGroup", "PhaseMemory", "PhaseTime", "PhaseWork", "Prescription", "ProbeFailure", "Ranks", "Record",
    "Repeated", "RuleOutcome", "Run", "Rung", "Safety", "Session", "Settings", "Severity", "SlowStep", "Spread",
    "StageTimes", "Startup", "Suspect", "SyncSite", "Syncs", "Telemetry", "TelemetryPoint", "TorchSettings",
    "TraceRecord", "TraceStep", "TrainerSettings", "Trial", "Verdict", "WhatIf", "Window", "WorkerPoint", "load",
]  # fmt: skip
