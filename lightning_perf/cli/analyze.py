"""``lightning-perf analyze``: diagnose any PyTorch trace."""

from typing import Annotated

import typer

from lightning_perf.errors import ConfigError, TraceError
from lightning_perf.reports.console import emit, to_text
from lightning_perf.reports.render.markdown import render
from lightning_perf.reports.sections.trace import trace_documents
from lightning_perf.rules.engine import check_codes, diagnose_trace
from lightning_perf.traces import analyze_many

from .output import BAD_INPUT, check_file, json_text, write, write_error


def analyze(
    traces: Annotated[
        list[str], typer.Argument(metavar="TRACE|DIR...", help="Traces, or folders of them; also at URLs.")
    ],
    json: Annotated[bool, typer.Option("--json", help="Print a list of records, one per trace.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print markdown.")] = False,
    out: Annotated[str | None, typer.Option("--out", help="Write to this file or URL, not to the terminal.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file of --out.")] = False,
    select: Annotated[list[str] | None, typer.Option("--select", help="Codes of the rules to run, e.g. PD3.")] = None,
    ignore: Annotated[list[str] | None, typer.Option("--ignore", help="Codes of the rules to leave out.")] = None,
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", min=1, help="Largest decompressed size of a compressed trace.")
    ] = None,
) -> None:
    """Show what host and device did in PyTorch traces, what is wrong, and what to change.

    Traces of any PyTorch program work, with or without Lightning, from one rank or many.

    Exits with 2 if a trace cannot be read; the others are still shown. Needs neither torch nor lightning.
    """
    if json and markdown:
        raise ConfigError("--json and --markdown are two formats; choose one")
    check_codes(select or None, ignore or None)
    check_file(out, force)
    records, errors = analyze_many(traces, max_bytes=max_bytes)
    if not records:
        raise TraceError("; ".join(map(str, errors)))
    diagnosed = [diagnose_trace(record, select or None, ignore or None) for record in records]
    if json:
        write(json_text(diagnosed), out, force)
    elif markdown:
        write("\n".join(map(render, trace_documents(diagnosed))), out, force)
    elif out is None:
        emit(trace_documents(diagnosed))
    else:
        write(to_text(trace_documents(diagnosed), width=100), out, force)
    for error in errors:
        write_error(str(error))
    if errors:
        raise typer.Exit(BAD_INPUT)
