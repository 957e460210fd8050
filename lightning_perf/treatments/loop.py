"""Treatments of validation, checkpoints and the Trainer's loop."""

import sys
from typing import Any

from lightning_perf import seams
from lightning_perf.errors import TreatmentError
from lightning_perf.records import Session, async_checkpoints_are_copies

from .treatment import Treatment

_TORN = "AsyncCheckpointIO before Lightning 2.5.4 writes weights while the training changes them"


class AsyncCheckpoint(Treatment):
    id = "async-checkpoint"
    summary = "writes checkpoints in a thread while the training continues"
    when = (
        "Helps where writing checkpoints takes a visible part of the time. The state is copied first, which takes as "
        "much memory again."
    )
    acts_on = "loop"

    def applies_to(self, session: Session) -> str | None:
        is_safe = async_checkpoints_are_copies(session.machine.versions, session.settings.trainer.package)
        return None if is_safe else _TORN

    def trainer_objects(self, value: Any) -> dict[str, Any]:
        return {"plugins": [{"class_path": "lightning.pytorch.plugins.io.AsyncCheckpointIO", "init_args": {}}]}

    def set_up(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        package = seams.namespace(trainer)
        name = package.partition(".")[0]
        if not async_checkpoints_are_copies({name.replace("_", "-"): sys.modules[name].__version__}, package):
            raise TreatmentError(f"async-checkpoint: {_TORN}")
        if not seams.write_checkpoints_async(trainer, undos):
            kind = type(trainer.strategy.checkpoint_io).__name__
            raise TreatmentError(f"async-checkpoint expected Lightning's own way of writing checkpoints, found {kind}")


class InferenceMode(Treatment):
    id = "inference-mode"
    summary = "validates under torch.inference_mode, in which enable_grad builds no graphs"
    when = (
        "Helps where validation builds autograd graphs that nothing uses. Within `fit`, Lightning validates under "
        "`torch.no_grad`; `Trainer(inference_mode=...)` is only for `validate`, `test` and `predict`. Not for a "
        "validation that computes gradients, or keeps tensors with which the training then computes."
    )
    acts_on = "loop"
    trainer_flag = "inference_mode"
    setting = True
    code = "# within fit, Lightning ignores the flag: write @torch.inference_mode() above validation_step"

    def applies_to(self, session: Session) -> str | None:
        trainer = session.settings.trainer
        if trainer.limit_val_batches == 0:
            return "there is no validation"
        if "FSDP" in (trainer.strategy or ""):
            return f"Lightning uses no inference mode with {trainer.strategy}"
        return "inference mode is on already" if trainer.is_inference_mode else None

    def set_up(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        if getattr(trainer.strategy, "process_group_backend", None) == "gloo":
            raise TreatmentError("inference-mode: Lightning uses no inference mode with gloo")
        loop = getattr(seams.epoch_loop(trainer), "val_loop", None)
        if not hasattr(loop, "inference_mode"):
            raise TreatmentError("inference-mode expected Lightning's validation loop")
        seams.change_attribute(loop, "inference_mode", True, undos)


class LimitValBatches(Treatment):
    id = "limit-val-batches"
    safety = "semantics"
    summary = "validates on fewer batches"
    when = (
        "Helps where validation takes a large part of the time and cannot be less frequent. Metrics are then computed "
        "on fewer samples: the first ones that the loader yields, the same each time. A fraction needs a loader with a "
        "length and must leave at least one batch."
    )
    acts_on = "loop"
    conflicts = frozenset({"val-less-often"})  # alternatives: both together validate far less than either
    value_form = "N batches of each validation loader, 0 for no validation, or a fraction of them up to 1.0"
    value_pattern = r"\d+|0\.\d+|1\.0"
    default = "0.5"
    trainer_flag = "limit_val_batches"

    def applies_to(self, session: Session) -> str | None:
        now = session.settings.trainer.limit_val_batches
        if now == 0:
            return "there is no validation"
        wanted = self.trainer_flags(self.default_value(session))["limit_val_batches"]
        # 1.0 is all batches, 1 a single one; a number of batches cannot be compared with a fraction.
        is_less = now is None or (now == 1.0 and isinstance(now, float)) or (type(now) is type(wanted) and wanted < now)
        return None if is_less else f"limit_val_batches is {now} already"

    def trainer_flags(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        return {"limit_val_batches": float(value) if "." in value else int(value)}


class ValLessOften(Treatment):
    id = "val-less-often"
    safety = "semantics"
    summary = "validates less often"
    when = (
        "Helps where validation takes a large part of the time. Early stopping, schedulers and checkpoints that "
        "monitor a validation metric then see it less often."
    )
    acts_on = "loop"
    value_form = "N epochs between two validations, a fraction of an epoch up to 1.0, or Nb for N batches"
    value_pattern = r"[1-9]\d*b?|0\.\d*[1-9]\d*|1\.0"
    default = "2"

    def applies_to(self, session: Session) -> str | None:
        trainer = session.settings.trainer
        if trainer.limit_val_batches == 0:
            return "there is no validation"
        flags = self.trainer_flags(self.default_value(session))
        wanted = {name: value for name, value in flags.items() if value is not None}
        now = {name: getattr(trainer, name) for name in wanted}
        is_set = all(now[name] is not None and now[name] >= value for name, value in wanted.items())
        return f"{', '.join(f'{name} is {value}' for name, value in now.items())} already" if is_set else None

    def default_value(self, session: Session | None) -> str:
        prescription = self.recommended(session)
        flags = prescription.trainer_flags if prescription is not None else {}
        if flags.get("check_val_every_n_epoch") is not None:
            return str(flags["check_val_every_n_epoch"])
        interval = flags.get("val_check_interval")
        if interval is None:
            return self.default
        return str(interval) if isinstance(interval, float) else f"{interval}b"

    def trainer_flags(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        if value.endswith("b"):
            # None counts batches over all epochs; otherwise the Trainer refuses more batches than an epoch has.
            return {"val_check_interval": int(value[:-1]), "check_val_every_n_epoch": None}
        return {"val_check_interval": float(value)} if "." in value else {"check_val_every_n_epoch": int(value)}


class BareLoop(Treatment):
    id = "bare-loop"
    summary = "trains in a plain PyTorch loop, to measure what Lightning costs per step"
    when = (
        "Answers whether Lightning itself is slow. The plain loop trains on the same batches with the same module and "
        "optimizer, but without callbacks, loggers and progress bar. A trial measures it and never recommends it."
    )
    is_measurement = True

    def applies_to(self, session: Session) -> str | None:
        trainer, model = session.settings.trainer, session.settings.model
        if trainer.is_automatic_optimization is False:
            return "with manual optimization, training_step contains the loop already"
        if trainer.strategy not in (None, "SingleDeviceStrategy"):
            return f"a plain loop trains on a single device, not with {trainer.strategy}"
        if model is not None and len(model.optimizers) > 1:
            return f"a plain loop expects one optimizer, not {len(model.optimizers)}"
        if model is not None and any(one.class_name == "LBFGS" for one in model.optimizers):
            return "LBFGS needs a closure"
        return None

    def configured(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        reason = seams.why_no_bare_loop(trainer, module)
        if reason:
            raise TreatmentError(f"bare-loop: {reason}")
        seams.run_bare_loop(trainer, module, undos)
