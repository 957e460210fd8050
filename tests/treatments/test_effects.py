"""Each treatment has its effect in a real training."""

from __future__ import annotations

import csv
import gc
import os
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from lightning.fabric.strategies.fsdp import _setup_activation_checkpointing
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import FSDPStrategy
from torch import nn

from lightning_perf.errors import TreatmentError
from lightning_perf.seams import Undos
from lightning_perf.treatments.applier import Applier
from lightning_perf.treatments.blocks import repeated_blocks
from lightning_perf.treatments.specs import find, parse, parse_all

from .trainings import N_FEATURES, QUIET, Block, Config, Net, PreTrainedModel, Treat, loader, train


class Convolutions(Net):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList()
        self.conv = nn.Conv2d(3, 8, 3)
        self.formats: list[bool] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        images = x[:, :1, None, None].expand(-1, 3, 6, 6)
        features = self.conv(images.contiguous())
        self.formats.append(features.is_contiguous(memory_format=torch.channels_last))
        return features.mean((1, 2, 3))


@pytest.mark.parametrize(
    ("treatment", "before", "after", "dtype"),
    [
        ("precision-bf16", "32-true", "bf16-mixed", torch.bfloat16),
        ("precision-32", "bf16-mixed", "32-true", torch.float32),
    ],
)
def test_step_has_the_precision_of_the_treatment(treatment: str, before: Any, after: str, dtype: torch.dtype) -> None:
    class Dtype(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            self.seen["dtype"] = y.dtype
            return y

    done = train(treatment, module=Dtype, max_steps=2, precision=before)
    assert done.module.seen == {"dtype": dtype}
    assert done.trainer.precision == after


def test_precision_is_refused_when_a_plugin_decides_it() -> None:
    applier = Applier([parse("precision-bf16")])
    with pytest.raises(TreatmentError, match="MixedPrecision"):
        applier.change_trainer_arguments({"plugins": [MixedPrecision("bf16-mixed", "cpu")]})
    assert applier.change_trainer_arguments({"plugins": None})["precision"] == "bf16-mixed"
    fp16 = Applier([parse("precision-fp16")])
    assert fp16.change_trainer_arguments({"precision": 32})["precision"] == "16-mixed"


def test_weights_batches_and_optimizer_state_are_bf16_until_the_training_ends() -> None:
    def dtypes(trainer: Trainer, module: Any) -> set[torch.dtype]:
        state = list(trainer.optimizers[0].state.values())
        return (
            {p.dtype for p in module.parameters()} | {one["exp_avg"].dtype for one in state} | {module.batches[0].dtype}
        )

    done = train("precision-bf16-true", look=dtypes, gradient_clip_val=1.0)
    assert done.seen == {torch.bfloat16}
    assert done.trainer.precision == "bf16-true"
    assert (
        {p.dtype for p in done.module.parameters()}
        == {p.grad.dtype for p in done.module.parameters()}
        == {torch.float32}
    )
    again = train(module=done.module, max_steps=1)
    assert torch.isfinite(torch.tensor(again.losses)).all()


def test_bf16_true_is_refused_when_weights_are_complex_or_a_plugin_decides() -> None:
    class Complex(Net):
        def __init__(self) -> None:
            super().__init__()
            self.rotation = nn.Parameter(torch.ones(2, dtype=torch.complex64))

    with pytest.raises(TreatmentError, match="imaginary"):
        train("precision-bf16-true", module=Complex)
    with pytest.raises(TreatmentError, match="MixedPrecision"):
        Applier([parse("precision-bf16-true")]).change_trainer_arguments(
            {"plugins": MixedPrecision("bf16-mixed", "cpu")}
        )


@pytest.mark.parametrize(
    ("text", "read", "expected"),
    [
        ("matmul-precision-high=medium", torch.get_float32_matmul_precision, "medium"),
        ("cudnn-benchmark", lambda: torch.backends.cudnn.benchmark, True),
        ("threads=2", torch.get_num_threads, 2),
        ("flush-denormal", lambda: (torch.tensor(1e-38) * 1e-3).item(), 0.0),
    ],
)
def test_torch_is_set_during_the_fit_and_set_back_after_it(text: str, read: Any, expected: Any) -> None:
    before = read()
    assert before != expected
    assert train(text, max_steps=2, look=lambda *_: read()).seen == expected
    assert read() == before


def test_denormals_stay_flushed_after_the_fit_when_they_were_before() -> None:
    torch.set_flush_denormal(True)
    torch.set_default_dtype(torch.float64)
    try:
        undos = Undos()
        parse("flush-denormal").treatment.set_up(None, None, None, undos)
        undos.close()
        assert torch.tensor(1e-38, dtype=torch.float32) * 1e-3 == 0
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_flush_denormal(False)


def test_deterministic_algorithms_are_off_during_the_fit_and_on_again_after_it() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        found = train("deterministic-off", max_steps=2, look=lambda *_: torch.are_deterministic_algorithms_enabled())
        assert found.seen is False
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_objects_that_others_froze_stay_frozen() -> None:
    gc.freeze()
    try:
        n_frozen = gc.get_freeze_count()
        with pytest.raises(TreatmentError, match="frozen already"):
            train("gc-freeze", max_steps=1)
        assert gc.get_freeze_count() >= 0.9 * n_frozen  # some are freed by their last reference
    finally:
        gc.unfreeze()


def test_garbage_is_freed_before_objects_are_frozen() -> None:
    class Cycle:
        pass

    one = Cycle()
    one.itself = one
    alive = weakref.ref(one)
    del one
    gc.disable()
    try:
        parse("gc-freeze").treatment.configured(9000, None, None, undos := Undos())
        assert alive() is None
        undos.close()
    finally:
        gc.enable()


def test_trainer_is_made_without_the_profiler_that_the_script_asks_for() -> None:
    applier = Applier([parse("profiler-off")])
    assert applier.change_trainer_arguments({"profiler": "simple", "max_epochs": 3}) == {
        "profiler": None, "max_epochs": 3,
    }  # fmt: skip


def test_benchmark_is_refused_when_the_training_is_deterministic() -> None:
    with pytest.raises(TreatmentError, match="deterministic"):
        Applier([parse("cudnn-benchmark")]).change_trainer_arguments({"deterministic": True})


def test_convolutions_compute_with_channels_last_and_are_put_back() -> None:
    plain = train(module=Convolutions)
    done = train("channels-last", module=Convolutions)
    assert all(done.module.formats)
    assert not any(plain.module.formats)
    assert done.module.conv.weight.stride() == plain.module.conv.weight.stride()
    assert done.losses == pytest.approx(plain.losses, rel=1e-4)


def test_channels_last_is_refused_when_nothing_has_channels() -> None:
    with pytest.raises(TreatmentError, match="no weights"):
        train("channels-last")


def fused(trainer: Trainer, _: Any) -> tuple[Any, ...]:
    optimizer = trainer.optimizers[0]
    group = optimizer.param_groups[0]
    return group["fused"], group["foreach"], optimizer.state[group["params"][0]]["step"].dtype


def test_optimizer_steps_fused_and_is_put_back() -> None:
    plain, done = train(), train("fused-optimizer", look=fused)
    assert done.seen == (True, False, torch.float32)
    assert done.losses == pytest.approx(plain.losses, rel=1e-4)
    group = done.trainer.optimizers[0].param_groups[0]
    assert (group["fused"], group["foreach"]) == (None, None)
    assert "_step_supports_amp_scaling" not in vars(done.trainer.optimizers[0])


def test_fused_kernel_really_runs_when_the_optimizer_is_fused() -> None:
    from torch.profiler import ProfilerActivity, profile

    class Profiled(Net):
        def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            with profile(activities=[ProfilerActivity.CPU]) as run:
                super().optimizer_step(*args, **kwargs)
            self.seen["names"] = {event.key for event in run.key_averages()}

    assert "aten::_fused_adam_" in train("fused-optimizer", module=Profiled, max_steps=1).module.seen["names"]
    assert "aten::_fused_adam_" not in train(module=Profiled, max_steps=1).module.seen["names"]


def test_optimizer_is_fused_when_its_state_comes_from_a_checkpoint(tmp_path: Path) -> None:
    first = train(max_epochs=1)
    first.trainer.save_checkpoint(tmp_path / "a.ckpt")
    plain = train(max_epochs=2, ckpt_path=str(tmp_path / "a.ckpt"))
    done = train("fused-optimizer", max_epochs=2, ckpt_path=str(tmp_path / "a.ckpt"), look=fused)
    assert done.seen == (True, False, torch.float32)
    assert len(done.losses) == 6
    assert done.losses == pytest.approx(plain.losses, rel=1e-4)


@pytest.mark.parametrize("is_other_fused", [False, True])
def test_state_that_is_created_while_fused_is_as_without_it_once_undone(is_other_fused: bool) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        early, late, other = (torch.nn.Parameter(torch.ones(3)) for _ in range(3))
        groups = [{"params": [early, late]}, {"params": [other], "fused": is_other_fused}]
        optimizer = torch.optim.Adam(groups, foreach=False)
        early.grad = torch.ones(3)
        optimizer.step()
        undos = Undos()
        trainer = SimpleNamespace(precision="32-true", gradient_clip_val=None, optimizers=[optimizer])
        parse("fused-optimizer").treatment.configured(None, trainer, None, undos)
        late.grad = other.grad = torch.ones(3)
        optimizer.step()
        steps = [optimizer.state[one]["step"].dtype for one in (early, late, other)]
        assert steps == [torch.float32] * 3
        wanted = [torch.float64, torch.float64, torch.float32 if is_other_fused else torch.float64]
        assert [each["step"].dtype for each in optimizer.state_dict()["state"].values()] == wanted
        undos.close()
        assert [optimizer.state[one]["step"].dtype for one in (early, late, other)] == wanted
        assert [optimizer.state[one]["step"].item() for one in (early, late, other)] == [2, 1, 1]
        optimizer.step()
    finally:
        torch.set_default_dtype(before)


def test_lower_precision_is_refused_when_gradients_of_a_fused_optimizer_are_clipped() -> None:
    class Fused(Net):
        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), fused=True)

    assert train("precision-bf16", module=Fused).losses
    assert train("precision-bf16-true", module=Fused, gradient_clip_val=1.0).losses
    with pytest.raises(TreatmentError, match="fused Adam"):
        train("precision-bf16", module=Fused, gradient_clip_val=1.0)


def test_fused_is_refused_when_no_optimizer_can_or_fp16_clips() -> None:
    class Lion(Net):
        def configure_optimizers(self) -> Any:
            return torch.optim.Rprop(self.parameters())

    with pytest.raises(TreatmentError, match="Rprop"):
        train("fused-optimizer", module=Lion)

    class Fp16:
        precision, gradient_clip_val, optimizers = "16-mixed", 1.0, ()

    with pytest.raises(TreatmentError, match="clip"):
        parse("fused-optimizer").treatment.configured(None, Fp16(), None, Undos())


def test_activations_are_computed_again_with_the_same_random_numbers() -> None:
    class Counts(Net):
        def __init__(self) -> None:
            super().__init__()
            for block in self.blocks:
                block.linear.register_forward_hook(lambda *_: self.seen.update(n=self.seen.get("n", 0) + 1))

    plain = train(module=Counts, val=loader(8))
    both = train("checkpointing-batch=x2", module=Counts, val=loader(8))
    done = train("activation-checkpointing", module=Counts, val=loader(8))
    n_training, n_validation = 3 * 12, 3 * 2 * (2 + 1)  # blocks × batches; two rounds and the sanity check
    assert plain.module.seen["n"] == n_training + n_validation
    assert done.module.seen["n"] == 2 * n_training + n_validation
    assert done.losses == plain.losses
    assert both.module.seen["n"] == n_training + n_validation  # twice each, in half as many batches
    assert {len(batch) for batch in both.module.batches} == {2 * len(batch) for batch in plain.module.batches}


def test_fewer_activations_are_kept_when_blocks_are_checkpointed() -> None:
    kept: list[int] = []

    class Packs(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            n_bytes = [0]

            def pack(tensor: torch.Tensor) -> torch.Tensor:
                n_bytes[0] += 0 if isinstance(tensor, nn.Parameter) else tensor.nbytes
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                loss = super().training_step(batch, batch_idx)
            kept.append(n_bytes[0])
            return loss

    train(module=Packs, max_steps=1)
    train("activation-checkpointing", module=Packs, max_steps=1)
    assert kept[1] < 0.5 * kept[0]


def test_blocks_are_refused_when_nothing_is_repeated() -> None:
    class Flat(Net):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList()

    with pytest.raises(TreatmentError, match="repeats no block"):
        train("activation-checkpointing", module=Flat)


def test_blocks_are_the_outermost_modules_that_repeat() -> None:
    def stage(n: int) -> nn.Sequential:
        return nn.Sequential(*[Block() for _ in range(n)])

    class ResNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer1, self.layer2, self.head = stage(2), stage(2), nn.Linear(N_FEATURES, 1)

    assert [type(block) for block in repeated_blocks(ResNet())] == [Block] * 4
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 3)
    assert repeated_blocks(encoder) == list(encoder.layers)
    towers = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(4)])
    assert repeated_blocks(nn.ModuleDict({"towers": towers})) == list(towers)
    with pytest.raises(TreatmentError):
        repeated_blocks(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU()))


def test_optimizer_steps_less_often_when_accumulating() -> None:
    assert train("accumulate=3", max_epochs=1).trainer.global_step == 2
    assert train(max_epochs=1).trainer.global_step == 6
    with pytest.raises(Exception, match="accumulate"):
        train("accumulate=3", callbacks=[GradientAccumulationScheduler({0: 2})])


@pytest.mark.parametrize(
    ("text", "accumulated", "batch_size", "expected"),
    [("batch-size=x2", 2, 8, 1), ("batch-size=8", 1, 8, 1), ("batch-size=2", 1, 2, 2), ("batch-size=x3", 6, 12, 2)],
)
def test_batch_is_resized_and_the_samples_of_a_step_kept_when_accumulation_allows(
    text: str, accumulated: int, batch_size: int, expected: int
) -> None:
    done = train(text, accumulate_grad_batches=accumulated, max_epochs=1, look=lambda t, _: t.accumulate_grad_batches)
    assert {len(batch) for batch in done.module.batches} == {batch_size}
    assert done.seen == expected
    assert done.trainer.accumulate_grad_batches == accumulated


def test_metrics_are_logged_every_n_steps(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    train("log-every-n=3", logger=logger, log_every_n_steps=1, max_epochs=1)
    with open(logger.experiment.metrics_file_path, encoding="utf-8") as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["2", "5"]


def test_bar_is_drawn_every_n_steps() -> None:
    class Bar(TQDMProgressBar):
        n_updates = 0

        def _update_n(self, bar: Any, value: int) -> None: ...

        def get_metrics(self, *args: Any) -> Any:
            type(self).n_updates += 1
            return super().get_metrics(*args)

    bar = Bar(refresh_rate=1)
    done = train("progress-refresh=4", enable_progress_bar=True, callbacks=[bar], look=lambda *_: bar.refresh_rate)
    assert done.seen == 4
    assert bar.refresh_rate == 1


def test_progress_refresh_is_refused_when_there_is_no_bar() -> None:
    with pytest.raises(TreatmentError, match="no bar"):
        train("progress-refresh=4")


def test_metrics_stay_off_the_bar_and_in_the_log() -> None:
    def shown(trainer: Trainer, _: Any) -> tuple[bool, bool]:
        return "loss" in trainer.progress_bar_metrics, "loss" in trainer.callback_metrics

    assert train(look=shown).seen == (True, True)
    assert train("prog-bar-off", look=shown).seen == (False, True)


def test_bar_is_disabled_when_it_is_switched_off() -> None:
    bar = TQDMProgressBar()
    done = train("prog-bar-off=bar", enable_progress_bar=True, callbacks=[bar], look=lambda *_: bar.is_enabled)
    assert done.seen is False
    assert bar.is_enabled


def test_anomaly_detection_is_off_when_the_user_asked_for_it() -> None:
    look = {"look": lambda *_: torch.is_anomaly_enabled(), "max_steps": 1}
    assert train(detect_anomaly=True, **look).seen is True
    assert train("anomaly-off", detect_anomaly=True, **look).seen is False


def test_checkpoints_are_written_whole_by_a_thread(tmp_path: Path) -> None:
    def where(trainer: Trainer, _: Any) -> str:
        return type(trainer.strategy.checkpoint_io).__name__

    saves = ModelCheckpoint(tmp_path, every_n_train_steps=3, save_top_k=-1)
    done = train("async-checkpoint", enable_checkpointing=True, callbacks=[saves], look=where)
    assert done.seen == "AsyncCheckpointIO"
    assert type(done.trainer.strategy.checkpoint_io).__name__ == "TorchCheckpointIO"
    files = sorted(os.listdir(tmp_path))
    assert len(files) == 4
    states = [torch.load(tmp_path / name, weights_only=False) for name in files]
    assert sorted(state["global_step"] for state in states) == [3, 6, 9, 12]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("val-less-often=3", 2), ("val-less-often=4b", 9), ("val-less-often=9b", 4), ("val-less-often=0.5", 12)],
)
def test_validation_runs_less_often(text: str, expected: int) -> None:
    class Counts(Net):
        def on_validation_start(self) -> None:
            self.seen["n"] = self.seen.get("n", 0) + 1

    arguments = {"module": Counts, "val": loader(4), "max_epochs": 6, "num_sanity_val_steps": 0}
    flags = {"val_check_interval": 1 / 3} if "0.5" in text else {}
    if "b" in text:
        flags = {"val_check_interval": 2}
    assert train(**arguments, **flags).module.seen["n"] == {"val-less-often=3": 6}.get(text, 18)
    assert train(text, **arguments, **flags).module.seen["n"] == expected


def test_validation_builds_no_graphs_in_inference_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    # Another test may leave a group of gloo, with which Lightning uses no inference mode.
    monkeypatch.setattr("lightning.pytorch.loops.utilities._distributed_is_initialized", lambda: False)

    class Graphs(Net):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            with torch.enable_grad():
                self.seen["graph"] = self(batch).requires_grad

    plain = train(module=Graphs, val=loader(8), inference_mode=True)
    done = train("inference-mode", module=Graphs, val=loader(8), inference_mode=False)
    assert (plain.module.seen["graph"], done.module.seen["graph"]) == (True, False)
    assert done.losses == plain.losses
    assert done.trainer.fit_loop.epoch_loop.val_loop.inference_mode is False


@pytest.mark.parametrize(("text", "expected"), [("limit-val-batches=0.34", 1), ("limit-val-batches=2", 2)])
def test_validation_has_fewer_batches(text: str, expected: int) -> None:
    class Counts(Net):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.seen["n"] = self.seen.get("n", 0) + 1

    arguments = {"module": Counts, "val": loader(12), "max_epochs": 1, "num_sanity_val_steps": 0}
    assert train(**arguments).module.seen["n"] == 3
    assert train(text, **arguments).module.seen["n"] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ddp-static-graph", {"static_graph": True}),
        ("ddp-bucket-view,ddp-find-unused-off", {"gradient_as_bucket_view": True, "find_unused_parameters": False}),
    ],
)
def test_ddp_is_given_its_arguments(text: str, expected: dict[str, bool]) -> None:
    def given(trainer: Trainer, _: Any) -> dict[str, Any]:
        model = trainer.strategy.model
        return {name: getattr(model, name) for name in expected}

    with mock.patch.dict(os.environ):  # in which Lightning leaves an address and a port
        done = train(text, strategy="ddp_find_unused_parameters_true", look=given, max_epochs=1)
    assert done.seen == expected
    assert done.trainer.strategy._ddp_kwargs == {"find_unused_parameters": True}
    assert len(done.losses) == 6


def test_fsdp_checkpoints_repeated_blocks() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

    model = nn.Sequential(nn.Linear(4, 4), nn.ModuleList([Block(), Block()]))
    trainer, undos = SimpleNamespace(strategy=FSDPStrategy()), Undos()
    find("fsdp-checkpointing").set_up(None, trainer, model, undos)
    _setup_activation_checkpointing(model, trainer.strategy._activation_checkpointing_kwargs)  # as the strategy does
    assert [type(block).__name__ for block in model[1]] == ["CheckpointWrapper"] * 2
    assert type(model[0]) is nn.Linear
    undos.close()
    assert trainer.strategy._activation_checkpointing_kwargs == {}


def test_fsdp_keeps_its_own_checkpointing_policy() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4)))
    strategy = FSDPStrategy(activation_checkpointing_policy={nn.Linear})
    for found in (strategy, SimpleNamespace()):
        with pytest.raises(TreatmentError, match="without activation_checkpointing_policy, found"):
            find("fsdp-checkpointing").set_up(None, SimpleNamespace(strategy=found), model, Undos())


def test_inference_mode_is_refused_with_gloo() -> None:
    with mock.patch.dict(os.environ), pytest.raises(TreatmentError, match="gloo"):
        train("inference-mode", strategy="ddp", max_steps=1)


def test_ddp_treatments_are_refused_when_there_is_no_ddp() -> None:
    with pytest.raises(TreatmentError, match="SingleDeviceStrategy"):
        train("ddp-static-graph")


def test_loader_has_what_was_asked_for() -> None:
    def read(trainer: Trainer, _: Any) -> tuple[Any, ...]:
        data = trainer.train_dataloader
        return data.num_workers, data.prefetch_factor, data.persistent_workers, data.pin_memory

    done = train("loader-prefetch=3,loader-workers=1,loader-persistent,loader-pin-memory", look=read)
    assert done.seen == (1, 3, True, True)
    taken = train("loader-workers=0", data=loader(num_workers=1, persistent_workers=True), look=read)
    assert taken.seen == (0, None, False, False)


def test_applier_is_undone_when_a_treatment_is_refused() -> None:
    applier = Applier(parse_all("matmul-precision-high,channels-last"))
    trainer = Trainer(**QUIET, max_epochs=1, callbacks=[Treat(applier)])
    with pytest.raises(TreatmentError):
        trainer.fit(Net(), loader())
    assert torch.get_float32_matmul_precision() == "highest"


class Attending(Net):
    model_class: Any = PreTrainedModel

    def __init__(self, output_attentions: bool = False) -> None:
        super().__init__()
        inner = Config("flex_attention")
        self.model, self.encoder = self.model_class(Config("eager", inner)), self.model_class(inner)
        self.fused = self.model_class(Config("sdpa"))
        self.model.config.output_attentions = output_attentions

    def implementations(self) -> list[str]:
        return [one.config.attention for one in (self.model, self.encoder, self.fused)]


def test_attention_of_a_library_is_fused_until_the_training_ends() -> None:
    done = train("fused-attention", module=Attending, max_steps=1, look=lambda _, module: module.implementations())
    assert done.seen == ["sdpa", "sdpa", "sdpa"]
    assert done.module.implementations() == ["eager", "flex_attention", "sdpa"]


def test_fused_attention_is_refused_if_weights_are_needed_or_the_model_cannot_change() -> None:
    def refuses(module: Any, says: str) -> None:
        with pytest.raises(TreatmentError, match=says):
            train("fused-attention", module=module)
        if isinstance(module, Attending):
            assert module.implementations() == ["eager", "flex_attention", "sdpa"]

    refuses(Net(), "need_weights=False")
    fused = Net()
    fused.model = PreTrainedModel(Config("sdpa"))
    refuses(fused, 'attn_implementation="eager"')
    refuses(Attending(output_attentions=True), "output_attentions")
    for changes, says in (
        ({"refusal": "no such kernel"}, "no fused attention: no such kernel"),
        ({"is_changeable": False}, "cannot change its attention"),
    ):
        refuses(type("A", (Attending,), {"model_class": type("M", (PreTrainedModel,), changes)})(), says)


def test_attention_of_transformers_itself_is_fused() -> None:
    transformers = pytest.importorskip("transformers")

    class Bert(Net):
        def __init__(self) -> None:
            super().__init__()
            config = transformers.BertConfig(
                vocab_size=8, hidden_size=N_FEATURES, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
                hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="eager",
            )  # fmt: skip
            self.bert = transformers.BertModel(config)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            called = torch.nn.functional.scaled_dot_product_attention
            with mock.patch("torch.nn.functional.scaled_dot_product_attention", wraps=called) as fused:
                y = self.bert(inputs_embeds=x[:, None].expand(-1, 4, -1) / 24).last_hidden_state
            self.seen["n"] = fused.call_count
            return y

    plain, done = train(module=Bert), train("fused-attention", module=Bert)
    assert (plain.module.seen["n"], done.module.seen["n"]) == (0, 1)
    assert done.losses == pytest.approx(plain.losses, rel=1e-3)
    assert done.module.bert.config._attn_implementation == "eager"
