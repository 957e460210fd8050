"""Treatments that change rounding: precision, settings of torch, memory formats, fused optimizers and attention."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import MixedPrecision
from torch import nn

from lightning_perf.errors import TreatmentError
from lightning_perf.seams import Undos
from lightning_perf.treatments.applier import Applier
from lightning_perf.treatments.specs import parse

from .trainings import N_FEATURES, Config, Net, PreTrainedModel, train


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


def test_lower_precision_is_refused_when_the_module_clips_gradients_of_a_fused_optimizer() -> None:
    class Manual(Net):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            loss = super().training_step(batch, batch_idx)
            self.manual_backward(loss)
            self.clip_gradients(optimizer, gradient_clip_val=1.0)
            optimizer.step()
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), fused=True)

    with pytest.raises(TreatmentError, match="the module's calls of clip_gradients with a fused Adam"):
        train("precision-bf16", module=Manual)
    assert train("precision-bf16-true", module=Manual).losses


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
