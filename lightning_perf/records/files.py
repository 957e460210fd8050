"""Write files completely or not at all, leaving space on the disk, and read files without blocking the training."""

import contextlib
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from .remote import AnyPath, RemotePath

RESERVE_BYTES = 128 * 2**20
"""Free disk space that PerfDoctor's files never use, so that the training can write its own files."""

NETWORK_FILE_SYSTEMS = {
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.mount-s3",
    "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3", "smbfs", "virtiofs",
}  # fmt: skip

_CHECK_EVERY_BYTES = 4 * 2**20
"""Bytes written between two checks of the free space, which are slow on a network disk."""

_KINDS = (
    (stat.S_ISDIR, "a folder", errno.EISDIR),
    (stat.S_ISFIFO, "a named pipe", errno.EINVAL),
    (stat.S_ISSOCK, "a socket", errno.EINVAL),
    (stat.S_ISCHR, "a device", errno.EINVAL),
    (stat.S_ISBLK, "a device", errno.EINVAL),
)


def mount_of(place: Path) -> Any:
    """Return the mounted file system that an absolute path is on, as ``psutil.disk_partitions`` lists it.

    None if the mounts are unknown.
    """
    import psutil

    mounts: list[Any] = []
    with contextlib.suppress(OSError):
        mounts = [each for each in psutil.disk_partitions(all=True) if place.is_relative_to(each.mountpoint)]
    # Of several mounts at one path, the last covers the others.
    return max(reversed(mounts), key=lambda each: len(each.mountpoint), default=None)


def write_whole(target: AnyPath, content: bytes) -> None:
    """Write a local file as ``whole_file`` does, or a remote one; readers never see incomplete content."""
    if isinstance(target, RemotePath):
        target.write_bytes(content)
        return
    with whole_file(target) as file:
        file.write(content)


@contextlib.contextmanager
def whole_file(target: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces the target once the block ends without an error.

    Readers never see incomplete content.

    Args:
        target: The file. Its parent folders are created; an existing file is replaced.

    Raises:
        OSError: The file cannot be written, or the target is not a regular file; the temporary file is removed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        _require_regular(os.stat(target), target)  # renaming would replace a pipe, or /dev/null
    temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
    # Not mkstemp: only the owner can read its file, and the umask cannot be read without changing it for all threads.
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def require_free_space(folder: str | os.PathLike[str], n_bytes: int) -> None:
    """Raise unless ``RESERVE_BYTES`` stay free on a folder's disk once this much more is written.

    Call this before writing anything while a training runs, which would fail on a full disk.

    Args:
        folder: The folder; it need not exist yet. A disk that does not report its free space has enough.
        n_bytes: Upper bound of the size to write.

    Raises:
        OSError: There is not enough space (``ENOSPC``).
    """
    is_remote = "://" in os.fspath(folder)  # e.g. s3://; a Path of it is a local folder
    free_bytes = None if is_remote else _free_bytes(Path(folder))
    if free_bytes is not None and free_bytes - n_bytes < RESERVE_BYTES:
        reserve = f"{RESERVE_BYTES // 2**20} MiB"
        raise OSError(errno.ENOSPC, f"less than {reserve} would stay free on the disk; free some space", str(folder))


class SpaceCheckedFile:
    """File whose ``write`` leaves ``RESERVE_BYTES`` free on its disk, for content of unknown size.

    It writes to ``file`` in ``folder``. Creating it and writing raise ``OSError`` if there is not enough space.
    """

    def __init__(self, file: BinaryIO, folder: Path) -> None:
        require_free_space(folder, _CHECK_EVERY_BYTES)
        self._file = file
        self._folder = folder
        self._n_bytes = 0

    def write(self, content: bytes | bytearray | memoryview) -> int:
        """Write as the file does."""
        size = memoryview(content).nbytes
        self._n_bytes += size
        if self._n_bytes >= _CHECK_EVERY_BYTES:
            require_free_space(self._folder, size + _CHECK_EVERY_BYTES)
            self._n_bytes = 0
        return self._file.write(content)

    def flush(self) -> None:
        """Flush as the file does."""
        self._file.flush()


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading.

    Opening or reading a named pipe blocks, and reading a device may never end. Both may be in a user's folder,
    and the training would wait for them for ever.

    Args:
        path: The file, or a link to one.

    Raises:
        OSError: The file cannot be opened, or is not a regular file.
    """
    _require_regular(os.stat(path), path)
    file = open(path, "rb", opener=_open_without_blocking)  # noqa: SIM115 - the caller closes it
    try:
        _require_regular(os.fstat(file.fileno()), path)
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: str | AnyPath) -> bytes:
    """Return the content of a regular file; raises as ``open_regular`` does."""
    if isinstance(path, RemotePath):
        return path.read_bytes()
    with open_regular(path) as file:
        return file.read()


def as_text(name: str) -> str:
    """Return a file's name as valid UTF-8: other bytes become question marks."""
    return name.encode("utf-8", "replace").decode("utf-8")


def _open_without_blocking(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _require_regular(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    for is_kind, kind, code in _KINDS:
        if is_kind(status.st_mode):
            raise OSError(code, f"is {kind}, not a regular file", str(path))


def _free_bytes(folder: Path) -> int | None:
    """Return the free bytes on the disk of a folder, or of its nearest parent that exists; None if unknown."""
    for place in (folder, *folder.parents):
        try:
            usage = shutil.disk_usage(place)
            return usage.free if usage.total else None  # some network disks report zeros
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            return None
    return None
