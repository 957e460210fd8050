"""The tab's routes. Responses are JSON, except for the page's own files, plotly, Perfetto and traces."""

import importlib
import importlib.util
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from importlib import resources
from typing import Any, Literal

import msgspec
from tensorboard import plugin_util
from tensorboard.backend import http_util
from tensorboard.data import provider
from werkzeug import Request, Response
from werkzeug.wsgi import wrap_file

from lightning_perf.errors import PerfDoctorError, SessionError
from lightning_perf.records import Session, from_json
from lightning_perf.records.files import open_regular
from lightning_perf.reports import wording
from lightning_perf.reports.document import Section, note, section

from . import perfetto
from .catalogue import Catalogue, Entry, roots_of, trial_of
from .library import Library, Reading, Shown, read_lanes, read_ranks
from .plugin import PLUGIN_NAME

STATIC = {
    "index.js": "text/javascript",
    "blocks.js": "text/javascript",
    "figures.js": "text/javascript",
    "page.js": "text/javascript",
    "table.js": "text/javascript",
    "style.css": "text/css",
}
"""The files of the page; no other names are served."""

PLOTLY = "plotly.min.js"
PLOTLY_KEPT_S = 24 * 3600
FIRST_SEARCH_S = 1.0
"""How long the first response waits for the search of the log directory; later ones do not wait."""

Theme = Literal["light", "dark"]

_log = logging.getLogger("lightning_perf")


class Refused(Exception):
    """Raised for an invalid request; ``status`` is the HTTP status of the response."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class App:
    """The tab's WSGI application."""

    def __init__(self, context: Any) -> None:
        flags = context.flags
        self._provider = context.data_provider
        self._catalogue = Catalogue(roots_of(context.logdir, getattr(flags, "logdir_spec", None) if flags else None))
        self._library = Library(self._read_summary)
        self._experiment: tuple[Any, str] = (None, "")
        _warn_about_torch_tb_profiler()
        self._routes: dict[str, Callable[[Request], Response]] = {
            "runs": self._runs,
            "view": self._view,
            "diff": self._diff,
            "figure": self._figure,
            "trace": self._trace,
        }

    def is_active(self) -> bool:
        """Return whether the log directory holds sessions or traces; the result of the search is cached."""
        return bool(self._catalogue.entries(timeout_s=0.2))

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        request = Request(environ)
        try:
            response = self._answer(request)
        except Refused as refusal:
            response = _json(request, {"error": str(refusal)}, refusal.status)
        except Reading as reading:
            response = _json(request, {"state": "reading", "text": str(reading)})
        except PerfDoctorError as error:
            response = _json(request, _failed(error))
        return response(environ, start_response)

    def _answer(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            raise Refused(405, f"{request.method} is not supported; expected GET")
        path = request.path.partition(f"/plugin/{PLUGIN_NAME}/")[2] or request.path.lstrip("/")
        if path == "index.js":
            return self._static(request, path)
        folder, slash, name = path.partition("/")
        if slash and folder == "static":
            return self._static(request, name)
        if slash and folder == "perfetto":
            return _perfetto(request, name)
        if path not in self._routes:
            raise Refused(404, f"nothing is served at {path[:80]!r}")
        return self._routes[path](request)

    # -- routes ------------------------------------------------------------

    def _static(self, request: Request, name: str) -> Response:
        if name == PLOTLY:
            script = (resources.files("plotly") / "package_data" / PLOTLY).read_bytes()
            return _respond(request, script, "text/javascript", expires=PLOTLY_KEPT_S)
        if name not in STATIC:
            raise Refused(404, f"the page has no file {name[:80]!r}")
        if name == "index.js":
            _warm_up()
        content = (resources.files(__package__) / "static" / name).read_bytes()
        return _respond(request, content, STATIC[name])

    def _runs(self, request: Request) -> Response:
        """Respond with all runs, newest first."""
        from .views import VIEWS

        entries = self._entries(request, FIRST_SEARCH_S)
        ordered = sorted(entries.values(), key=lambda entry: (entry.changed_ns, entry.id), reverse=True)
        return _json(
            request,
            {
                "runs": [_listed(entry) for entry in ordered],
                "views": [[name, view.title] for name, view in VIEWS.items()],
                "is_complete": self._catalogue.is_complete,
                "is_cut": self._catalogue.is_cut,
            },
        )

    def _view(self, request: Request) -> Response:
        from lightning_perf.reports.sections.trace import trace_ranks_parts
        from lightning_perf.reports.sections.verdict import verdict_of

        from .views import VIEWS, draw

        name = _parameter(request, "view")
        if name not in VIEWS:
            raise Refused(404, f"there is no view {name[:80]!r}; expected one of {', '.join(VIEWS)}")
        entry = self._entry(request, "run")
        if name == "ranks" and entry.kind == "traces" and len(entry.files) > 1:
            files = [os.path.join(entry.path, file) for file in entry.files]
            records, errors = self._library.traces.ask(read_ranks, files)
            parts = [*trace_ranks_parts(records), *(note(each, "problem") for each in errors)]
            return _json(request, _ready([section("ranks", "", parts, is_short=True)]))
        try:
            shown = self._shown(request, "run", "trace")
        except PerfDoctorError as error:  # another trace may be readable
            chosen = _number_parameter(request, "trace")
            index = len(entry.files) - 1 if chosen is None else chosen
            return _json(request, _failed(error) | {"traces": entry.files, "trace": index})
        try:
            sections, empty = draw(name, shown)
        except Exception as error:  # noqa: BLE001 - shown in the view, below the verdict
            problem = [verdict_of(shown.session), *_problem(error).parts]
            sections, empty = [section("verdict", "", problem, is_short=True)], {}
        if entry.kind == "traces" and len(entry.files) > 1:
            empty.pop("ranks", None)
        return _json(request, _ready(sections) | {"empty": empty, "traces": shown.traces, "trace": shown.chosen})

    def _diff(self, request: Request) -> Response:
        from .diff import diff

        base, new = self._shown(request, "base", "base_trace"), self._shown(request, "new", "new_trace")
        return _json(request, _ready(diff(base, new)))

    def _figure(self, request: Request) -> Response:
        from lightning_perf.reports import figures

        from . import timeline

        theme: Theme = request.args.get("theme", "light")  # type: ignore[assignment]
        if theme not in ("light", "dark"):
            raise Refused(400, f"theme={theme[:40]!r}; expected light or dark")
        name = _parameter(request, "name")
        is_events = name == "trace_events"  # read from the file of the trace
        if name not in figures.FIGURES and not is_events:
            raise Refused(404, f"there is no figure {name[:80]!r}")
        shown = self._shown(request, "run", "trace")
        lanes = self._library.traces.ask(read_lanes, [shown.file]) if is_events and shown.file else ()
        try:
            drawn = (
                timeline.draw(lanes, theme)
                if is_events
                else figures.FIGURES[name].draw(_with_chosen_window(name, shown), theme)
            )
        except Exception as error:  # noqa: BLE001 - the tables are still shown
            _log.exception("PerfDoctor's tab could not draw the figure %s.", name)
            return _json(request, {"state": "failed", "error": f"{name}: {type(error).__name__}: {error}"})
        return _json(request, {"state": "ready", "figure": None if drawn is None else figures.figure_json(drawn)})

    def _trace(self, request: Request) -> Response:
        """Respond with the file of a trace, for Perfetto."""
        file = self._library.file(self._entry(request, "run"), _number_parameter(request, "trace"))
        if file is None:
            raise Refused(404, "the trace is not on this machine")
        try:
            content = open_regular(file)  # closed by the server once it is sent
        except OSError as error:
            raise Refused(404, f"the trace cannot be read: {error.strerror}") from error
        # Perfetto decompresses it.
        return Response(
            wrap_file(request.environ, content),
            content_type="application/octet-stream",
            headers=[*_SAFE_HEADERS, ("Content-Length", str(os.fstat(content.fileno()).st_size))],
            direct_passthrough=True,
        )

    # -- helpers -----------------------------------------------------------

    def _entries(self, request: Request, timeout_s: float) -> dict[str, Entry]:
        found = self._catalogue.entries(timeout_s if not self._catalogue.is_complete else 0.0)
        on_disk = {entry.head.run.id for entry in found.values() if entry.head is not None}
        summaries = self._summaries(request)
        return {**found, **{one.id: one for one in summaries if one.where[1].rpartition("/")[2] not in on_disk}}

    def _summaries(self, request: Request) -> Iterator[Entry]:
        """Yield sessions in event files; tags are run ids, so that sessions also on disk are listed once."""
        if self._provider is None:
            return
        self._experiment = plugin_util.context(request.environ), plugin_util.experiment_id(request.environ)
        context, experiment = self._experiment
        try:
            series = self._provider.list_tensors(context, experiment_id=experiment, plugin_name=PLUGIN_NAME)
        except Exception:  # noqa: BLE001 - sessions on disk are still shown
            _log.exception("PerfDoctor's tab could not list the summaries.")
            return
        for run, tags in series.items():
            for tag, one in tags.items():
                which = f", {tag.rpartition('/')[2]}" if len(tags) > 1 else ""
                yield Entry(
                    id=f"{run}/summary/{tag}",
                    label=f"{wording.line(run, 400)} (event file{wording.line(which, 60)})",
                    kind="summary",
                    stamp=f"{int(one.max_wall_time * 1e9):x}-{one.max_step}",
                    where=(run, tag),
                )

    def _read_summary(self, entry: Entry) -> Session:
        context, experiment = self._experiment
        run, tag = entry.where
        only = provider.RunTagFilter(runs=[run], tags=[tag])
        found = self._provider.read_tensors(
            context, experiment_id=experiment, plugin_name=PLUGIN_NAME, downsample=1, run_tag_filter=only
        )
        data = found.get(run, {}).get(tag, ())
        if not data:
            raise SessionError(f"the event file of {run} no longer holds a session")
        return from_json(data[-1].numpy.item(), f"the event file of {run}")

    def _entry(self, request: Request, run: str) -> Entry:
        name = _parameter(request, run)
        entry = self._catalogue.entries(0.0).get(name) or self._entries(request, FIRST_SEARCH_S).get(name)
        if entry is None:
            raise Refused(404, f"there is no run {name[:80]!r}")
        return entry

    def _shown(self, request: Request, run: str, trace: str) -> Shown:
        entry = self._entry(request, run)
        index = _number_parameter(request, trace)
        try:
            return self._library.show(entry, index, trial_of(entry, self._catalogue.entries(0.0).values()))
        except IndexError as error:
            raise Refused(404, f"{entry.id[:80]!r} has no trace {index}") from error


def _warm_up() -> None:
    """Import modules for drawing in the background while the page loads."""
    names = ("lightning_perf.tensorboard_plugin.views", "lightning_perf.reports.figures", "plotly.graph_objects")
    threading.Thread(
        target=lambda: [importlib.import_module(name) for name in names], name="perfdoctor-warm-up", daemon=True
    ).start()


def _warn_about_torch_tb_profiler() -> None:
    if importlib.util.find_spec("torch_tb_profiler") is not None:
        _log.warning(
            "torch-tb-profiler is installed; it has been unmaintained since 2023. Its PYTORCH_PROFILER tab stays empty "
            "without internet access and shows 0 for data loading, runtime and device time of operators on traces of "
            "current torch versions. The PERFDOCTOR tab reads the same files."
        )


_SAFE_HEADERS = [("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-cache")]


def _failed(error: PerfDoctorError) -> dict[str, Any]:
    """Return the response to a valid request whose run cannot be read; the view shows the error."""
    return {"state": "failed", "error": wording.line(str(error), 1_000)}


def _ready(sections: Iterable[Section]) -> dict[str, Any]:
    """Return a response with the sections; if drawing one fails, it ends with a note about the failure."""
    done: list[Section] = []
    try:
        done.extend(sections)
    except Exception as error:  # noqa: BLE001 - shown in the view
        done.append(_problem(error))
    return {"state": "ready", "sections": done}


def _problem(error: Exception) -> Section:
    _log.exception("PerfDoctor's tab could not draw a view.")
    text = f"The rest could not be drawn ({type(error).__name__}: {error})."
    return section("problem", "", [note(text, "problem")], is_short=True)


def _with_chosen_window(figure: str, shown: Shown) -> Session:
    """Return the session with only the chosen window for figures that draw the last one; the timeline marks all."""
    if shown.trace is None or figure == "timeline":
        return shown.session
    windows = tuple(window for window in shown.session.windows if window.trace is shown.trace)
    return msgspec.structs.replace(shown.session, windows=windows)


def _listed(entry: Entry) -> dict[str, Any]:
    head = entry.head
    return {
        "id": entry.id,
        "label": wording.line(entry.label, 400),
        "kind": entry.kind,
        "stage": wording.line(head.run.stage, 16) if head is not None else "",
        "stamp": entry.stamp,
        "status": wording.line(head.run.status, 16) if head is not None else "",
        "started_at": wording.line(head.run.started_at, 40) if head is not None else "",
        "time": entry.started_s,
        "error": wording.line(entry.error, 400),
    }


def _parameter(request: Request, name: str) -> str:
    value = request.args.get(name)
    if not value:
        raise Refused(400, f"the parameter {name} is missing")
    return value


def _number_parameter(request: Request, name: str) -> int | None:
    text = request.args.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        raise Refused(400, f"{name}={text[:40]!r}; expected a number")
    return int(text)


def _json(request: Request, document: Any, status: int = 200) -> Response:
    # msgspec writes NaN as null; TensorBoard's encoder writes it as a string.
    return _respond(request, msgspec.json.encode(document), "application/json", status)


def _respond(request: Request, content: bytes, kind: str, status: int = 200, expires: int = 0) -> Response:
    response: Response = http_util.Respond(request, content, kind, code=status, expires=expires)
    return response


def _perfetto(request: Request, name: str) -> Response:
    found = perfetto.file(name)
    if found is None:
        raise Refused(404, f"Perfetto has no file {name[:80]!r}")
    content, kind = found
    headers = [*_SAFE_HEADERS]
    if kind == "text/html":
        headers.append(("Content-Security-Policy", perfetto.policy(content)))
    return Response(content, content_type=kind, headers=headers)
