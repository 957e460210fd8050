"""Merge the sessions that the ranks of one run saved."""

import glob
import os
import re
from datetime import datetime
from typing import Any

import msgspec

from lightning_perf.errors import SessionError

from .ranks import MAX_FOUND, RANKS_FOLDER, MissingRank, RankSummary, combine_ranks
from .remote import AnyPath, RemotePath, any_path, exists, is_dir
from .session import SESSION_FILE, Session, load

MAX_RANKS = 100_000
"""Largest world size at which missing ranks are listed one by one; a file may contain any number."""

_CLOCKS_DIFFER_S = 300.0
"""Largest difference between start times of sessions of one run, by clock differences and process start."""


def load_run(path: str | os.PathLike[str] | RemotePath) -> Session:
    """Read the session of a run, merged with those of its other ranks.

    Args:
        path: As for ``load``. In a folder without a session of rank 0 (which may have died), that of the lowest rank
            found is used instead.

    Returns:
        The session; ``ranks`` contains every rank whose file was found, also those unknown to rank 0.

    Raises:
        SessionError: As for ``load``.
    """
    source = any_path(path)
    try:
        file = source / SESSION_FILE if is_dir(source) else source
        others = _of_other_ranks(file)
        has_first = exists(file)
    except OSError as error:
        raise SessionError(f"cannot read a session from {source}: {error.strerror or error}") from error
    readable: list[Session] = []
    problems: list[MissingRank] = []
    for other in others:
        try:
            readable.append(load(other))
        except SessionError as error:
            problems.append(MissingRank(rank=int(other.stem.rpartition("rank")[2]), reason=str(error)))
    session = load(source) if has_first or not readable else min(readable, key=lambda one: one.run.rank)
    if not others or session.run.world_size < 2:
        return session
    known = list(session.ranks.summaries) if session.ranks is not None else []
    for found in readable:
        if _is_same_run(session, found) and found.ranks is not None:
            names = tuple(f"{finding.code} {finding.name}" for finding in found.findings[:MAX_FOUND])
            known += [msgspec.structs.replace(one, found=names or one.found) for one in found.ranks.summaries]
    return _with_ranks(session, known, problems)


def _of_other_ranks(file: AnyPath) -> list[Any]:
    """Return the files of other ranks, without those of earlier runs, whose names end with the id of their run."""
    folder, is_ranks = file.parent / RANKS_FOLDER, re.compile(re.escape(file.stem) + r"\.rank[0-9]+\.json")
    files = folder.glob(f"{glob.escape(file.stem)}.rank*.json") if is_dir(folder) else ()
    return sorted(one for one in files if is_ranks.fullmatch(one.name))


def _is_same_run(one: Session, other: Session) -> bool:
    """Return whether two ranks' sessions belong to one run; the folder may hold files of an earlier one."""
    if one.run.world_size != other.run.world_size or one.run.stage != other.run.stage:
        return False
    # Python 3.10 does not read Z.
    texts = (session.run.started_at.replace("Z", "+00:00") for session in (one, other))
    try:
        first, second = map(datetime.fromisoformat, texts)
        return abs((first - second).total_seconds()) <= _CLOCKS_DIFFER_S
    except (ValueError, TypeError):  # no times, or one with a time zone and one without
        return True


def _with_ranks(session: Session, known: list[RankSummary], problems: list[MissingRank]) -> Session:
    reported = {summary.rank for summary in known}
    unread = {problem.rank for problem in problems}
    earlier = session.ranks.missing if session.ranks is not None else ()
    missing = [one for one in earlier if one.rank not in reported | unread]
    missing += [one for one in problems if one.rank not in reported]
    absent = set(range(min(session.run.world_size, MAX_RANKS))) - reported - {one.rank for one in missing}
    missing += [MissingRank(rank=rank, reason="it left no session") for rank in sorted(absent)]
    collected_s = session.ranks.collected_s if session.ranks is not None else None
    ranks = combine_ranks(tuple(known), session.run.world_size, tuple(missing), collected_s)
    return msgspec.structs.replace(session, ranks=ranks)
