"""Hangs: times without progress in the training."""

from .base import Record


class WorkerState(Record, frozen=True, kw_only=True):
    """A process that Python's multiprocessing started, such as a DataLoader worker, during a hang.

    Attributes:
        state: ``running``, ``sleeping``, ``waiting for a disk``, ``ended`` or ``stopped``; empty if unknown.
        waits_in: The kernel function in which it waits; empty if unknown.
        where: The user's innermost line, as ``Hang.where``; empty if unknown.
    """

    pid: int
    state: str = ""
    waits_in: str = ""
    where: str = ""


class RankState(Record, frozen=True, kw_only=True):
    """The last status that a rank wrote, ``age_s`` ago.

    Attributes:
        n_steps: Completed steps.
        busy: Why it does not count as hanging although it makes no progress, e.g. ``"validation"``; otherwise empty.
        where: As ``Hang.where``; empty if it was not read.
    """

    rank: int
    n_steps: int
    phase: str
    busy: str = ""
    where: str = ""
    age_s: float = 0.0


class Hang(Record, frozen=True, kw_only=True):
    """One hang.

    Attributes:
        n_steps: Steps completed before it.
        phase: The phase that did not end.
        quiet_s: Seconds without progress when it was reported, or until an error ended the run.
        limit_s: The limit that ``quiet_s`` exceeded.
        lasted_s: Its duration; None if it lasted until the run ended.
        where: The user's innermost line in the training thread, or else in a worker: ``"train.py:31 in forward"``.
        code: Text of that line.
        call: What the training thread was calling, e.g. ``"socket.recv"``; empty if unknown.
        cpu_fraction: Share of a core that the training thread used; None if unknown.
        workers: Empty without worker processes.
        ranks: Empty with one rank, or if ranks cannot exchange files.
        file: The file with the stacks of all threads, relative to the session; None if none could be written.
    """

    n_steps: int
    phase: str
    quiet_s: float
    limit_s: float
    median_step_s: float | None = None
    lasted_s: float | None = None
    where: str = ""
    code: str = ""
    call: str = ""
    cpu_fraction: float | None = None
    workers: tuple[WorkerState, ...] = ()
    ranks: tuple[RankState, ...] = ()
    file: str | None = None
