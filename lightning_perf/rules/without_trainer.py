"""Recommendations for loops without a Trainer, in place of its flags."""

import re

import msgspec

from lightning_perf.records import Finding, Prescription

from .findings import how_to_measure

_FLAG = re.compile(r"^Trainer\(\.\.\., (\w+)=([^#\n]*)\)(?:  #.*)?$", re.MULTILINE)
"""Code that sets a Trainer flag, which recommendations that are not applied have only there."""
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
    "limit_train_batches": "for batch in itertools.islice(loader, {}):\n    ...",
}
_SUMMARY = {"check_val_every_n_epoch": "validate every {} epochs", "log_every_n_steps": "log every {} steps"}


def without_trainer(finding: Finding) -> Finding:
    """Return the finding with code for a plain loop instead of Trainer flags, and without treatments to try."""
    changed = tuple(_changed(prescription) for prescription in finding.prescriptions)
    summary = finding.summary.replace(how_to_measure(finding.prescriptions), how_to_measure(changed))
    return msgspec.structs.replace(finding, summary=summary, prescriptions=changed)


def _changed(fix: Prescription) -> Prescription:
    summary = fix.summary
    for name, value in _FLAG.findall(fix.code):
        if name in _SUMMARY:
            summary = summary.replace(f"set {name}={value}", _SUMMARY[name].format(value))
    code = _FLAG.sub(lambda flag: _CODE[flag[1]].format(flag[2]) if flag[1] in _CODE else flag[0], fix.code)
    return msgspec.structs.replace(fix, treatment="", trainer_flags={}, code=code, summary=summary)
