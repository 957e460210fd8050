"""``lightning-perf report``: show a saved session."""

from typing import Annotated

import typer

from lightning_perf.errors import ConfigError
from lightning_perf.records import Session, load_run
from lightning_perf.records.remote import any_path
from lightning_perf.reports import formats

from .output import check_choice, write, write_error, write_page

FORMATS = ("console", *formats.FORMATS)


def report(
    session: Annotated[
        str, typer.Argument(metavar="SESSION", help="A perf_session.json, or its folder; also at a URL.")
    ],
    format_: Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")] = "console",
    out: Annotated[str | None, typer.Option("--out", help="Write to this file or URL, not to the terminal.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file of --out.")] = False,
    show_all: Annotated[
        bool, typer.Option("--all", help="Also show the outcome of each rule and what was not measured.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Show the full report instead of the brief one (console).")
    ] = False,
    diagnose: Annotated[
        bool, typer.Option("--diagnose", help="Run this version's rules on the session again.")
    ] = False,
    select: Annotated[
        list[str] | None, typer.Option(help="With --diagnose: codes or prefixes of the rules to run.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(help="With --diagnose: codes or prefixes of the rules to skip.")
    ] = None,
) -> None:
    """Show the report of a saved session, with the findings of its run. Needs neither torch nor lightning.

    Sessions of other ranks in the same folder are combined with it. If it was recorded without the other ranks (rank 0
    died, or the run was cut short), the rules run again over all of them.
    """
    check_choice("--format", format_, FORMATS)
    if (select or ignore) and not diagnose:
        raise ConfigError("--select and --ignore choose rules to run; add --diagnose to run them")
    if full and format_ != "console":
        write_error(f"--full has no effect on --format {format_}, which is always the full report")
    place = any_path(session)
    loaded = load_run(place)
    if diagnose or _can_compare_ranks_now(loaded):
        from lightning_perf.rules.engine import diagnose as run_rules

        loaded = run_rules(loaded, select=select or None, ignore=ignore or None)
    if format_ == "console":
        from lightning_perf.reports.console import brief_report, emit, session_document, to_text

        drawn = session_document(loaded, show_all, str(place)) if full or show_all else brief_report(loaded, str(place))
        if out is None:
            emit(drawn)
            return
        text = to_text(drawn)
    else:
        text = formats.FORMATS[format_].draw(loaded, show_all, str(place))
    if out is None and format_ == "html":
        write_page(text)
    else:
        write(text, out, force)


def _can_compare_ranks_now(session: Session) -> bool:
    """Return whether ranks can be compared now that could not be when the session was recorded."""
    outcome = next((one for one in session.outcomes if one.code == "PD701"), None)
    is_many = session.ranks is not None and len(session.ranks.summaries) > 1
    return is_many and outcome is not None and outcome.status == "skipped"
