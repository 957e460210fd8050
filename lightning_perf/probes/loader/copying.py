"""Decide which loaders can be measured on copies in a forked child, and separate the child from its parent."""

import contextlib
import multiprocessing
import os
import stat
import sys
import threading
from collections.abc import Iterable
from multiprocessing import process, resource_tracker
from pathlib import Path
from typing import Any

import psutil
from torch.utils.data import BatchSampler, DataLoader, IterableDataset
from torch.utils.data._utils import signal_handling

from lightning_perf.cgroups import free_bytes
from lightning_perf.loader_kinds import inner_loader, n_later_stages, why_unlike_dataloader
from lightning_perf.probes import plain

from .guard import landlock_version
from .held import holds_device_tensors, why_state_is_shared


def why_not_copied(loader: Any) -> str | None:
    """Return why a loader cannot be probed on copies; None if it can. Neither iterates nor changes the loader."""
    if not sys.platform.startswith("linux"):
        return f"a process cannot be forked safely on {sys.platform}"
    if type(loader) is not DataLoader and (reason := why_unlike_dataloader(loader)):
        return reason
    if n_later_stages(loader):
        return "further stages of the WebLoader run in the training process: a copy without them measures other batches"
    loader = inner_loader(loader)
    if plain.is_a(plain.stored(plain.stored(loader.dataset, "input_dir"), "url"), str):
        return "chunks of the dataset are downloaded to a cache, from which the training reads as well"
    if plain.length_of(loader.dataset) == 0:  # a length that only user code can compute is read in the child
        return "the dataset is empty"
    if holds_device_tensors(loader.dataset):
        return "the dataset holds tensors on a device, which a forked process cannot use"
    return None


def why_not_automatic(loader: Any) -> str | None:
    """Return why a loader is not probed automatically, but only on request; None if probing it is safe."""
    if why_unlike_dataloader(loader):
        return None
    loader = inner_loader(loader)
    if plain.is_a(loader.dataset, IterableDataset):
        return "an IterableDataset may read from a stream that a copy of it would read from as well"
    if not landlock_version():
        return "this kernel cannot keep a probe from writing files (it has no Landlock)"
    free, used = free_bytes(), psutil.Process().memory_info().rss
    if free < used:
        return f"memory is short: {free / 2**20:.0f} MiB are free, and a copy may take {used / 2**20:.0f} MiB"
    return why_state_is_shared(loader)


def why_no_batches(loader: DataLoader[Any]) -> str | None:
    """Return why a few batches of random samples cannot be timed automatically; None if they can.

    The loader must be one that ``why_not_copied`` accepts.
    """
    if loader.num_workers == 0:
        return "the loader has no workers: its own fetches are that cost"
    if isinstance(loader.dataset, IterableDataset):
        return "the dataset is an IterableDataset: samples cannot be taken by index"
    if type(loader.batch_sampler) is not BatchSampler or loader.batch_size is None:
        return "batch_size is None: the user's own (batch) sampler decides what a batch is"
    return why_state_is_shared(loader)


def copies_dataset(loader: DataLoader[Any]) -> bool:
    """Return whether the loader's workers get a pickled copy of the dataset instead of being forked with it."""
    # allow_none: otherwise this call fixes the default method, and a later set_start_method raises.
    context = loader.multiprocessing_context or multiprocessing
    method = context.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    return bool(method != "fork")


# -- in the child -----------------------------------------------------------------------------------------------------


def separate_descriptors(keep: Iterable[int] = ()) -> None:
    """Reopen the child's files for reading at their present positions; close its sockets and pipes, except ``keep``.

    After a fork both processes share one position in each open file: reading a dataset here would move the parent's
    position, and writing to a shared file, pipe or connection would look as if the parent had written.
    """
    kept = {0, 1, 2, *keep}
    nowhere = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor in kept or descriptor == nowhere:
            continue
        with contextlib.suppress(OSError):
            mode = os.fstat(descriptor).st_mode
            if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
                os.dup2(nowhere, descriptor)
            elif stat.S_ISREG(mode):
                _open_again(descriptor, nowhere)
    os.close(nowhere)


def _open_again(descriptor: int, nowhere: int) -> None:
    info = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii").split()
    position, flags = int(info[info.index("pos:") + 1]), int(info[info.index("flags:") + 1], 8)
    if flags & os.O_ACCMODE == os.O_WRONLY:
        os.dup2(nowhere, descriptor)
        return
    flags &= ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_APPEND | os.O_ACCMODE)  # for reading only
    flags &= ~os.O_NOFOLLOW  # which SQLite sets: the path below is a link
    try:
        fresh = os.open(f"/proc/self/fd/{descriptor}", flags)
    except OSError:  # it cannot be opened again: no file is better than one shared with the parent
        os.dup2(nowhere, descriptor)
        return
    os.lseek(fresh, position, os.SEEK_SET)
    os.dup2(fresh, descriptor)
    os.close(fresh)


def forget_parents_processes(scratch: Path) -> None:
    """Let the child start workers even if the parent is a daemon; multiprocessing puts its files into ``scratch``."""
    me = process.current_process()
    config: dict[str, Any] = me._config  # type: ignore[attr-defined]
    config["daemon"] = False  # a daemon may not have children
    config["tempdir"] = str(scratch)
    config["semprefix"] = f"/{scratch.name}"
    process._children.clear()  # type: ignore[attr-defined]
    # The parent's tracker would warn at its end of semaphores that a killed child could not release.
    for name in ("_fd", "_pid"):
        if hasattr(resource_tracker._resource_tracker, name):
            setattr(resource_tracker._resource_tracker, name, None)
    # The child has reset the parent's handler; this makes its own loaders install theirs.
    signal_handling._SIGCHLD_handler_set = False
    sys.setprofile(None)
    sys.settrace(None)
    threading.setprofile(None)
    threading.settrace(None)
