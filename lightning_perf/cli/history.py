"""``lightning-perf history``: earlier runs on this machine; ``lightning-perf bisect``: what made a training slower."""

import os
import shlex
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from lightning_perf.errors import ConfigError, SessionError
from lightning_perf.history.entry import reduced
from lightning_perf.history.store import MAX_RUNS, VARIABLE, History, Row, default_file
from lightning_perf.history.suspects import Suspect, suspects
from lightning_perf.records import Comparison, Session, load_run
from lightning_perf.records.remote import RemotePath, any_path
from lightning_perf.reports.cells import Column, Rows, Value, number, seconds
from lightning_perf.reports.document import Code, Document, facts, section, table
from lightning_perf.reports.sections.comparison import change, comparison_document
from lightning_perf.reports.wording import count
from lightning_perf.stats.comparison import Source, compare_sessions
from lightning_perf.stats.next_run import LAST_RUNS

from .output import FORMATS, check_choice, json_text, show, write_stdout

ACTIONS = ("list", "show", "compare", "prune")
PREFIX = "history:"


def history(
    action: Annotated[str, typer.Argument(metavar="ACTION", help=f"One of {', '.join(ACTIONS)}.")] = "list",
    run: Annotated[
        str, typer.Argument(metavar="[RUN]", help="Beginning or end of a run's id; the newest run by default.")
    ] = "",
    last: Annotated[bool, typer.Option("--last", help="The newest run; the default.")] = False,
    n: Annotated[int, typer.Option("--number", "-n", min=1, help="Runs to list.")] = 20,
    keep: Annotated[int, typer.Option(min=0, help="Runs that prune keeps, the newest ones.")] = MAX_RUNS,
    format_: Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")] = "console",
) -> None:
    """Show the runs that PerfDoctor recorded on this machine.

    `list` lists them, `show` reports one, `compare` compares one with the five before it of the same training and names
    what changed, `prune` drops old ones. LIGHTNING_PERF_HISTORY names the file, or is `off`.
    """
    check_choice("history", action, ACTIONS)
    check_choice("--format", format_, FORMATS)
    if last and run:
        raise ConfigError(f"--last and {run} are two runs; choose one")
    if run and action in ("list", "prune"):
        raise ConfigError(f"history {action} takes no run; lightning-perf history show {run} reports one")
    with opened() as found:
        if action == "prune":
            n_dropped = found.prune(keep)
            record = {"n_dropped": n_dropped, "file": str(found.file)}
            text = f"{count(n_dropped, 'run')} dropped from {found.file}"
            write_stdout(json_text(record) if format_ == "json" else text)
        elif action == "list":
            rows = found.rows()
            show(_listed(rows, n, found.file), rows[:n], format_)
        elif action == "show":
            from lightning_perf.reports.session_document import session_document

            session = found.find(run)
            show(session_document(session), session, format_)
        else:
            session = found.find(run)
            base = found.same_training(session, LAST_RUNS)
            if not base:
                raise SessionError(f"run {session.run.id} is the first of its training: nothing to compare it with")
            _show_comparison(base, [session], format_)


def bisect(
    good: Annotated[str, typer.Argument(metavar="GOOD", help="A fast run of the history, or a session's path.")],
    bad: Annotated[str, typer.Argument(metavar="BAD", help="A slow run of the same training, likewise.")],
    format_: Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")] = "console",
) -> None:
    """Print the trial that tries each setting of a fast run on a slow one, and what else differs."""
    check_choice("--format", format_, FORMATS)
    sides = []
    for name in (good, bad):
        path = any_path(name)
        if isinstance(path, RemotePath) or os.path.exists(name):
            sides.append(reduced(load_run(path)))
        else:
            with opened() as found:
                sides.append(found.find(name))
    _show_comparison([sides[0]], [sides[1]], format_)


@contextmanager
def opened() -> Iterator[History]:
    """Open the history; errors become one line.

    Raises:
        ConfigError: It is switched off.
        SessionError: It cannot be read.
    """
    file = default_file()
    if file is None:
        given = os.environ.get(VARIABLE)
        raise ConfigError("no history is kept: " + (f"{VARIABLE} is {given}" if given else "there is no home folder"))
    try:
        yield History(file)
    except sqlite3.Error as error:
        raise SessionError(f"the history {file} cannot be read now: {error}") from error


def baseline_sides(name: str, new: Sequence[Source]) -> tuple[list[Source], list[Source]]:
    """Return the last runs of a training on a branch or commit, given as ``history:main``, and its new runs as kept.

    Raises:
        ConfigError: The name has another form.
        SessionError: There are none.
    """
    branch = name.removeprefix(PREFIX)
    if not name.startswith(PREFIX) or not branch:
        raise ConfigError(f"--baseline {name}: expected {PREFIX} and a branch or commit, e.g. {PREFIX}main")
    with opened() as found:
        runs = found.same_training(new[0][1], LAST_RUNS, branch=branch)
    if not runs:
        raise SessionError(f"{found.file} has no earlier run of this training on {branch}")
    return [(f"{PREFIX}{one.run.id}", one) for one in runs], [(source, reduced(session)) for source, session in new]


def _listed(rows: list[Row], n: int, file: Path) -> Document:
    """Return the newest ``n`` rows as a table; changes refer to the earlier rows too."""
    before: dict[str, float] = {}
    cells: Rows = []
    for row in reversed(rows):
        step_change = change(before.get(row.key), row.step_s)
        if row.step_s:
            before[row.key] = row.step_s
        cells.append((row.id, row.started_at.replace("T", " ").rstrip("Z"), row.model or "", row.status,
                      number(row.n_steps), seconds(row.step_s), step_change, row.verdict, row.branch or "",
                      (row.commit_id or "")[:7]))  # fmt: skip
    heads = ("run", "started (UTC)", "model", Column("status", 130), Column("steps", 110), "step", "change", "verdict",
             Column("branch", 120), Column("commit", 100))  # fmt: skip
    n_runs = f"{n} of {count(len(rows), 'run')}" if n < len(rows) else count(len(rows), "run")
    facts_of_list = [n_runs, str(file), "change: since the previous run of the same training"]
    listed = section("runs", "", [table(heads, cells[::-1][:n], key="runs"), facts(facts_of_list)], is_short=True)
    return Document(None, (), (listed,), title="History")


def _show_comparison(base: list[Session], new: list[Session], form: str) -> None:
    """Show a comparison, followed by the suspects and the trial that tries them."""
    comparison = compare_sessions([(one.run.id, one) for one in base], [(one.run.id, one) for one in new])
    found = suspects(base, new, comparison)
    command = _trial_command(found, new[-1])
    rows: Rows = [(str(one), Value(f"{one.score:.2f}", one.score), one.treatment) for one in found]
    named = section("suspects", "What changed, the likeliest cause first",
                    [table(("change", "score", "treatment"), rows, key="suspects"),
                     Code((command,) if command else (), label="try the earlier values; add the script's arguments",
                          language="shell")],
                    is_short=True)  # fmt: skip
    document = comparison_document(comparison)
    first, *others = document.sections
    rest = [each for each in others if each.key not in ("settings", "environment")]
    show(
        msgspec.structs.replace(document, sections=(first, named, *rest)),
        Suspected(comparison=comparison, suspects=tuple(found), trial=command),
        form,
    )


class Suspected(msgspec.Struct, frozen=True, kw_only=True):
    """What `history compare` and `bisect` print as JSON."""

    comparison: Comparison
    suspects: tuple[Suspect, ...]
    trial: str


def _trial_command(found: list[Suspect], session: Session) -> str:
    """Return the command that tries the earlier values of settings; empty if none can be tried."""
    tried = ",".join(dict.fromkeys(one.treatment for one in found if one.treatment))
    script = session.provenance.script if session.provenance is not None else None
    return f"lightning-perf trial --try {tried} -- python {shlex.quote(script or 'train.py')}" if tried else ""
