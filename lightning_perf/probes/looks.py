"""Trace single steps: module times, operators, and the device's own synchronization warnings.

A sampled step counts in no statistic. Each round samples a step per kind, and a second one if that is cheap. Later
rounds are ever rarer.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import torch

from lightning_perf.records import SyncCalls

from .clock import NEVER, DeviceEvent
from .code_lines import CodeLines, Place
from .compiler import has_compiled
from .dispatch_modes import can_look_at_compiled, current_mode
from .loop import LoopProbe
from .model import is_compiled
from .module_times import ModuleTime, ModuleTimes, mean_times
from .sync_record import sync_calls
from .syncs import OperatorTracer, entry_cost_ns

ROUNDS = (20, 220, 2020)
"""Steps before each round: after the first batches, which allocate and tune, and then ten times less often."""

_PLAN = ("modules", "operators")
MAX_SHARE = 0.01
"""Share of the time since the first step that sampling may have cost before a round's second samples: it would cost too
much in a fit of a few dozen steps."""


_MESSAGE = "called a synchronizing"
_PROTOTYPE = "Synchronization debug mode is a prototype"


def sync_debug_of(device: torch.device) -> Any:
    """Return the module with the device's synchronization debug mode; None if there is none."""
    return torch.cuda if device.type == "cuda" else None


class DeviceWarnings:
    """Counts synchronization warnings of one step by line, and passes all other warnings on."""

    def __init__(self, debug: Any) -> None:
        self.n_by_place: dict[Place, int] = {}
        self.reason = ""
        self._debug = debug
        self._lines = CodeLines()
        self._catch: warnings.catch_warnings[None] | None = None
        self._before = 0

    def open(self) -> bool:
        """Begin the step; return False if the user has set the mode, with ``reason``."""
        self._before = int(self._debug.get_sync_debug_mode())
        if self._before:
            self.reason = f"torch.cuda.set_sync_debug_mode is {self._before} already: it is left as it is"
            return False
        self._catch = warnings.catch_warnings()  # first: an interrupt may come right after entering
        self._catch.__enter__()
        warnings.filterwarnings("always", message=f".*{_MESSAGE}.*")
        warnings.filterwarnings("ignore", message=f".*{_PROTOTYPE}.*")
        shows = warnings.showwarning
        warnings.showwarning = self._shower(shows)
        try:
            self._debug.set_sync_debug_mode(1)
        except Exception:
            self.close()
            raise
        return True

    def close(self) -> None:
        """End the step; restore mode and filters. Can be called twice."""
        catch = self._catch
        if catch is None:
            return
        try:
            self._debug.set_sync_debug_mode(self._before)
        finally:
            with contextlib.suppress(RuntimeError):  # an interrupt came before it was entered
                catch.__exit__(None, None, None)
            self._catch = None

    def _shower(self, shows: Callable[..., Any]) -> Callable[..., None]:
        def show(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
            if _MESSAGE in str(message):
                place = self._lines.place()
                self.n_by_place[place] = self.n_by_place.get(place, 0) + 1
            else:
                shows(message, category, filename, lineno, file, line)

        return show


class StepLooks:
    """The sampled steps of one run.

    ``make_event`` is None without a device clock.
    """

    def __init__(
        self,
        pl_module: Any,
        device: Any,
        loop: LoopProbe,
        now_ns: Callable[[], int],
        on_fail: Callable[[Exception], None],
        depth: int = 1,
        make_event: Callable[[], DeviceEvent] | None = None,
    ) -> None:
        self.missing: dict[str, str] = {}
        self.outside_ns = 0
        """What looking has cost the steps looked at, as far as known."""
        self.is_off = False
        self._module, self._device, self._loop = pl_module, device, loop
        self._now_ns, self._on_fail, self._depth, self._make_event = now_ns, on_fail, depth, make_event
        self._debug = sync_debug_of(device)
        self._rounds = list(ROUNDS)
        self._plan: list[tuple[str, bool]] = []  # what to look at, and whether it was looked at in this round before
        self._next = self._rounds.pop(0)
        self._entry_ns: float | None = None
        self._open: OperatorTracer | ModuleTimes | DeviceWarnings | None = None
        self._unclosed: list[OperatorTracer] = []
        self._operators: list[OperatorTracer] = []
        self._modules: list[dict[str, ModuleTime]] = []
        self._unresolved: list[ModuleTimes] = []
        self._warned: dict[Place, int] | None = None

    # -- the loop's events --------------------------------------------------------------------------------------------

    @property
    def next_step(self) -> int:
        """Index of the next step that this probe must observe."""
        return self._next

    def batch_begins(self, batch: Any = None) -> None:
        """Start to observe the step if it is due."""
        if self._loop.main.n_steps >= self._next and not self.is_off:
            self._guarded(self._look)

    def row_ends(self) -> None:
        """Handle the end of a step's row."""
        if self._open is not None:
            self._guarded(self._close)

    def enters(self, name: str) -> None:
        """Handle the start of a part of the sampled step."""
        look = self._open
        if isinstance(look, ModuleTimes):
            self._guarded(look.enters, name)

    def leaves(self, name: str) -> None:
        """Handle the end of a part of the sampled step."""
        look = self._open
        if isinstance(look, ModuleTimes):
            self._guarded(look.leaves, name)

    def _look(self) -> None:
        if self._loop.timeline.edges is not None or self._loop.is_profiling:
            return  # somebody else looks at this step: at the next one, then
        self._unclosed = [look for look in self._unclosed if not look.close()]
        if self._unclosed:
            return
        look = self._begun(kind) if (kind := self._next_kind()) else None
        if look is None:
            return
        self._loop.main.leave_out()
        self._open = look
        self._loop.on_row_end = self.row_ends
        if isinstance(look, DeviceWarnings):
            if not look.open():
                self.missing["sync_calls.device"] = look.reason
                self._open = self._loop.on_row_end = None
            return
        self._loop.watch_edges(self)  # also where nothing is done at them: nobody else then looks at this step
        look.open()

    def _next_kind(self) -> str:
        """Return what to sample in this step; empty at the end of a round."""
        if not self._plan:
            kinds = (*_PLAN, "device") if self._debug is not None and self._warned is None else _PLAN
            self._plan = [*((kind, False) for kind in kinds), *((kind, True) for kind in _PLAN)]
        kind, is_again = self._plan.pop(0)
        if is_again and self._is_expensive():
            kind = ""
            self._plan.clear()
        if not self._plan:
            self._next = self._rounds.pop(0) if self._rounds else NEVER
        return kind

    def _is_expensive(self) -> bool:
        first_ns = self._loop.first_step_end_ns
        return first_ns is None or self.outside_ns > MAX_SHARE * (self._now_ns() - first_ns)

    def _begun(self, kind: str) -> OperatorTracer | ModuleTimes | DeviceWarnings | None:
        if current_mode() is not None:  # it would see what ours does
            path = "model_profile.modules" if kind == "modules" else "sync_calls"
            self.missing[path] = "a dispatch mode of the script is in place"
            return None
        is_any_compiled = has_compiled() or is_compiled(self._module)
        if kind == "modules":
            if is_any_compiled:
                self.missing["model_profile.modules"] = "hooks on modules would make torch recompile them"
                return None
            return ModuleTimes(self._module, self._depth, self._now_ns, self._make_event)
        if kind == "device":
            return DeviceWarnings(self._debug) if self._debug is not None else None
        if is_any_compiled and not can_look_at_compiled():
            self.missing["sync_calls"] = (
                "compiled code would run uncompiled while this version of torch traces operators"
            )
            return None
        if self._entry_ns is None:
            self._entry_ns = entry_cost_ns()
        return OperatorTracer(self._device, self._entry_ns, self._loop.timeline.phase, self._now_ns)

    def _close(self) -> None:
        look = self._open
        self._loop.on_row_end = None
        if isinstance(look, DeviceWarnings):
            look.close()
            self._open = None
            self._warned = look.n_by_place
            return
        self._loop.watch_edges(None)
        if isinstance(look, ModuleTimes):
            look.close()
            self._open = None
            self.outside_ns += look.spent_ns
            self._unresolved.append(look)
        elif isinstance(look, OperatorTracer):
            if not look.close():
                self._unclosed.append(look)
            self._open = None
            self.outside_ns += look.all_spent_ns()
            if look.failure:
                self.missing["sync_calls"] = f"tracing a step's operators failed: {look.failure}"
            else:
                self._operators.append(look)

    def close(self) -> None:
        """Restore everything. Can be called twice."""
        self.is_off = True
        if self._open is not None:  # the run ended within a step: that step is not whole
            self._loop.watch_edges(None)
            self._open.close()
            self._open = None
        for look in self._unclosed:
            look.close()
        if self._loop.on_row_end == self.row_ends:
            self._loop.on_row_end = None

    def _guarded(self, function: Callable[..., None], *args: Any) -> None:
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001 - reported; there are no looks from then on
            self._on_fail(error)
            self.close()

    # -- results ---------------------------------------------------------------------------------------------

    def sync_calls(self) -> SyncCalls | None:
        """Return what the sampled steps called; None before the first."""
        return sync_calls(self._operators, self._device.type, self._warned)

    def module_times(self) -> dict[str, ModuleTime] | None:
        """Return mean seconds per step by module; None before the first resolved step."""
        waiting = []
        for look in self._unresolved:
            if look.failure:
                self.missing["model_profile.modules"] = f"timing modules failed: {look.failure}"
            elif not look.is_resolved():
                waiting.append(look)
            elif (times := look.times()) is not None:
                self._modules.append(times)
        self._unresolved = waiting
        return mean_times(self._modules) if self._modules else None
