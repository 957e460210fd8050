"""Sandbox the child of an automatic probe, so that it cannot change anything outside of itself.

There are two layers. Landlock (Linux 5.13 and newer) makes the kernel refuse, also to C code, to open files for
writing, to create or remove them, to run programs and, with newer kernels, to connect by TCP and to signal other
processes. An audit hook sees the same requests from Python code, and ends the child with a reason before the user's
code can take the refusal for an error in its data.
"""

import contextlib
import ctypes
import functools
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from .child import Reporter
from .native_code import is_extension_allowed

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system calls, on all architectures
_GET_VERSION, _PATH_BENEATH, _NO_NEW_PRIVILEGES = 1, 1, 38  # linux/landlock.h, linux/prctl.h
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF}
"""All rights of each version of Landlock; newer versions add rights that are not needed here."""
_WRITE_FILE, _REMOVE_FILE, _MAKE_FILE, _TRUNCATE = 1 << 1, 1 << 5, 1 << 8, 1 << 14
_TCP_VERSION, _SCOPE_VERSION = 4, 6
_ACCESS_DEFAULT, _ACCESS_WRITE = 0, 2  # of mmap
_BOTH = 3  # bind and connect; abstract sockets and signals

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_READABLE_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_PATH_EVENTS = frozenset(
    f"os.{name}"
    for name in (
        "chmod", "chown", "chflags", "link", "mkdir", "remove", "removexattr", "rename", "rmdir", "setxattr",
        "symlink", "truncate", "utime",
    )
)  # fmt: skip
_OTHER_EVENTS = frozenset(
    (
        "ctypes.dlopen", "ctypes.dlsym", "ctypes.dlsym/handle", "fcntl.flock", "fcntl.ioctl", "fcntl.lockf", "os.exec",
        "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn", "resource.prlimit", "subprocess.Popen",
        "signal.pthread_kill", "socket.getaddrinfo", "socket.gethostbyaddr", "socket.gethostbyname", "syslog.syslog",
    )
)  # fmt: skip
_ADDRESS_EVENTS = frozenset(("socket.bind", "socket.connect", "socket.sendmsg", "socket.sendto"))
_SIGNAL_EVENTS = frozenset(("os.kill", "os.killpg"))
_GUARDED = frozenset(("import", "mmap.__new__", "open", "os.fork", "sqlite3.connect")) | _PATH_EVENTS | _OTHER_EVENTS
_GUARDED |= _ADDRESS_EVENTS | _SIGNAL_EVENTS


@functools.cache
def landlock_version() -> int:
    """Return the kernel's version of Landlock; 0 if it has none."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, int(_system_call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_GET_VERSION))))


def guard(report: Reporter, scratch: Path) -> None:
    """Restrict this process and those that it forks, permanently.

    Args:
        report: Called with the reason before a forbidden action ends the process.
        scratch: The only folder that may be written to, apart from shared memory.

    Raises:
        OSError: The kernel did not restrict the process.
    """
    sys.dont_write_bytecode = True
    if landlock_version():
        _restrict_paths(scratch)
    sys.addaudithook(functools.partial(_audit, functools.partial(_end, report), os.path.join(scratch, "")))


# -- Landlock ----------------------------------------------------------------------------------------------------------


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathRule(ctypes.Structure):
    _fields_ = (("rights", ctypes.c_uint64), ("folder", ctypes.c_int32))


def _restrict_paths(scratch: Path) -> None:
    version = landlock_version()
    rights = _RIGHTS.get(version, _RIGHTS[3]) & ~(_READ_FILE | _READ_DIR)
    has_tcp, has_scope = version >= _TCP_VERSION, version >= _SCOPE_VERSION
    ruleset = _Ruleset(rights, _BOTH * has_tcp, _BOTH * has_scope)
    size = 8 * (1 + has_tcp + has_scope)
    descriptor = _checked(_CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(size), ctypes.c_uint32(0))
    # Workers hand batches over by files that torch makes and removes in /dev/shm.
    shared = _WRITE_FILE | _REMOVE_FILE | _MAKE_FILE | _TRUNCATE
    for path, allowed in (("/dev/null", _WRITE_FILE | _TRUNCATE), (str(scratch), rights), ("/dev/shm", shared)):
        with contextlib.suppress(FileNotFoundError):
            folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rule = _PathRule(allowed & rights, folder)
            _checked(_ADD_RULE, ctypes.c_int(descriptor), _PATH_BENEATH, ctypes.byref(rule), ctypes.c_uint32(0))
            os.close(folder)
    ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    _checked(_RESTRICT_SELF, ctypes.c_int(descriptor), ctypes.c_uint32(0))
    os.close(descriptor)


def _system_call(*arguments: Any) -> int:
    return int(ctypes.CDLL(None, use_errno=True).syscall(*arguments))


def _checked(*arguments: Any) -> int:
    result = _system_call(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "the kernel does not restrict this process (Landlock)")
    return result


# -- audit hook --------------------------------------------------------------------------------------------------------


def _audit(end: Callable[[str], NoReturn], scratch: str, event: str, arguments: tuple[Any, ...]) -> None:
    if event in _GUARDED and (what := _forbidden(scratch, event, arguments)) is not None:
        end(what)


def _forbidden(scratch: str, event: str, arguments: tuple[Any, ...]) -> str | None:
    """Return the forbidden action that an event announces; None if it is allowed."""
    if event == "open":
        path, _, flags = arguments
        is_forbidden = not _is_inside(path, scratch) and (flags & _WRITING or not _is_data(path))
        return f"open {_text(path)!r}" + (" for writing" if flags & _WRITING else "") if is_forbidden else None
    if event == "import":  # of code in C: it has a file
        name, file = arguments[:2]
        return f"load {name}, whose code in C is not known" if file and not is_extension_allowed(name) else None
    if event in _PATH_EVENTS:
        paths = [each for each in arguments[:2] if isinstance(each, (str, bytes, os.PathLike))]
        is_forbidden = not paths or not all(_is_inside(path, scratch) for path in paths)
    elif event in _ADDRESS_EVENTS:  # the workers' own sockets lie in the scratch folder; a connected one has no address
        is_forbidden = arguments[1] is not None and not _is_inside(arguments[1], scratch)
    elif event == "mmap.__new__":
        is_forbidden = arguments[0] >= 0 and arguments[2] == _ACCESS_DEFAULT and _is_writable(arguments[0])
        is_forbidden |= arguments[2] == _ACCESS_WRITE
    elif event == "os.fork":
        is_forbidden = sys._getframe(2).f_globals.get("__name__") != "multiprocessing.popen_fork"
    elif event in _SIGNAL_EVENTS:
        is_forbidden = arguments[1] != 0 and not _is_in_group(arguments[0], event)
    else:
        is_forbidden = event != "sqlite3.connect" or arguments[0] != ":memory:"
    shown = ", ".join(_text(each)[:60] for each in arguments if isinstance(each, (str, bytes, os.PathLike, int, tuple)))
    return f"call {event}({shown})" if is_forbidden else None


def _is_inside(path: Any, scratch: str) -> bool:
    if not isinstance(path, (str, bytes, os.PathLike)):
        return isinstance(path, int)  # an open descriptor
    return os.path.abspath(_text(path)).startswith(scratch)


def _is_data(path: Any) -> bool:
    """Return whether reading a path takes nothing away from another reader, as reading a pipe does."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, TypeError, ValueError):
        return True  # opening it fails
    is_readable = stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISBLK(mode)
    return is_readable or os.path.realpath(_text(path)) in _READABLE_DEVICES


def _is_writable(descriptor: int) -> bool:
    import fcntl  # not on Windows, where nothing is probed

    return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY


def _is_in_group(target: int, event: str) -> bool:
    own = os.getpgrp()
    if event == "os.killpg" or target <= 0:
        return target in (0, own, -own)
    try:
        return os.getpgid(target) == own
    except ProcessLookupError:
        return True


def _text(value: Any) -> str:
    return os.fsdecode(value) if isinstance(value, (str, bytes, os.PathLike)) else str(value)


def _end(report: Reporter, what: str) -> NoReturn:
    """Report the reason and end the process at once: the user's code must not handle an action that was not done."""
    try:
        text = f"an automatic probe may not {what} (PerfDoctor(probe_data=True) allows it): stopped"
        report(text[:1000].encode("utf-8", "replace"), is_error=True)
    finally:
        os._exit(1)
