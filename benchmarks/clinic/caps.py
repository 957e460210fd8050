"""Imitate other CPUs: run the clinic in a separate process with some CPU features disabled (a cap).

An expected speedup must hold on every CPU. oneDNN and OpenMP read these variables once per process, so each cap gets a
new process, with an empty cache folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

CAPS: dict[str, dict[str, str]] = {
    "none": {},
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "avx512_core": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "one-thread": {"OMP_NUM_THREADS": "1"},
}
"""Name of the cap → the variables that set it. ``none`` is the machine as it is."""

_VARIABLES = {variable for variables in CAPS.values() for variable in variables}


def parsed(text: str) -> tuple[str, ...]:
    """Return the caps named in ``none,avx2,…``, each once, in this order.

    Raises:
        ValueError: One of them does not exist, or there is none.
    """
    names = tuple(dict.fromkeys(name for name in text.split(",") if name))
    unknown = [name for name in names if name not in CAPS]
    if unknown or not names:
        raise ValueError(f"got {text!r}, expected caps from {', '.join(CAPS)}, separated by commas")
    return names


def environment_of(cap: str, inherited: Mapping[str, str], cache: str) -> dict[str, str]:
    """Return the environment of a run under a cap; variables of other caps are removed.

    Args:
        cap: Name of the cap.
        inherited: The environment of this process.
        cache: An empty folder for caches.
    """
    kept = {name: value for name, value in inherited.items() if name not in _VARIABLES}
    return {**kept, "XDG_CACHE_HOME": cache, **CAPS[cap]}


def run_under(cap: str, script: Path, arguments: Sequence[str]) -> tuple[int, bytes]:
    """Run a script under a cap; a last argument names the file into which it writes its results.

    Returns:
        Its exit status, and the content of the file; empty where it failed before it wrote anything.
    """
    with tempfile.TemporaryDirectory(prefix="clinic-cap-", ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "section.json"
        environment = environment_of(cap, os.environ, str(Path(folder) / "cache"))
        done = subprocess.run([sys.executable, str(script), *arguments, str(file)], env=environment, check=False)
        return done.returncode, file.read_bytes() if file.exists() else b""
