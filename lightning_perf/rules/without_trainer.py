"""Recommendations in place of Trainer flags: for loops without a Trainer, manual optimization, and a scheduler."""

import re
from collections.abc import Mapping

import msgspec

from lightning_perf.records import Finding, Prescription, TrainerSettings

from .findings import how_to_measure

_FLAG = re.compile(r"^Trainer\(\.\.\., (\w+)=([^#\n]*)\)(?:  #.*)?$", re.MULTILINE)
"""Code that sets a Trainer flag, which recommendations that are not applied have only there."""
_HOOK = re.compile(r"^def on_after_batch_transfer\(self, batch, dataloader_idx\):\n    (return )?", re.MULTILINE)
"""Code of a module's hook that only a Trainer calls, up to its one line."""
_CODE = {
    "precision": "Fabric(..., precision={})  # without Fabric: torch.autocast",
    "strategy": "Fabric(..., strategy={})",
    "devices": "Fabric(..., devices={})",
    "benchmark": "torch.backends.cudnn.benchmark = {}",
    "deterministic": "torch.use_deterministic_algorithms({})",
    "detect_anomaly": "torch.autograd.set_detect_anomaly({})",
    "check_val_every_n_epoch": "if epoch % {} == 0:\n    ...  # validate",
    "log_every_n_steps": "if step % {} == 0:\n    fabric.log_dict(metrics)",
    "accumulate_grad_batches": "if step % {} == 0:\n    optimizer.step()\n    optimizer.zero_grad()",
    "gradient_clip_val": "torch.nn.utils.clip_grad_norm_(model.parameters(), {})  # with Fabric: fabric.clip_gradients",
    "use_distributed_sampler": "loader = fabric.setup_dataloaders(loader, use_distributed_sampler={})",
    "limit_train_batches": "for batch in itertools.islice(loader, {}):\n    ...",
}
_WORDS = {
    "self.parameters()": "model.parameters()",
    "self.total += loss": "total += loss",
    ", in on_train_epoch_end": ", at the end of the epoch",
    ", e.g. in on_train_start": "",
    "  # in configure_optimizers": "  # after the optimizer is made",
}
"""What code of a module or a callback is in a loop."""
_SUMMARY = {
    "check_val_every_n_epoch": "validate every {} epochs",
    "log_every_n_steps": "log every {} steps",
    "accumulate_grad_batches": "step the optimizer every {} batches",
}
_MANUAL = {name: _CODE[name] for name in ("accumulate_grad_batches", "gradient_clip_val")}
"""Code instead of the flags that Lightning refuses for a module with manual optimization."""
_SCHEDULED = {"accumulate_grad_batches": "GradientAccumulationScheduler({{0: {}}})  # change the callback that you use"}
"""Code instead of the flag that Lightning refuses beside this callback."""


def without_trainer(finding: Finding) -> Finding:
    """Return the finding with code for a plain loop instead of Trainer flags, and without treatments to try."""
    changed = tuple(_of_loop(_changed(prescription, _CODE)) for prescription in finding.prescriptions)
    summary = finding.summary.replace(how_to_measure(finding.prescriptions), how_to_measure(changed))
    return msgspec.structs.replace(finding, summary=summary, prescriptions=changed)


def without_refused_flags(finding: Finding, trainer: TrainerSettings) -> Finding:
    """Return the finding with code instead of flags that Lightning refuses for this training."""
    if trainer.is_automatic_optimization is False:
        codes = _MANUAL
    elif "GradientAccumulationScheduler" in trainer.callbacks:
        codes = _SCHEDULED
    else:
        return finding
    changed = (
        _changed(one, codes) if any(name in one.code for name in codes) else one for one in finding.prescriptions
    )
    return msgspec.structs.replace(finding, prescriptions=tuple(changed))


def _of_loop(fix: Prescription) -> Prescription:
    code = _HOOK.sub(lambda hook: "batch = " if hook[1] else "", fix.code)
    for word, in_loop in _WORDS.items():
        code = code.replace(word, in_loop)
    return msgspec.structs.replace(fix, code=code)


def _changed(fix: Prescription, codes: Mapping[str, str]) -> Prescription:
    """Return the recommendation with code instead of these flags; without them, no argument of a loader is applied."""
    summary = fix.summary
    for name, value in _FLAG.findall(fix.code):
        if name in codes and name in _SUMMARY:
            said = _SUMMARY[name].format(value)
            summary = summary.replace(f"set {name}={value}", said).replace(f"{name}={value}", said)
    code = _FLAG.sub(lambda flag: codes[flag[1]].format(flag[2]) if flag[1] in codes else flag[0], fix.code)
    loader_args = {} if fix.trainer_flags else fix.loader_args
    return msgspec.structs.replace(
        fix, treatment="", trainer_flags={}, loader_args=loader_args, code=code, summary=summary
    )
