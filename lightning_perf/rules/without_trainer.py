"""Recommendations for loops without a Trainer, in place of its flags."""

import msgspec

from lightning_perf.records import Finding, Prescription

from .findings import how_to_measure

_CODE = {
    "precision": 'Fabric(..., precision="{}")  # without Fabric: torch.autocast',
    "benchmark": "torch.backends.cudnn.benchmark = True",
    "detect_anomaly": "torch.autograd.set_detect_anomaly(False)",
    "check_val_every_n_epoch": "if epoch % {} == 0:\n    ...  # validate",
    "accumulate_grad_batches": "if step % {} == 0:\n    optimizer.step()\n    optimizer.zero_grad()",
}


def without_trainer(finding: Finding) -> Finding:
    """Return the finding with code for a plain loop instead of Trainer flags, and without treatments to try."""
    changed = tuple(_changed(prescription) for prescription in finding.prescriptions)
    summary = finding.summary.replace(how_to_measure(finding.prescriptions), how_to_measure(changed))
    return msgspec.structs.replace(finding, summary=summary, prescriptions=changed)


def _changed(fix: Prescription) -> Prescription:
    code, summary = fix.code, fix.summary
    for name, value in fix.trainer_flags.items():
        if name in _CODE:
            code = _CODE[name].format(value)
        if name == "check_val_every_n_epoch":
            summary = summary.replace(f"set {name}={value}", f"validate every {value} epochs")
    return msgspec.structs.replace(fix, treatment="", trainer_flags={}, code=code, summary=summary)
