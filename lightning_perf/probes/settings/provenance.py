"""Read what identifies a training from run to run: shapes, dataset, and the state of its code in git."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lightning_perf.interrupts import suppress
from lightning_perf.probes import plain
from lightning_perf.probes.base import Probe, RunContext
from lightning_perf.probes.model import module_walk
from lightning_perf.probes.telemetry.probe import dataset_path
from lightning_perf.records import Provenance

_MAX_TENSORS = 8
_READ_BYTES = 65_536
_STATUS = ("--no-optional-locks", "-c", "core.fsmonitor=false", "status", "--porcelain=v2", "--branch",
           "--untracked-files=no", "--ignore-submodules=dirty")  # fmt: skip
_CI_BRANCHES = ("GITHUB_REF_NAME", "CI_COMMIT_REF_NAME", "BITBUCKET_BRANCH", "BUILDKITE_BRANCH")
"""Variables in which CI services, which check out a commit, name its branch."""


class ProvenanceProbe(Probe):
    """Reads shapes once, and git's state in a process of its own that nothing waits for."""

    name = field = "provenance"
    stages = ("fit",)

    def __init__(self) -> None:
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        self._script = Path(script).resolve() if isinstance(script, str) else None
        self._project = project_of(self._script.parent if self._script is not None else Path.cwd())
        self._git: subprocess.Popen[bytes] | None = None
        self._code: dict[str, Any] = {}
        self._parameters: str | None = None
        self._samples: tuple[str, ...] = ()
        self._dataset: str | None = None

    @classmethod
    def open(cls, run: RunContext) -> "ProvenanceProbe | None":
        return cls() if run.trainer.is_global_zero and not run.trainer.fast_dev_run else None

    def start(self) -> None:
        git = shutil.which("git")
        if git is not None and os.path.exists(self._project / ".git"):
            with suppress(OSError):
                # By its path: to search PATH, Popen changes the warning filters, and warnings are shown twice.
                self._git = subprocess.Popen(
                    (git, *_STATUS), cwd=self._project, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )  # fmt: skip

    def loops_ready(self, run: RunContext) -> None:
        self._parameters = digest_of(module_walk.parameters(run.pl_module))
        dataset = plain.stored(run.trainer.train_dataloader, "dataset")
        path = None if dataset is None else dataset_path(dataset)
        if path is not None:
            text = str(path.resolve())
            outside = f"outside the project ({hashlib.sha256(os.fsencode(text)).hexdigest()[:8]})"
            self._dataset = self._path_in_project(path) or outside

    def first_batch(self, batch: Any) -> None:
        """Read the shapes of the first batch; nested tensors have none."""
        found = plain.tensors_in(batch, left=plain.search_limit())
        tensors = [each for each in found if not plain.field(each, "is_nested")]
        shapes = [tuple(plain.field(each, "shape")) for each in tensors[:_MAX_TENSORS]]
        self._samples = tuple("x".join(map(str, shape[1:])) for shape in shapes)

    def record(self) -> Provenance:
        self._read_git()
        return Provenance(
            parameters=self._parameters,
            sample_shapes=self._samples,
            dataset=self._dataset,
            script=None if self._script is None else self._path_in_project(self._script),
            **self._code,
        )

    def close(self) -> None:
        self._read_git()
        self._end_git()

    def _read_git(self) -> None:
        """Read git's output if there is any; a long list of changes need not be read to its end."""
        if self._git is None or self._git.stdout is None:
            return
        os.set_blocking(self._git.stdout.fileno(), False)
        with suppress(BlockingIOError):
            self._code = parse_git_status(os.read(self._git.stdout.fileno(), _READ_BYTES))
            self._end_git()

    def _end_git(self) -> None:
        git, self._git = self._git, None
        if git is None or git.stdout is None:
            return
        git.kill()
        git.stdout.close()
        with suppress(subprocess.TimeoutExpired):  # on a disk that does not answer
            git.wait(1.0)

    def _path_in_project(self, path: Path) -> str | None:
        """Return a path relative to the project; None outside it."""
        path = path.resolve()
        return str(path.relative_to(self._project)) if self._project in path.parents else None


def project_of(folder: Path) -> Path:
    """Return the git repository that holds a folder; without one, the folder itself."""
    folder = folder.resolve()
    return next((each for each in (folder, *folder.parents) if os.path.exists(each / ".git")), folder)


def parse_git_status(status: bytes) -> dict[str, Any]:
    """Return fields of ``Provenance`` from what ``git status --porcelain=v2 --branch`` prints."""
    lines = status.decode("utf-8", "replace").splitlines()
    heads = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch.") and line.count(" ") >= 2)
    commit, branch = heads.get("branch.oid"), heads.get("branch.head")
    if commit is None or commit == "(initial)":
        return {}
    if branch == "(detached)":
        branch = next((os.environ[name] for name in _CI_BRANCHES if os.environ.get(name)), None)
    return {"commit": commit, "branch": branch, "is_dirty": any(not line.startswith("#") for line in lines)}


def digest_of(parameters: Iterable[Any]) -> str | None:
    """Return a digest of the shapes of parameters, in order; None without any, or if one has no shape."""
    shapes = []
    for parameter in parameters:
        if not plain.has_shape(parameter):
            return None
        shapes.append(tuple(plain.field(parameter, "shape")))
    return hashlib.sha256(repr(shapes).encode()).hexdigest()[:16] if shapes else None
