"""The mount, file system and disk of a dataset, by the first path in the dataset object."""

from __future__ import annotations

import contextlib
from pathlib import Path, PurePath
from typing import Any

from lightning_perf.cgroups import read_text
from lightning_perf.records import DatasetDisk

from . import plain

NETWORK_FILE_SYSTEMS = {
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.mount-s3",
    "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3", "smbfs", "virtiofs",
}  # fmt: skip

# Names under which datasets usually keep their folder or their files.
_PATH_FIELDS = (
    "root", "path", "data_dir", "directory", "folder", "file", "filename", "img_dir", "image_dir",
    "paths", "files", "filenames", "samples", "imgs", "images",
)  # fmt: skip


def dataset_path(dataset: Any, depth: int = 4) -> Path | None:
    """Return the first existing path in the fields of a dataset, or of the datasets it wraps; None without one.

    Reads instance attributes only: no user code runs.
    """
    fields = plain.attributes(dataset)
    for name in _PATH_FIELDS:
        value = fields.get(name)
        while type(value) in (list, tuple) and value:
            value = value[0]
        is_path = type(value) is str or (plain.is_a(value, PurePath) and plain.is_library(type(value)))
        if is_path and value:  # only then: the truth value of an array or tensor raises
            path = Path(value)
            with contextlib.suppress(OSError, ValueError):  # a text, too long for a path or with a null in it
                if path.exists():
                    return path
    inner = fields.get("dataset")
    several = fields.get("datasets")
    if inner is None and type(several) in (list, tuple) and several:
        inner = several[0]
    return None if inner is None or depth == 0 else dataset_path(inner, depth - 1)


def dataset_disk(dataset: Any, root: Path = Path("/")) -> DatasetDisk | None:
    """Return the disk of a dataset; None if it has no path, or if mounts are unknown."""
    path = dataset_path(dataset)
    text = read_text(root / "proc" / "self" / "mountinfo")
    if path is None or text is None:
        return None
    path = path.resolve()
    best: tuple[int, list[str], list[str]] | None = None
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        place, kind = left.split(), right.split()
        if len(place) < 5 or len(kind) < 2:
            continue
        mount = Path(place[4].encode().decode("unicode_escape"))
        # Of mounts at one place the last covers those before.
        if (mount == path or mount in path.parents) and (best is None or len(mount.parts) >= best[0]):
            best = (len(mount.parts), place, kind)
    if best is None:
        return None
    _, place, kind = best
    return DatasetDisk(
        mount=place[4],
        file_system=kind[0],
        source=kind[1],
        is_network=kind[0] in NETWORK_FILE_SYSTEMS,
        is_rotational=_is_rotational(place[2], root),
    )


def _is_rotational(numbers: str, root: Path) -> bool | None:
    disk = root / "sys" / "dev" / "block" / numbers
    for folder in (disk, disk.resolve().parent):  # a partition's queue is its disk's
        flag = read_text(folder / "queue" / "rotational")
        if flag is not None:
            return flag == "1"
    return None
