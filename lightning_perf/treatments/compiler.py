"""What the treatments that compile share."""

from __future__ import annotations

import os
import shutil
from typing import Any

from lightning_perf.errors import TreatmentError


def check_compiler(trainer: Any) -> None:
    """Checks before the first step that torch finds the C++ compiler that it needs for a CPU.

    Raises:
        TreatmentError: There is none.
    """
    compiler = os.environ.get("CXX", "g++")
    if trainer.strategy.root_device.type == "cpu" and shutil.which(compiler) is None:
        raise TreatmentError(
            f"torch.compile needs a C++ compiler on a CPU, and {compiler} was not found: install g++ or set CXX"
        )
