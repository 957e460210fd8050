"""Treatments of operators, the optimizer and gradient accumulation."""

import inspect
from functools import partial
from typing import Any

from lightning_perf import seams
from lightning_perf.errors import TreatmentError
from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.records import MIXED_PRECISIONS, Session

from .treatment import Treatment, clipped_by, require_uncompiled


class Accumulate(Treatment):
    id = "accumulate"
    safety = "semantics"
    summary = "takes an optimizer step after every N batches: fewer steps and gradient exchanges"
    when = (
        "Helps where the optimizer or the gradient exchange dominates, or where memory allows no larger batch. An "
        "epoch has fewer steps, so adapt the learning rate and its schedule."
    )
    value_form = "N, batches per optimizer step, at least 2"
    least = 2
    default = 4
    trainer_flag = "accumulate_grad_batches"

    def applies_to(self, session: Session) -> str | None:
        if session.settings.trainer.is_automatic_optimization is False:
            return "optimization is manual: the module itself decides when it steps"
        if "GradientAccumulationScheduler" in session.settings.trainer.callbacks:
            return "GradientAccumulationScheduler decides when the optimizer steps, beside which Lightning refuses it"
        now, wanted = session.settings.trainer.accumulate_grad_batches, self.default_value(session)
        return f"accumulate_grad_batches is {now} already" if now is not None and now >= wanted else None


class ChannelsLast(Treatment):
    id = "channels-last"
    safety = "numerics"
    effort = "minutes"
    summary = "stores images and convolution weights in channels-last format, which fast convolution kernels need"
    when = (
        "Helps convolutions in mixed precision on Tensor Cores, and on CPUs. Layers without channels-last kernels "
        "convert back and forth, which costs more than it saves."
    )
    is_live = True
    code = (
        "model = model.to(memory_format=torch.channels_last)  # before trainer.fit(model)\n"
        "images = images.contiguous(memory_format=torch.channels_last)  # in training_step"
    )

    def applies_to(self, session: Session) -> str | None:
        model = session.settings.model
        has_convolutions = model is None or any(name.startswith("Conv") for name in model.layers)
        return None if has_convolutions else "the model has no convolutions"

    def set_up(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        import torch

        tensors = [t for t in (*module.parameters(), *module.buffers()) if t.dim() == 4 and t.is_floating_point()]
        if not tensors:
            name = type(module).__name__
            raise TreatmentError(f"channels-last found no weights of two-dimensional convolutions in {name}")
        # A convolution with such weights converts its input once, and its outputs have the same format.
        for tensor in tensors:
            if not tensor.is_contiguous(memory_format=torch.channels_last):
                undos.note(partial(_set_memory_format, tensor, torch.contiguous_format))
                _set_memory_format(tensor, torch.channels_last)

    def apply_live(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        require_uncompiled(self.id, module)
        if any(group.get("fused") for optimizer in trainer.optimizers for group in optimizer.param_groups):
            raise TreatmentError("channels-last would give weights another layout than the fused optimizer's state has")
        self.set_up(value, trainer, module, undos)


def _set_memory_format(tensor: Any, memory_format: Any) -> None:
    tensor.data = tensor.data.contiguous(memory_format=memory_format)


class CudnnBenchmark(Treatment):
    id = "cudnn-benchmark"
    safety = "numerics"
    summary = "lets cuDNN benchmark its convolution algorithms for each input shape and keep the fastest"
    when = (
        "Helps convolutions on inputs of one shape. If shapes keep changing, each new one is benchmarked, which is "
        "slower. A running training does not change: cuDNN keeps its first choice for a shape."
    )
    # Not live: torch reads its cache of choices by shape before it checks whether to benchmark, and no function
    # empties the cache (aten/src/ATen/native/cudnn/Conv_v8.cpp, run_single_conv).
    trainer_flag = "benchmark"
    setting = True

    def applies_to(self, session: Session) -> str | None:
        trainer = session.settings.trainer
        if trainer.accelerator in ("cpu", "mps", None):
            return f"the accelerator is {trainer.accelerator or 'not known'}: it has no cuDNN"
        if trainer.is_deterministic:
            return "the training is deterministic, which leaves cuDNN no choice"
        return "benchmark is on already" if session.settings.torch.is_cudnn_benchmark_on else None

    def change_trainer_arguments(self, value: Any, arguments: dict[str, Any], undos: seams.Undos) -> None:
        import torch

        if arguments.get("deterministic"):
            raise TreatmentError(
                f"benchmark=True cannot be set beside deterministic={arguments['deterministic']!r}, which leaves cuDNN "
                "no choice"
            )
        # Picklable, unlike a closure: a Trainer may send it to the processes that it spawns.
        undos.note(partial(_set_cudnn_benchmark, torch.backends.cudnn.benchmark))
        arguments["benchmark"] = True

    def set_up(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        import torch

        undos.note(partial(_set_cudnn_benchmark, torch.backends.cudnn.benchmark))
        _set_cudnn_benchmark(True)  # an earlier fit may have undone what the Trainer's flag set


def _set_cudnn_benchmark(is_on: bool) -> None:
    import torch

    torch.backends.cudnn.benchmark = is_on


class DeterministicOff(Treatment):
    id = "deterministic-off"
    safety = "numerics"
    summary = "lets torch use algorithms whose results differ a little from run to run"
    when = (
        "Helps where deterministic kernels are slower: convolutions, scatter and index operators on a GPU. Keep them "
        "for runs that must be repeated exactly."
    )
    is_live = True
    trainer_flag = "deterministic"
    setting = False

    def applies_to(self, session: Session) -> str | None:
        return "deterministic algorithms are off already" if session.settings.torch.is_deterministic is False else None

    def change_trainer_arguments(self, value: Any, arguments: dict[str, Any], undos: seams.Undos) -> None:
        _note_determinism(undos)  # the Trainer changes it in its constructor
        super().change_trainer_arguments(value, arguments, undos)

    def set_up(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        import torch

        _note_determinism(undos)
        torch.use_deterministic_algorithms(False)

    def apply_live(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        require_uncompiled(self.id, module)
        self.set_up(value, trainer, module, undos)


def _note_determinism(undos: seams.Undos) -> None:
    import torch

    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    is_on = torch.are_deterministic_algorithms_enabled()
    undos.note(partial(torch.use_deterministic_algorithms, is_on, warn_only=only_warns))


class FlushDenormal(Treatment):
    id = "flush-denormal"
    safety = "numerics"
    summary = "treats denormal numbers on the CPU as zero, because computing with them is many times slower"
    when = (
        "Helps where weights or activations decay towards zero on a CPU. It applies to the calling thread and to "
        "threads started later, so set it before the first computation."
    )
    is_live = True
    code = "torch.set_flush_denormal(True)  # first of all"

    def applies_to(self, session: Session) -> str | None:
        accelerator = session.settings.trainer.accelerator
        return None if accelerator in ("cpu", None) else f"the training computes on {accelerator}"

    def set_up(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        import torch

        # torch has no function that reads the setting. 1e-38 is a normal float32, a thousandth of it is denormal.
        was_on = bool((torch.tensor(1e-38, dtype=torch.float32) * 1e-3 == 0).item())
        undos.note(partial(torch.set_flush_denormal, was_on))
        if not torch.set_flush_denormal(True):
            raise TreatmentError("this CPU cannot flush denormal numbers: expected one with SSE3, or ARM64")


class FusedOptimizer(Treatment):
    id = "fused-optimizer"
    safety = "numerics"
    summary = "updates all parameters in one fused kernel instead of one operation at a time"
    when = (
        "For Adam, AdamW, SGD and Adagrad with many parameters. In mixed precision it cannot be combined with gradient "
        "clipping: Lightning refuses that."
    )
    is_live = True
    code = "torch.optim.AdamW(self.parameters(), ..., fused=True)  # whichever optimizer you have"

    def applies_to(self, session: Session) -> str | None:
        trainer, model = session.settings.trainer, session.settings.model
        if trainer.precision in MIXED_PRECISIONS and session.settings.is_clipping:
            return f"Lightning refuses a fused optimizer beside gradient clipping with precision={trainer.precision!r}"
        optimizers = model.optimizers if model is not None else ()
        if optimizers and all(one.implementation == "fused" for one in optimizers):
            return "the optimizer is fused already"
        if optimizers and all(one.supports_fused is False for one in optimizers):
            return f"{optimizers[0].class_name} has no fused implementation on this device"
        return None

    def configured(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        if trainer.precision in MIXED_PRECISIONS and (clipping := clipped_by(trainer, module)):
            raise TreatmentError(
                f"fused-optimizer cannot be applied to precision={trainer.precision!r} with {clipping}: Lightning "
                "refuses the three together"
            )
        fusible = [optimizer for optimizer in trainer.optimizers if "fused" in optimizer.defaults]
        if not fusible:
            names = ", ".join(type(optimizer).__name__ for optimizer in trainer.optimizers) or "none"
            raise TreatmentError(f"no optimizer has a fused implementation: expected Adam, AdamW, SGD …, found {names}")
        for optimizer in fusible:
            _fuse(optimizer, undos)

    def apply_live(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        # An error in a step would end the user's training, so only optimizers whose constructors accept fused=True.
        for wrapper in trainer.optimizers:
            optimizer = getattr(wrapper, "optimizer", wrapper)
            kind = type(optimizer)
            if kind.__module__.partition(".")[0] != "torch" or not _can_fuse(optimizer):
                name = f"{kind.__module__}.{kind.__qualname__}"
                raise TreatmentError(f"fused-optimizer expected torch's own Adam, AdamW …, found {name}")
            if not _has_one_layout(optimizer):
                raise TreatmentError("fused-optimizer expected gradients and state in the layout of the weights")
        if any(getattr(one, "sparse", False) is True for one in module.modules()):
            raise TreatmentError("fused-optimizer expected dense gradients, and a layer has sparse=True")
        self.configured(value, trainer, module, undos)


def _can_fuse(optimizer: Any) -> bool:
    """Return whether the optimizer's own constructor accepts its parameters with ``fused=True``."""
    if "fused" not in optimizer.defaults or any(group.get("capturable") for group in optimizer.param_groups):
        return False
    import torch

    settings = {**optimizer.defaults, "fused": True, "foreach": False}
    names = inspect.signature(type(optimizer).__init__).parameters
    copies = [torch.zeros_like(p[:0] if p.dim() else p) for group in optimizer.param_groups for p in group["params"]]
    try:
        type(optimizer)(copies, **{name: value for name, value in settings.items() if name in names})
    except (RuntimeError, TypeError, ValueError) as error:
        raise_if_from_signal(error)
        return False
    return True


def _has_one_layout(optimizer: Any) -> bool:
    """Return whether state and gradients have the strides of their parameters, as fused kernels need."""
    import torch

    for group in optimizer.param_groups:
        for parameter in group["params"]:
            tensors = [parameter.grad, *optimizer.state.get(parameter, {}).values()]
            same = [one for one in tensors if isinstance(one, torch.Tensor) and one.shape == parameter.shape]
            if any(one.layout != parameter.layout or one.stride() != parameter.stride() for one in same):
                return False
    return True


Places = dict[Any, tuple[Any, Any]]
"""Device and dtype of the step count of each parameter that has one."""


def _fuse(optimizer: Any, undos: seams.Undos) -> None:
    import torch

    groups = [group for group in optimizer.param_groups if not group.get("fused")]
    places = {parameter: (step.device, step.dtype) for _, parameter, step in _steps(optimizer, groups)}
    # Checkpoints are saved without the change: otherwise a training resumed from one would be fused as well.
    before = [{name: group.get(name) for name in ("fused", "foreach")} for group in optimizer.param_groups]
    hook, hooks = partial(_unfused, groups, before, places), optimizer._optimizer_state_dict_post_hooks
    undos.note(partial(seams.remove_hook, [hooks], hook))
    optimizer.register_state_dict_post_hook(hook)
    undos.note(partial(_unfuse_steps, optimizer, groups, places))
    for group in groups:
        undos.note(partial(group.update, fused=group.get("fused"), foreach=group.get("foreach")))
        group.update(fused=True, foreach=False)
    for _, parameter, step in _steps(optimizer, groups):  # restored from a checkpoint, maybe on another device
        optimizer.state[parameter]["step"] = step.to(device=parameter.device, dtype=torch.float32)
    # The constructor sets this for fused=True: the step itself applies the loss scale.
    seams.change_attribute(optimizer, "_step_supports_amp_scaling", True, undos)


def _steps(optimizer: Any, groups: list[Any]) -> list[tuple[Any, Any, Any]]:
    """Return the group, the parameter and the step count of each parameter that has one as a tensor."""
    of_each = ((group, one, optimizer.state.get(one, {}).get("step")) for group in groups for one in group["params"])
    return [found for found in of_each if hasattr(found[2], "to")]


def _unfused_steps(optimizer: Any, groups: list[Any], places: Places) -> dict[Any, Any]:
    """Return step counts as they would be without the treatment, also those that were created with it."""
    import torch

    dtype = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
    return {
        parameter: step.to(*places.get(parameter, (step.device if group.get("capturable") else "cpu", dtype)))
        for group, parameter, step in _steps(optimizer, groups)
    }


def _unfuse_steps(optimizer: Any, groups: list[Any], places: Places) -> None:
    for parameter, step in _unfused_steps(optimizer, groups, places).items():
        optimizer.state[parameter]["step"] = step


def _unfused(
    groups: list[Any], before: list[dict[str, Any]], places: Places, optimizer: Any, content: dict[str, Any]
) -> dict[str, Any]:
    """Return an optimizer's ``state_dict`` as it would be without the treatment."""
    steps = _unfused_steps(optimizer, groups, places)
    # A state_dict numbers the parameters in this order.
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = dict(content["state"])
    for key, parameter in enumerate(parameters):
        if key in state and parameter in steps:
            state[key] = {**state[key], "step": steps[parameter]}
    old = [{**group, **flags} for group, flags in zip(content["param_groups"], before, strict=False)]
    return {**content, "state": state, "param_groups": [*old, *content["param_groups"][len(old) :]]}


class FusedAttention(Treatment):
    id = "fused-attention"
    safety = "numerics"
    summary = "computes the attention of Hugging Face models with scaled_dot_product_attention"
    when = (
        'Helps models built with `attn_implementation="eager"`: attention scores are not written to memory. On a CPU '
        "there is no fused kernel with dropout. Attention of your own is refused, because it is not known if its "
        "weights are used; for `nn.MultiheadAttention`, pass `need_weights=False` if they are not."
    )
    code = 'model.set_attn_implementation("sdpa")  # or from_pretrained(..., attn_implementation="sdpa")'

    def applies_to(self, session: Session) -> str | None:
        model = session.settings.model
        return "torch.compile would compile the model again" if model is not None and model.is_compiled else None

    def set_up(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        require_uncompiled(self.id, module)
        models = [one for one in module.modules() if any(c.__name__ == "PreTrainedModel" for c in type(one).__mro__)]
        eager = [one for one in models if _attention(one.config) == "eager"]
        if not eager:
            raise TreatmentError(
                f'{self.id} expected a Hugging Face model with attn_implementation="eager"; elsewhere, write '
                "scaled_dot_product_attention yourself, or need_weights=False for nn.MultiheadAttention"
            )
        # An outer configuration sets inner ones too, so it is restored first: undos run in reverse order.
        for config in reversed({id(one.config): one.config for one in models}.values()):
            undos.note(partial(setattr, config, "_attn_implementation", _attention(config)))
        for model in eager:
            name = type(model).__name__
            if getattr(model.config, "output_attentions", False):
                raise TreatmentError(f"{name} returns attention weights (output_attentions), which fused kernels lack")
            try:
                if hasattr(model, "set_attn_implementation"):  # older versions choose when they build the model
                    model.set_attn_implementation("sdpa")
            except (ImportError, ValueError) as error:
                raise TreatmentError(f"{name} has no fused attention: {error}") from error
            if _attention(model.config) != "sdpa":
                raise TreatmentError(f"{name} of this version of transformers cannot change its attention once built")


def _attention(config: Any) -> Any:
    return getattr(config, "_attn_implementation", None)
