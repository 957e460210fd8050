"""Answers the hypotheses of rules by replaying operators of the sampled step, in pauses of the training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import torch

from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.probes.clock import DeviceEvent
from lightning_perf.records import Hypothesis, Replay, Replayed

from .arena import Arena
from .calls import CallLog
from .compare import MIN_ROUNDS, Item, compare
from .operators import OperatorItem, arena_elements, chosen
from .optimizer import MAX_ELEMENTS, OptimizerItem
from .state import CudaRoom, HostRoom, Room, refusal, unchanged
from .treatments import AUTOCAST, Treated, treated_by
from .watch import DeviceWatch, HostWatch, Stopwatch

SHARE = 0.01
LEAST_S, MOST_S = 0.5, 10.0
"""Replays take at most 1 % of the time trained so far; always half a second, never more than ten."""

_OPTIMIZERS = {"fused-optimizer": {"fused": True}, "foreach-optimizer": {"foreach": True}}
_BYTES_PER_PARAMETER = 4 * 8  # itself, its gradient, and on each side up to three states


class ReplayProbe:
    """The replays of one run.

    Args:
        trainer: The Trainer.
        now_ns: The host's clock.
        make_event: Makes a timed event of the device; None on a CPU.
        room: The memory to replay in; None to choose by device.
    """

    def __init__(
        self,
        trainer: Any,
        now_ns: Callable[[], int],
        make_event: Callable[[], DeviceEvent] | None = None,
        room: Room | None = None,
    ) -> None:
        self.missing: dict[str, str] = {}
        self.spent_ns = 0
        self._trainer, self._now_ns = trainer, now_ns
        self._device: torch.device = trainer.strategy.root_device
        is_cpu = self._device.type == "cpu"
        self._watch: Stopwatch | None = HostWatch(now_ns) if is_cpu else DeviceWatch(make_event) if make_event else None
        self._room: Room = room or (CudaRoom(self._device) if self._device.type == "cuda" else HostRoom())
        self._results: dict[str, Replayed] = {}
        self._log: CallLog | None = None
        self._budget_s = LEAST_S

    def answer(self, hypotheses: Iterable[Hypothesis], log: CallLog | None, trained_s: float) -> bool:
        """Replay what is not answered yet, as far as the budget goes.

        Args:
            hypotheses: What rules ask, largest first.
            log: The operators of the sampled step; None where no step was sampled.
            trained_s: The time trained so far.

        Returns:
            Whether something was replayed.
        """
        self._log = log
        self._budget_s = min(MOST_S, max(LEAST_S, SHARE * trained_s))
        asked = [one for one in hypotheses if self._is_open(one.treatment)]
        reason = self._refusal() if asked else ""
        if reason:
            self.missing["replay"] = reason
            return False
        for place, one in enumerate(asked):
            left_s = self._budget_s - self.spent_ns / 1e9
            if left_s > 0:
                found = self._replayed(one.treatment, left_s / (len(asked) - place))
                self.spent_ns += round(found.took_s * 1e9)
            else:
                reason = f"the {self._budget_s:.1f} s for replays were used up"
                found = Replayed(treatment=one.treatment, reason=reason)
            self._results[one.treatment] = found
        return bool(asked)

    def record(self) -> Replay | None:
        """Return what was replayed; None before the first replay, with the reason in ``missing``."""
        if not self._results:
            self.missing.setdefault("replay", "no rule asked for a measurement")
            return None
        self.missing.pop("replay", None)
        log = self._log
        is_timed = log is not None and self._device.type == "cpu"
        return Replay(
            operators_s=log.total_ns / 1e9 if log is not None and is_timed else None,
            n_operators=len(log.calls) if log is not None else 0,
            results=tuple(self._results.values()),
            took_s=self.spent_ns / 1e9,
            budget_s=self._budget_s,
        )

    def _is_open(self, treatment: str) -> bool:
        """Not replayed yet, or without a result for want of time while there is three times as much now."""
        known = self._results.get(treatment)
        left_s = self._budget_s - self.spent_ns / 1e9
        return known is None or (known.speedup is None and left_s > max(LEAST_S, 3 * known.took_s))

    def _refusal(self) -> str:
        if self._trainer.world_size > 1:
            return "with several ranks nothing is replayed: others would wait for this one"
        if self._watch is None:
            return f"{self._device.type} has no timed events"
        return refusal(self._device)

    def _replayed(self, treatment: str, limit_s: float) -> Replayed:
        begin = self._now_ns()
        found = Replayed(treatment=treatment)
        try:
            with unchanged(self._device), self._room.scope():
                found = self._measured(treatment, limit_s)
        except Exception as error:  # noqa: BLE001 - told in the record; the training goes on
            raise_if_from_signal(error)
            message = str(error).splitlines()[0][:200] if str(error) else ""
            found = Replayed(treatment=treatment, reason=f"{type(error).__name__}: {message}".rstrip(": "))
        return msgspec.structs.replace(found, took_s=(self._now_ns() - begin) / 1e9)

    def _measured(self, treatment: str, limit_s: float) -> Replayed:
        begin = self._now_ns()
        name = treatment.partition("=")[0]
        items: list[Item] = []
        seen_s: float | None = None
        concerned_s: float | None = None
        treated = Treated()
        if name in _OPTIMIZERS or name == "threads":
            items.extend(self._optimizers(_OPTIMIZERS.get(name, {})))
        if name not in _OPTIMIZERS:
            if self._log is None:
                raise ValueError("no step's operators were recorded")
            found, treated = self._operators(treatment, self._log, begin + round(limit_s * 1e9))
            if not items and self._device.type == "cpu":  # the optimizer's operators are not timed in the step
                seen_s = sum(item.call.seconds for item in found)
                concerned_s = sum(call.seconds for call in self._log.calls if treated.concerns(call))
            items = [*found, *items]
        if not items:
            return Replayed(treatment=treatment, reason="no operator of the step can be replayed with it")
        assert self._watch is not None
        left_s = limit_s - (self._now_ns() - begin) / 1e9
        if self._device.type == "cpu":
            needed_s = 2 * (MIN_ROUNDS + 1) * sum(item.once_s for item in items if isinstance(item, OperatorItem))
            if needed_s > left_s:
                reason = f"replaying these operators takes about {needed_s:.1f} s, and {left_s:.1f} s are left"
                return Replayed(treatment=treatment, reason=reason)
        comparison = compare(items, treated.around_pass, self._watch, left_s, self._now_ns)
        return Replayed(
            treatment=treatment,
            n_operators=len(items),
            n_rounds=comparison.n_rounds,
            before_s=comparison.before_s,
            after_s=comparison.after_s,
            seen_s=seen_s,
            concerned_s=concerned_s,
            speedup=comparison.speedup,
            reason=comparison.reason,
        )

    def _operators(self, treatment: str, log: CallLog, until_ns: int) -> tuple[list[OperatorItem], Treated]:
        free = self._room.free_bytes()
        everything = Arena(self._device, arena_elements(log.calls, free))

        def filled(value: Any) -> Any:
            if self._now_ns() > until_ns:
                raise TimeoutError("there was no time to run each operator once with the treatment")
            return everything.filled(value)

        treated = treated_by(treatment, log, self._device, filled)
        if treated is None:
            raise ValueError(f"{treatment} cannot be replayed")
        calls = chosen(log, treated, is_timed=self._device.type == "cpu")
        is_cast = treatment in AUTOCAST
        return [OperatorItem(call, bound, everything, treated, is_cast) for call, bound in calls], treated

    def _optimizers(self, changes: dict[str, Any]) -> list[OptimizerItem]:
        n_elements = min(MAX_ELEMENTS, self._room.free_bytes() // _BYTES_PER_PARAMETER)
        return [OptimizerItem(optimizer, changes, n_elements) for optimizer in _distinct(self._trainer.optimizers)]


def _distinct(optimizers: Sequence[Any]) -> list[Any]:
    return list({id(optimizer): optimizer for optimizer in optimizers}.values())
