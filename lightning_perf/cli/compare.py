"""``lightning-perf compare``: compare two sessions, also as a gate in CI."""

import contextlib
import math
from typing import Annotated, Any

import typer

from lightning_perf.errors import ConfigError, SessionError
from lightning_perf.records import SESSION_FILE, Comparison, load_run
from lightning_perf.records.remote import any_path, exists, is_dir
from lightning_perf.reports.sections.comparison import comparison_document, gate_line
from lightning_perf.stats.comparison import Source, compare_sessions

from .output import FORMATS, FOUND, check_choice, show, write_error

MAX_RUNS = 64


def compare(
    base: Annotated[
        str, typer.Argument(metavar="BASE", help="A session, its folder, or a folder of runs; also a URL.")
    ],
    new: Annotated[
        str | None, typer.Argument(metavar="NEW", help="What to compare with BASE. With --baseline, give NEW only.")
    ] = None,
    baseline: Annotated[
        str, typer.Option(metavar="history:BRANCH", help="Take the last runs of a branch or commit as BASE.")
    ] = "",
    fail_on_regression: Annotated[
        float | None,
        typer.Option("--fail-on-regression", metavar="PCT", help="Exit with 1 if times grew by more than PCT %."),
    ] = None,
    format_: Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")] = "console",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    out: Annotated[str | None, typer.Option("--out", help="Write to this file or URL, not to the terminal.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file of --out.")] = False,
) -> None:
    """Compare two sessions: times with intervals, memory, findings, settings, environment and trials.

    With a folder of several runs (base/1, base/2, ...), intervals include the variation between runs.

    With --fail-on-regression, exits with 1 if the time per step, with or without the time between steps, grew by more
    than PCT % over its whole 95 % interval; with 2 if that cannot be decided. Needs neither torch nor lightning.
    """
    if as_json and format_ not in ("console", "json"):
        raise ConfigError(f"--json and --format {format_} are two formats; choose one")
    form = "json" if as_json else format_
    check_choice("--format", form, FORMATS)
    if fail_on_regression is not None and not (math.isfinite(fail_on_regression) and fail_on_regression >= 0):
        raise ConfigError(f"--fail-on-regression {fail_on_regression}: expected a percentage of at least 0, e.g. 5")
    comparison = compare_sessions(*_sides(base, new, baseline))
    show(comparison_document(comparison), comparison, form, out, force)
    if fail_on_regression is not None:
        _gate(comparison, fail_on_regression)


def _sides(base: str, new: str | None, baseline: str) -> tuple[list[Source], list[Source]]:
    if not baseline:
        if new is None:
            raise ConfigError(f"compare {base} has nothing to compare with; expected BASE NEW, or NEW and --baseline")
        return _sessions(base), _sessions(new)
    if new is not None:
        raise ConfigError(f"compare {base} {new} --baseline {baseline} has two baselines; expected only NEW")
    from .history import baseline_sides

    return baseline_sides(baseline, _sessions(base))


def _gate(comparison: Comparison, percent: float) -> None:
    step = comparison.time("step")
    regressions = comparison.regressions(percent / 100)
    if regressions:
        write_error(gate_line(regressions, percent, comparison.per))
        raise typer.Exit(FOUND)
    if step is None or step.ratio is None:
        reason = step.reason if step is not None else "no step was measured"
        raise SessionError(f"--fail-on-regression cannot be judged: {reason}")


def _sessions(path: str) -> list[Source]:
    """Return the sessions of one side."""
    place = any_path(path)
    runs: list[Any] = []
    with contextlib.suppress(OSError):  # load_run raises a better error
        if is_dir(place) and not exists(place / SESSION_FILE):
            runs = sorted(file.parent for file in place.glob(f"*/{SESSION_FILE}"))
    if not runs:
        return [(str(place), load_run(place))]
    if len(runs) > MAX_RUNS:
        raise ConfigError(f"{place} holds {len(runs)} runs; expected at most {MAX_RUNS}")
    return [(str(run), load_run(run)) for run in runs]
