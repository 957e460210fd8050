"""Count the warnings by which a device reports calls that synchronize, in one step."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from lightning_perf import interrupts
from lightning_perf.seams import Undos, change_attribute

from .code_lines import CodeLines, SourceLine
from .tracing import StepTracer

_MESSAGE = "called a synchronizing"
_PROTOTYPE = "Synchronization debug mode is a prototype"


def sync_debug_of(device: torch.device) -> Any:
    """Return the module with the device's synchronization debug mode; None if there is none."""
    return torch.cuda if device.type == "cuda" else None


class DeviceWarnings(StepTracer):
    """Counts synchronization warnings of one step by line, and passes all other warnings on."""

    def __init__(self, debug: Any) -> None:
        self.failure, self.cost_ns = "", 0
        self.n_by_place: dict[SourceLine, int] = {}
        self._debug = debug
        self._lines = CodeLines()
        self._catch: warnings.catch_warnings[None] | None = None
        self._undos = Undos()
        self._before = 0

    def open(self) -> None:
        """Begin the step, unless the user has set the mode."""
        self._before = int(self._debug.get_sync_debug_mode())
        if self._before:
            self.failure = f"torch.cuda.set_sync_debug_mode is {self._before} already: it is left as it is"
            return
        self._catch = warnings.catch_warnings()  # first: an interrupt may come right after entering
        self._catch.__enter__()
        warnings.filterwarnings("always", message=f".*{_MESSAGE}.*")
        warnings.filterwarnings("ignore", message=f".*{_PROTOTYPE}.*")
        # `catch_warnings` restores only filters where Python keeps them by context: in 3.14 without the GIL.
        change_attribute(warnings, "showwarning", partial(self._show, warnings.showwarning), self._undos)
        try:
            self._debug.set_sync_debug_mode(1)
        except Exception:
            self.close()
            raise

    def close(self) -> bool:
        catch = self._catch
        if catch is not None:
            try:
                self._debug.set_sync_debug_mode(self._before)
            finally:
                self._undos.close()
                with interrupts.suppress(RuntimeError):  # an interrupt came before it was entered
                    catch.__exit__(None, None, None)
                self._catch = None
        return True

    def _show(self, original: Callable[..., None], message: Any, *rest: Any, **named: Any) -> None:
        """Count a synchronization warning; let ``original``, the former ``warnings.showwarning``, show any other."""
        if _MESSAGE in str(message):
            place = self._lines.place()
            self.n_by_place[place] = self.n_by_place.get(place, 0) + 1
        else:
            original(message, *rest, **named)
