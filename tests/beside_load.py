"""Run a command while another process keeps a core busy: ``beside_load.py COMMAND…``."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys


def _burn(parent: int) -> None:
    while os.getppid() == parent:  # it would not end by itself if that process is killed
        for _ in range(1_000_000):
            pass


if __name__ == "__main__":
    burner = multiprocessing.get_context("spawn").Process(target=_burn, args=(os.getpid(),), daemon=True)
    burner.start()
    try:
        sys.exit(subprocess.run(sys.argv[1:], check=False).returncode)
    finally:
        burner.kill()
