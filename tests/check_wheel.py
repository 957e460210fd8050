"""Build the sdist and the wheel, check their contents, and install and run the wheel outside the repository.

Run by ``make wheel-check``. It needs a package index, and some minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = "lightning_perf"
KEPT = ("torch", "lightning", "pytorch-lightning")


def _run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


def _versions(python: Path, cwd: Path) -> dict[str, str]:
    pairs = (line.split("==") for line in _run(python, "-m", "pip", "freeze", cwd=cwd).splitlines() if "==" in line)
    return {name.lower(): version for name, version in pairs}


def _check_files(archive: Path, inside: set[str], *tracked: str) -> None:
    """Expect exactly the files that git tracks."""
    expected = set(_run("git", "ls-files", *tracked, cwd=REPOSITORY).splitlines())
    lacks, has = sorted(expected - inside), sorted(inside - expected)
    if lacks or has:
        raise SystemExit(f"{archive.name} lacks {lacks}, and has {has} that git does not")


def check_sdist(sdist: Path) -> None:
    """All files of the repository, and the metadata."""
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if not member.isdir()}
    _check_files(sdist, names - {"PKG-INFO"})
    print(f"{sdist.name}: {len(names)} files, {sdist.stat().st_size / 1024:.0f} KiB")


def check_contents(wheel: Path) -> None:
    """The package's own files, each of them, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    inside = {name for name in names if ".dist-info/" not in name}
    _check_files(wheel, inside, PACKAGE)
    for needed in ("py.typed", "reports/render/static", "tensorboard_plugin/static"):
        if not any(name.startswith(f"{PACKAGE}/{needed}") for name in inside):
            raise SystemExit(f"the wheel has no {needed}")
    print(f"{wheel.name}: {len(inside)} files, {wheel.stat().st_size / 1024:.0f} KiB")


def main() -> None:
    """Build, check, install and run."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        _run(sys.executable, "-m", "venv", work / "venv", cwd=work)
        python = work / "venv" / "bin" / "python"
        _run(python, "-m", "pip", "install", "--quiet", "hatchling", cwd=work)
        _run(python, "-m", "hatchling", "build", "--target", "sdist", "--directory", work, cwd=REPOSITORY)
        (sdist,) = work.glob("*.tar.gz")
        check_sdist(sdist)
        _run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", work, sdist, cwd=work)
        (wheel,) = work.glob("*.whl")
        check_contents(wheel)
        install = (python, "-m", "pip", "install", "--quiet", "--constraint", REPOSITORY / "constraints.txt")
        _run(*install, "torch", "lightning", cwd=work)
        before = _versions(python, work)
        _run(python, "-m", "pip", "install", "--quiet", wheel, cwd=work)
        after = _versions(python, work)
        changed = {name: (before[name], after.get(name)) for name in KEPT if name in before}
        if any(old != new for old, new in changed.values()):
            raise SystemExit(f"installing the wheel changed {changed}")
        print(f"installed beside torch {after['torch']} and lightning {after['lightning']}, which it left as they were")
        told = _run(work / "venv" / "bin" / "lightning-perf", "demo", cwd=work)
        print("\n".join(told.splitlines()[-2:]))


if __name__ == "__main__":
    main()
