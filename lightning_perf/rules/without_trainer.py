"""Recommendations for loops without a Trainer, in place of its flags."""

import msgspec

from lightning_perf.records import Finding, Prescription

_CODE = {
    "precision": 'Fabric(..., precision="{}")  # without Fabric: torch.autocast',
    "benchmark": "torch.backends.cudnn.benchmark = True",
    "detect_anomaly": "torch.autograd.set_detect_anomaly(False)",
    "inference_mode": "with torch.inference_mode():  # around validation",
    "check_val_every_n_epoch": "if epoch % {} == 0:\n    ...  # validate",
    "accumulate_grad_batches": "if step % {} == 0:\n    optimizer.step()\n    optimizer.zero_grad()",
}


def without_trainer(finding: Finding) -> Finding:
    """Return the finding with the same changes as a loop makes them; a trial cannot apply them to it."""
    changed = tuple(_changed(prescription) for prescription in finding.prescriptions)
    return msgspec.structs.replace(finding, prescriptions=changed)


def _changed(fix: Prescription) -> Prescription:
    code, summary = fix.code, fix.summary
    for name, value in fix.trainer_flags.items():
        if name in _CODE:
            code = _CODE[name].format(value)
            summary = (
                summary.replace(f"set {name}={value}", f"validate every {value} epochs") if "val" in name else summary
            )
    return msgspec.structs.replace(fix, treatment="", trainer_flags={}, code=code, summary=summary)
