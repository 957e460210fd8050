"""The TensorBoard plugin that loads the tab.

TensorBoard imports this module at startup, and an exception here would disable all other tabs. So this module imports
only what TensorBoard has loaded; the rest is imported when the tab is opened, and errors are shown there.
"""

import json
import logging
from collections.abc import Callable, Iterable
from typing import Any

from tensorboard.plugins import base_plugin

PLUGIN_NAME = "perfdoctor"  # same as in reports.tensorboard, which is not imported here

_log = logging.getLogger("lightning_perf")

_FALLBACK = """export async function render() {
  const message = document.createElement('p');
  message.id = 'fault';
  message.style.cssText = 'font-family: sans-serif; margin: 2em; background: white; color: black';
  message.textContent = %s;
  document.body.append(message);
}
"""


class PerfDoctorPlugin(base_plugin.TBPlugin):  # type: ignore[misc]
    """Entry point; everything that can fail is in ``app.py``."""

    plugin_name = PLUGIN_NAME

    def __init__(self, context: Any) -> None:
        self._context = context
        self._app: Any = None

    def get_plugin_apps(self) -> dict[str, Callable[..., Iterable[bytes]]]:
        return {"/*": self._serve}

    def is_active(self) -> bool:
        """Return whether there are sessions or traces on disk; TensorBoard itself detects summaries."""
        try:
            return bool(self._loaded().is_active())
        except Exception:  # noqa: BLE001 - other tabs keep working
            _log.exception("PerfDoctor's tab could not look for sessions and traces.")
            return False

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="PerfDoctor")

    def _loaded(self) -> Any:
        if self._app is None:
            from .app import App

            self._app = App(self._context)
        return self._app

    def _serve(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            return self._loaded()(environ, start_response)  # type: ignore[no-any-return]
        except Exception as error:  # noqa: BLE001 - shown in the tab; other tabs keep working
            _log.exception("PerfDoctor's tab failed.")
            text = f"PerfDoctor's tab failed ({type(error).__name__}: {error}). The traceback is in TensorBoard's log."
            if environ.get("PATH_INFO", "").endswith("/index.js"):
                status, kind, body = "200 OK", "text/javascript", _FALLBACK % json.dumps(text)
            else:
                status, kind, body = "500 Internal Server Error", "application/json", json.dumps({"error": text})
            start_response(status, [("Content-Type", kind), ("X-Content-Type-Options", "nosniff")])
            return [body.encode()]
