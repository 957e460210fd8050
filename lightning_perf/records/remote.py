"""Files and folders for results: on a disk, or at a URL that fsspec supports (``s3://``, ``gs://``, ``memory://``, …).

fsspec, which Lightning depends on, is imported once a URL is used.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from lightning_perf.interrupts import raise_if_from_signal

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]+(?:::[\w+.-]+)*):(?P<slashes>/+)")  # no drive letter
_FILE_ENDINGS = (".json", ".gz", ".html")


@dataclass(frozen=True, order=True)
class RemotePath:
    """A file or folder at a URL, with the methods of ``pathlib.Path`` that results need.

    Every failure of the storage, whatever its library raises, is an ``OSError``.
    """

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> RemotePath:
        scheme, path = self._parts
        return RemotePath(f"{scheme}://{path}/{name}" if path else f"{scheme}://{name}")

    @property
    def _parts(self) -> tuple[str, str]:
        scheme, _, path = self.url.partition("://")
        return scheme, path.rstrip("/")

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self._parts[1].rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return PurePosixPath(self.name).stem

    @property
    def suffix(self) -> str:
        """The ending of the name, with its dot."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> RemotePath:
        """The folder above."""
        scheme, path = self._parts
        return RemotePath(f"{scheme}://{path.rpartition('/')[0]}")

    def with_name(self, name: str) -> RemotePath:
        """Return the URL of a sibling."""
        return self.parent / name

    def require_storage(self) -> None:
        """Raise ``OSError`` unless fsspec can reach this kind of URL; connects to nothing."""
        with _as_os_error(self):
            import fsspec

            for scheme in self._parts[0].split("::"):
                fsspec.get_filesystem_class(scheme)

    def is_dir(self) -> bool:
        """Return whether it is a folder that is not empty; False for names that end like a file of PerfDoctor's."""
        if self.suffix in _FILE_ENDINGS:  # over HTTP, each file that contains a link is a folder to fsspec
            return False
        with self._storage() as (storage, path):
            return bool(storage.isdir(path))

    def exists(self) -> bool:
        """Return whether a file or folder is there."""
        with self._storage() as (storage, path):
            return bool(storage.exists(path))

    def glob(self, pattern: str) -> list[RemotePath]:
        """Return the files below this folder whose relative path matches."""
        with self._storage() as (storage, path):
            folder = path.rstrip("/")
            found = storage.glob(f"{glob.escape(folder)}/{pattern}", detail=True)
            return [self / name[len(folder) + 1 :] for name, about in found.items() if about["type"] == "file"]

    def read_bytes(self) -> bytes:
        """Return the content of the file."""
        with self._storage() as (storage, path):
            return bytes(storage.cat_file(path))

    def write_bytes(self, content: bytes) -> None:
        """Write the file, replacing what is there."""
        with self._storage() as (storage, path):
            _with_parents(storage, path, lambda: storage.pipe_file(path, content))

    def upload(self, file: Path) -> None:
        """Write the file with the content of a local one, which may be larger than the memory."""
        with self._storage() as (storage, path):
            _with_parents(storage, path, lambda: storage.put_file(str(file), path))

    def download(self, file: Path) -> None:
        """Write the content to a local file."""
        with self._storage() as (storage, path):
            storage.get_file(path, str(file))

    def replace(self, target: RemotePath) -> None:
        """Move the file."""
        with self._storage() as (storage, path), target._storage() as (_, target_path):
            storage.mv(path, target_path)

    def unlink(self) -> None:
        """Remove the file."""
        with self._storage() as (storage, path):
            storage.rm_file(path)

    @contextlib.contextmanager
    def _storage(self) -> Iterator[tuple[Any, str]]:
        """Yield fsspec's file system, and the path in it."""
        with _as_os_error(self):
            import fsspec

            yield fsspec.core.url_to_fs(self.url)


AnyPath: TypeAlias = Path | RemotePath


def any_path(path: str | os.PathLike[str] | RemotePath) -> AnyPath:
    """Return a local path or, for a URL, a remote one.

    ``file://`` URLs are local. A ``Path`` made of a URL, which has lost one of its two slashes, is remote as well.
    """
    if isinstance(path, RemotePath):
        return path
    text = os.fspath(path)
    match = _SCHEME.match(text)
    if match is None:
        return Path(path)
    scheme, slashes, rest = match["scheme"], match["slashes"], text[match.end() :]
    if scheme in ("file", "local"):
        return Path(rest if slashes == "//" else f"/{rest}")
    if slashes != "/":
        return RemotePath(text)
    import fsspec

    is_known = scheme.rpartition("::")[2] in fsspec.available_protocols()
    return RemotePath(f"{scheme}://{rest}") if is_known else Path(path)


def is_dir(path: AnyPath) -> bool:
    """Return whether a path is a folder; False for a local one that cannot be read."""
    return path.is_dir() if isinstance(path, RemotePath) else os.path.isdir(path)


def exists(path: AnyPath) -> bool:
    """Return whether something is at a path; False for a local one that cannot be read."""
    return path.exists() if isinstance(path, RemotePath) else os.path.exists(path)


@contextlib.contextmanager
def local_file(path: AnyPath) -> Iterator[Path]:
    """Yield a local file with the content; of a remote one, a copy that is removed when the block ends.

    Raises:
        OSError: The remote file cannot be read.
    """
    if isinstance(path, Path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="lightning-perf-") as folder:
        copy = Path(folder) / path.name
        path.download(copy)
        yield copy


def _with_parents(storage: Any, path: str, write: Callable[[], None]) -> None:
    """Call ``write``; if its folder is missing, create that and try again, except in a bucket."""
    try:
        write()
    except FileNotFoundError:
        if not path.startswith("/"):  # the first part is a bucket, which must not be created
            raise
        storage.makedirs(path.rpartition("/")[0], exist_ok=True)
        write()


@contextlib.contextmanager
def _as_os_error(path: RemotePath) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and error.errno is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path.url) from error
        raise
    except Exception as error:  # storage libraries have exceptions of their own
        raise_if_from_signal(error)
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", path.url) from error
