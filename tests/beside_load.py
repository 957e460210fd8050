"""Run a command while another process keeps a core busy: ``beside_load.py COMMAND…``."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys


def _burn() -> None:
    while True:
        pass


if __name__ == "__main__":
    burner = multiprocessing.get_context("spawn").Process(target=_burn, daemon=True)
    burner.start()
    try:
        sys.exit(subprocess.run(sys.argv[1:], check=False).returncode)
    finally:
        burner.kill()
