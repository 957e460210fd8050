"""What was seen and said about a run: immutable records with units in their names, JSON in and out."""

from .base import Record
from .collectives import CollectiveTime, ShardTraffic, TraceRank, TraceRanks
from .comparison import (
    Change,
    ComparedRun,
    Comparison,
    Difference,
    FigureChange,
    FindingChange,
    TimeChange,
    TrialChange,
)
from .finding import (
    LINE_METRIC,
    SAFETIES,
    SEVERITIES,
    Confidence,
    Effort,
    Evidence,
    Finding,
    Gain,
    Method,
    Prescription,
    RuleOutcome,
    Safety,
    Severity,
    Verdict,
    costly_line,
)
from .host_calls import (
    AttentionCall,
    CompilerWatch,
    GraphBreak,
    LossScaler,
    Recompile,
    SyncCall,
    SyncCalls,
    TensorLoop,
)
from .host_profile import AskedCollection, Collections, Generation, HostLine, HostPhase, HostProfile
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
from .merge import load_run
from .model_profile import (
    Bound,
    Ceilings,
    DatasheetPeak,
    ModelProfile,
    ModuleProfile,
    OperatorProfile,
    Utilisation,
)
from .ranks import MAX_FOUND, PARTS, RANKS_FOLDER, MissingRank, Ranks, RankSummary, ranks_by_finding, together
from .replay import Hypothesis, Replay, Replayed
from .session import (
    SCHEMA_VERSION,
    SESSION_FILE,
    AppliedTreatment,
    Overhead,
    ProbeFailure,
    Run,
    Session,
    Window,
    from_json,
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
    CriticalPath,
    DeviceActivity,
    Idle,
    Kernels,
    KernelTime,
    KindTime,
    LatePlace,
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
    "CATEGORIES", "LINE_METRIC", "MAX_FOUND", "PARTS", "PHASES", "RANKS_FOLDER", "SAFETIES", "SCHEMA_VERSION",
    "SESSION_FILE", "SEVERITIES", "STEP_PHASES", "AllocationSite", "Allocator", "AppliedTreatment", "Arm", "ArmRun",
    "ArmVerdict", "AskedCollection", "AttentionCall", "Block", "Bound", "Breakdown", "CallTime", "Ceilings", "Change",
    "CodeSite", "Collections", "CollectiveTime", "Communication", "ComparedRun", "Comparison", "CompilerWatch",
    "Confidence", "Convolutions", "Copies", "CopySite", "Cost", "CriticalPath", "DatasetDisk", "DatasheetPeak",
    "Device", "DeviceActivity", "DeviceMemory", "DeviceTimes", "Difference", "Distribution", "Effort", "Energy",
    "Epoch", "Evidence", "Fetch", "FigureChange", "Finding", "FindingChange", "Gain", "Generation", "GpuTelemetry",
    "GraphBreak", "Growth", "Headroom", "HostLine", "HostMemory", "HostPhase", "HostPhaseMemory", "HostProfile",
    "HostTelemetry", "HotFunction", "HotLine", "Hypothesis", "Idle", "Interval", "KernelTime", "Kernels", "KindTime",
    "LatePlace", "LiveTensor", "LoaderProbe", "LoaderSettings", "LoaderWait", "LossScaler", "LossVerdict", "Machine",
    "MaterialisedAttention", "MatrixShape", "Memory", "Method", "MissingRank", "ModelProfile", "ModelSettings",
    "ModuleMemory", "ModuleProfile", "NamedTime", "OperatorProfile", "OperatorTime", "OptimizerSettings", "OutOfMemory",
    "Outliers", "Overhead", "ParameterGroup", "PhaseMemory", "PhaseTime", "PhaseWork", "Prescription", "ProbeFailure",
    "RankSummary", "Ranks", "Recompile", "Record", "Repeated", "Replay", "Replayed", "RuleOutcome", "Run", "Rung",
    "Safety", "Session", "Settings", "Severity", "ShardTraffic", "SlowStep", "Spread", "StageTimes", "Startup",
    "Suspect", "SyncCall", "SyncCalls", "SyncSite", "Syncs", "Telemetry", "TelemetryPoint", "TensorLoop", "TimeChange",
    "TorchSettings", "TraceRank", "TraceRanks", "TraceRecord", "TraceStep", "TrainerSettings", "Trial", "TrialChange",
    "Utilisation", "Verdict", "WhatIf", "Window", "WorkerPoint", "costly_line", "from_json", "load", "load_run",
    "ranks_by_finding",
    "together",
]  # fmt: skip
