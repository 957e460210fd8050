"""When a treatment applies to the training that a session is of, and with which value."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lightning_perf.records import (
    Collections,
    Device,
    Finding,
    LoaderSettings,
    Machine,
    ModelSettings,
    OptimizerSettings,
    Prescription,
    Session,
    Settings,
    TorchSettings,
    TrainerSettings,
)
from lightning_perf.treatments.specs import all_treatments, find

from .test_specs import SESSION


def session(
    trainer: dict[str, Any] | None = None,
    loader: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    torch: dict[str, Any] | None = None,
    machine: dict[str, Any] | None = None,
    prescription: Prescription | None = None,
    thresholds: tuple[int, ...] = (),
    world_size: int = 1,
) -> Session:
    plain = {"stage": "train", "index": 0, "class_name": "torch.utils.data.DataLoader", "is_plain": True,
             "num_workers": 2, "prefetch_factor": 2, "persistent_workers": False, "pin_memory": False, "batch_size": 8,
             "is_iterable": False}  # fmt: skip
    gpu = {"accelerator": "cuda", "precision": "32-true", "strategy": "DDPStrategy", "progress_bar": "TQDMProgressBar",
           "progress_bar_refresh_rate": 1, "log_every_n_steps": 1, "accumulate_grad_batches": 1,
           "is_anomaly_detection_on": True, "find_unused_parameters": True, "profiler": "SimpleProfiler"}  # fmt: skip
    findings = ()
    if prescription is not None:
        findings = (
            Finding(code="PD000", name="", category="data", severity="high", summary="", evidence=(),
                    prescriptions=(prescription,)),
        )  # fmt: skip
    return msgspec.structs.replace(
        SESSION,
        run=msgspec.structs.replace(SESSION.run, world_size=world_size),
        machine=Machine(os="", python="", usable_cores=8.0, **(machine or {})),
        settings=Settings(
            trainer=TrainerSettings(**{**gpu, **(trainer or {})}),
            loaders=(LoaderSettings(**{**plain, **(loader or {})}),),
            model=ModelSettings(class_name="Net", **{"layers": {"Conv2d": 3}, **(model or {})}),
            torch=TorchSettings(**{"n_threads": 1, **(torch or {})}),
        ),
        findings=findings,
        collections=Collections(span_s=1.0, generations=(), automatic_by_phase_s={}, thresholds=thresholds),
    )


@pytest.mark.parametrize("treatment", all_treatments(), ids=lambda treatment: treatment.id)
def test_each_treatment_applies_when_nothing_prevents_it(treatment: Any) -> None:
    needed: dict[str, dict[str, Any]] = {
        "flush-denormal": {"trainer": {"accelerator": "cpu"}},
        "bare-loop": {"trainer": {"strategy": "SingleDeviceStrategy"}},
        "fsdp": {"world_size": 2},
        "precision-32": {"trainer": {"precision": "bf16-mixed"}},
        "fsdp-checkpointing": {"trainer": {"strategy": "FSDPStrategy"}},
    }
    assert treatment.applies_to(session(**needed.get(treatment.id, {}))) is None


def test_ddp_flag_may_be_changed_when_its_value_is_not_known() -> None:
    assert find("ddp-find-unused-off").applies_to(session({"find_unused_parameters": None})) is None


SLOW = Device(index=0, name="Tesla V100", kind="cuda", has_fast_bf16=False, has_fast_fp16=True)
FUSED = OptimizerSettings(class_name="Adam", implementation="fused", n_tensors=1, n_elements=1)
RPROP = OptimizerSettings(class_name="Rprop", implementation="foreach", n_tensors=1, n_elements=1, supports_fused=False)


@pytest.mark.parametrize(
    ("treatment", "changes", "says"),
    [
        ("loader-workers", {"loader": {"is_plain": False, "class_name": "my.Loader"}}, "my.Loader"),
        ("loader-workers", {"loader": {"is_iterable": True}}, "IterableDataset"),
        ("loader-workers", {"loader": {"stage": "val"}}, "not seen"),
        ("loader-persistent", {"loader": {"num_workers": 0}}, "loader-workers comes first"),
        ("loader-persistent", {"loader": {"persistent_workers": True}}, "already"),
        ("loader-prefetch", {"loader": {"num_workers": 0}}, "loader-workers comes first"),
        ("loader-prefetch", {"loader": {"prefetch_factor": 4}}, "already"),
        ("loader-pin-memory", {"loader": {"pin_memory": True}}, "already"),
        ("loader-pin-memory", {"trainer": {"accelerator": "cpu"}}, "nothing to copy to"),
        ("batch-size", {"loader": {"batch_size": None}}, "batch sampler"),
        ("checkpointing-batch", {"loader": {"batch_size": None}}, "batch sampler"),
        ("precision-bf16", {"trainer": {"precision": "bf16-mixed"}}, "not 32-true"),
        ("precision-bf16", {"machine": {"devices": (SLOW,)}}, "Tesla V100"),
        ("precision-bf16", {"trainer": {"gradient_clip_val": 1.0}, "model": {"optimizers": (FUSED,)}}, "clip"),
        ("precision-bf16", {"model": {"clips_gradients": True, "optimizers": (FUSED,)}}, "clip"),
        ("precision-bf16-true", {"trainer": {"precision": "16-mixed"}}, "not 32-true or bf16-mixed"),
        ("precision-32", {"trainer": {"precision": "32-true"}}, "not 16-mixed or bf16-mixed"),
        ("precision-bf16-true", {"machine": {"devices": (SLOW,)}}, "Tesla V100"),
        ("precision-fp16", {"trainer": {"accelerator": "cpu"}}, "CPU"),
        ("matmul-precision-high", {"trainer": {"accelerator": "cpu"}}, "TF32"),
        ("matmul-precision-high", {"torch": {"float32_matmul_precision": "high"}}, "already"),
        ("cudnn-benchmark", {"trainer": {"is_deterministic": True}}, "deterministic"),
        ("cudnn-benchmark", {"trainer": {"accelerator": "cpu"}}, "cuDNN"),
        ("channels-last", {"model": {"layers": {"Linear": 3}}}, "no convolutions"),
        ("compile", {"model": {"is_compiled": True}}, "already"),
        ("compile-regions", {"model": {"is_compiled": True}}, "already"),
        ("fused-attention", {"model": {"is_compiled": True}}, "compile"),
        ("fused-optimizer", {"model": {"optimizers": (FUSED,)}}, "already"),
        ("fused-optimizer", {"model": {"optimizers": (RPROP,)}}, "Rprop"),
        ("fused-optimizer", {"trainer": {"precision": "16-mixed", "gradient_clip_val": 1.0}}, "clipping"),
        ("fused-optimizer", {"trainer": {"precision": "bf16-mixed", "gradient_clip_val": 1.0}}, "clipping"),
        ("fused-optimizer", {"trainer": {"precision": "bf16-mixed"}, "model": {"clips_gradients": True}}, "clipping"),
        ("accumulate", {"trainer": {"is_automatic_optimization": False}}, "manual"),
        ("accumulate", {"trainer": {"callbacks": ("GradientAccumulationScheduler",)}}, "refuses"),
        ("accumulate", {"trainer": {"accumulate_grad_batches": 4}}, "already"),
        ("log-every-n", {"trainer": {"log_every_n_steps": 50}}, "already"),
        ("log-every-n", {"trainer": {"log_every_n_steps": 0}}, "nothing to the loggers"),
        ("progress-refresh", {"trainer": {"progress_bar": None}}, "no progress bar"),
        ("progress-refresh", {"trainer": {"progress_bar_refresh_rate": None}}, "by time"),
        ("progress-refresh", {"trainer": {"progress_bar_refresh_rate": 20}}, "already"),
        ("prog-bar-off", {"trainer": {"prog_bar_metrics": 0}}, "no metric"),
        ("anomaly-off", {"trainer": {"is_anomaly_detection_on": False}}, "off already"),
        ("profiler-off", {"trainer": {"profiler": None}}, "no profiler"),
        ("deterministic-off", {"torch": {"is_deterministic": False}}, "off already"),
        ("async-checkpoint", {"machine": {"versions": {"lightning": "2.5.3"}}}, "before Lightning 2.5.4"),
        (
            "async-checkpoint",
            {"trainer": {"package": "pytorch_lightning"}, "machine": {"versions": {"pytorch-lightning": "2.4.0"}}},
            "before Lightning 2.5.4",
        ),
        ("val-less-often", {"trainer": {"limit_val_batches": 0}}, "no validation"),
        ("val-less-often", {"trainer": {"check_val_every_n_epoch": 2}}, "already"),
        ("inference-mode", {"trainer": {"limit_val_batches": 0}}, "no validation"),
        ("inference-mode", {"trainer": {"is_inference_mode": True}}, "on already"),
        ("inference-mode", {"trainer": {"strategy": "FSDPStrategy"}}, "FSDPStrategy"),
        ("limit-val-batches", {"trainer": {"limit_val_batches": 0}}, "no validation"),
        ("limit-val-batches", {"trainer": {"limit_val_batches": 0.5}}, "0.5 already"),
        ("limit-val-batches", {"trainer": {"limit_val_batches": 10}}, "10 already"),
        ("limit-val-batches", {"trainer": {"limit_val_batches": 1}}, "1 already"),
        ("ddp-static-graph", {"trainer": {"strategy": "SingleDeviceStrategy"}}, "not DDP"),
        ("ddp-bucket-view", {"trainer": {"gradient_as_bucket_view": True}}, "already"),
        ("ddp-find-unused-off", {"trainer": {"find_unused_parameters": False}}, "already"),
        ("fsdp", {"trainer": {"strategy": "FSDPStrategy"}}, "FSDPStrategy, not DDP"),
        ("fsdp", {"trainer": {"strategy": "DDPStrategy"}}, "one rank"),
        ("fsdp", {"trainer": {"strategy": "DDPStrategy", "accelerator": "cpu"}, "world_size": 2}, "needs GPUs"),
        ("fsdp", {"trainer": {"strategy": "DDPStrategy", "gradient_clip_val": 1.0}, "world_size": 2}, "by norm"),
        ("fsdp-checkpointing", {"trainer": {"strategy": "DDPStrategy"}}, "not FSDP"),
        ("expandable-segments", {"trainer": {"accelerator": "cpu"}}, "no such allocator"),
        ("threads", {"torch": {"n_threads": 8}}, "already"),
        ("gc-freeze", {"thresholds": (70_000, 10, 10)}, "70000 already"),
        ("gc-freeze", {"thresholds": (0, 10, 10)}, "off already"),
        ("flush-denormal", {}, "cuda"),
    ],
)
def test_reason_is_given_when_it_does_not_apply(treatment: str, changes: dict[str, Any], says: str) -> None:
    reason = find(treatment).applies_to(session(**changes))
    assert reason is not None
    assert says in reason


@pytest.mark.parametrize(
    ("treatment", "written", "value"),
    [
        ("loader-workers", {"loader_args": {"num_workers": 5}}, (5, None, False)),
        ("loader-workers", {"loader_args": {"num_workers": 0, "persistent_workers": False}}, (0, None, False)),
        ("loader-workers", {"loader_args": {"num_workers": 6, "prefetch_factor": 8, "pin_memory": True}}, (6, 8, True)),
        ("loader-prefetch", {"loader_args": {"prefetch_factor": 16}}, 16),
        ("log-every-n", {"trainer_flags": {"log_every_n_steps": 100}}, 100),
        ("accumulate", {"trainer_flags": {"accumulate_grad_batches": 8}}, 8),
        ("val-less-often", {"trainer_flags": {"check_val_every_n_epoch": 5}}, "5"),
        ("val-less-often", {"trainer_flags": {"val_check_interval": 1.0}}, "1.0"),
        ("val-less-often", {"trainer_flags": {"val_check_interval": 300}}, "300b"),
        ("val-less-often", {"trainer_flags": {"val_check_interval": 300, "check_val_every_n_epoch": None}}, "300b"),
        ("limit-val-batches", {"value": "0.1"}, "0.1"),
        ("threads", {"value": 3}, 3),
        ("gc-freeze", {"value": 200_000}, 200_000),
        ("progress-refresh", {"value": 37}, 37),
        ("compile", {"value": "reduce-overhead"}, "reduce-overhead"),
    ],
)
def test_value_is_the_recommended_one_when_a_finding_gives_it(
    treatment: str, written: dict[str, Any], value: Any
) -> None:
    prescription = Prescription(treatment=treatment, summary="", safety="exact", effort="one line", **written)
    assert find(treatment).default_value(session(prescription=prescription)) == value


def test_bf16_true_replaces_mixed_precision_and_clips_what_is_fused() -> None:
    changes = {"trainer": {"precision": "bf16-mixed", "gradient_clip_val": 1.0}, "model": {"optimizers": (FUSED,)}}
    assert find("precision-bf16-true").applies_to(session(**changes)) is None


def test_graphs_are_not_asked_for_when_the_training_runs_on_a_cpu() -> None:
    prescription = Prescription(
        treatment="compile", summary="", safety="numerics", effort="minutes", value="reduce-overhead"
    )
    assert find("compile").default_value(session({"accelerator": "cpu"}, prescription=prescription)) == "default"


def test_segments_are_those_of_the_device() -> None:
    amd = {"devices": (Device(index=0, name="MI300X", kind="cuda"),), "versions": {"hip": "6.2"}}
    assert find("expandable-segments").default_value(session(machine=amd)) == "rocm"
    assert list(find("expandable-segments").environment("rocm")) == ["PYTORCH_HIP_ALLOC_CONF"]
