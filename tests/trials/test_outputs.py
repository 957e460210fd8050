"""Where a measured training's files go."""

from __future__ import annotations

from pathlib import Path

import pytest
from lightning.pytorch import Trainer

from lightning_perf import PerfDoctor
from lightning_perf.trials.job import DOCTOR_FOLDER, OUTPUTS
from lightning_perf.trials.outputs import Outputs


@pytest.mark.parametrize("out_dir", [None, "of the user"])
def test_the_user_s_own_doctor_writes_where_the_trial_looks_for_it(tmp_path: Path, out_dir: str | None) -> None:
    doctor = PerfDoctor(out_dir=out_dir)  # also one that the module brings, of which nothing is known before `setup`
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[doctor])
    outputs = Outputs(tmp_path / OUTPUTS, "lightning.pytorch")
    for _ in range(2):
        outputs.redirect(trainer)
        assert doctor.out_dir == tmp_path / DOCTOR_FOLDER
