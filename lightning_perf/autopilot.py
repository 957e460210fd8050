"""Try recommended treatments in the user's own run, in blocks of steps or epochs, and keep those that make it faster.

All ranks switch at the same step: they synchronize at step numbers that all of them know, and rank 0 decides.
"""

import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec

from lightning_perf import records, seams
from lightning_perf.autopilot_blocks import PRECHECK_STEPS, BlockTimes, TreatmentTry, Unit
from lightning_perf.errors import TreatmentError
from lightning_perf.live import LiveTreatments, Switch
from lightning_perf.probes.probe_set import ProbeSet
from lightning_perf.probes.telemetry.gpu import peak_share
from lightning_perf.records import SAFETIES, AutopilotTry, Safety, Session, TryStatus
from lightning_perf.reports.sections.autopilot import decision_line
from lightning_perf.safe_loaders import RandomWatch, require_safe_workers
from lightning_perf.stats.blocks import BLOCK_S, BLOCK_STEPS
from lightning_perf.stats.sequential import MIN_VALUES, combined_speedup
from lightning_perf.treatments.applier import Applier, loader_args
from lightning_perf.treatments.prescription import in_package, prescription, setting_text
from lightning_perf.treatments.rebuild import require_exact
from lightning_perf.treatments.specs import TreatmentSpec, parse, with_default

BUDGET_SHARE = 0.01
"""Largest part of the run's expected time that may be lost to treatments which make it slower."""

IDLE_S = 10.0
"""Approximate time between two synchronizations of several ranks while nothing is tried."""

FIRST_SYNC_STEP = 100  # steps

SLOW_FACTOR = 2.0
"""A treatment is undone at once if its first steps take this many times as long as steps before and after it."""

_DISCARDED_SHARE = 0.25  # of a block's steps, before those that count: caches, thread pools and queues settle
_LEAST_DISCARDED = 2
_MAX_PEAK_SHARE = 0.9  # of the device's memory: a treatment may not raise the peak above it
_MOST_BLOCKS = 500  # per try: only reached if hardly any block has a step that counts
_NEVER = 2**62
_CHECK_EVERY = 4  # steps between two readings of a block; with one rank, a slow block may end there
_OTHER_RANK = "another rank refused it"
_USED_UP = "the time allowed for slower treatments is used up"


class Order(NamedTuple):
    """What all ranks do after rank 0 decided: begin a block ``on`` or ``off``, ``keep`` or ``undo``, or ``wait``.

    Attributes:
        text: The treatment; empty to wait.
        finding: Code of the finding that recommends it.
        unit: Unit of its blocks.
        next_sync: Number of steps after which the ranks synchronize next, unless an epoch starts earlier.
    """

    action: Literal["on", "off", "keep", "undo", "wait"]
    next_sync: int
    text: str = ""
    finding: str = ""
    unit: Unit = "step"


class Autopilot:
    """Tries treatments one after the other.

    Args:
        safety: The least safe treatments that may be tried.
        trainer: The Trainer.
        probes: The probes of the run, which time the steps.
        live: Switches treatments.
        taken: Ids of treatments that ``apply`` names, which are not tried.
        on_decision: Called on rank 0 with a decision as one line, or None when a try begins.
    """

    def __init__(
        self,
        safety: Literal["exact", "numerics"],
        trainer: Any,
        probes: ProbeSet,
        live: LiveTreatments,
        taken: frozenset[str],
        on_decision: Callable[[str | None], None],
    ) -> None:
        self._safety, self._trainer, self._probes, self._live = safety, trainer, probes, live
        self._on_decision = on_decision
        self._has_ranks = trainer.world_size > 1
        self._without = ("persistent_workers",) if safety == "exact" else ()
        self._allowed: tuple[Safety, ...] = SAFETIES[: SAFETIES.index(safety) + 1]
        self.randoms = RandomWatch()
        # On all ranks:
        self._n_steps, self._next_sync = 0, FIRST_SYNC_STEP if self._has_ranks else _NEVER
        self._unit: Unit | None = None  # of what is being tried
        self._switch: tuple[str, Switch] | None = None
        self._failure, self._can_switch, self._peak_before = "", True, 0.0
        # On rank 0:
        self._rng = random.Random()  # not the global generator, which is the training's
        self._taken, self._known = taken, set(taken)
        self._waiting: list[tuple[str, str, Unit]] = []
        self._try: TreatmentTry | None = None
        self._tries: list[AutopilotTry] = []
        self._times = BlockTimes(probes)

    # -- synchronization ----------------------------------------------------------------------------------------------

    def step_ended(self, module: Any) -> None:
        """Handle the end of a batch, as the last part of PerfDoctor's hook."""
        self._n_steps += 1
        if self._n_steps >= self._next_sync:
            self._synchronize(module, is_epoch_start=False)
        elif self._n_steps % _CHECK_EVERY == 0 and self._times.is_on:
            self.collect()  # before rows are aggregated
            if not self._has_ranks and self._probes.call("autopilot", self._loses_too_much):
                self._synchronize(module, is_epoch_start=False)

    @property
    def holds_loaders(self) -> bool:
        """Whether blocks of epochs are compared, during which nothing else may replace the loaders."""
        return self._unit == "epoch"

    def epoch_starts(self, module: Any) -> None:
        """Handle the start of an epoch, before its loaders are started."""
        if self._unit != "step":
            self._synchronize(module, is_epoch_start=True)

    def _synchronize(self, module: Any, is_epoch_start: bool) -> None:
        trainer, probes = self._trainer, self._probes
        can_continue = self._on_all_ranks(bool(probes.call("autopilot", self._can_continue)))
        order, is_done = Order("undo", _NEVER), True
        if trainer.is_global_zero:
            order = probes.call("autopilot", self._decide, can_continue, is_epoch_start) or order
        if self._has_ranks:  # collectives are outside of any isolation
            order = trainer.strategy.broadcast(order)
        if order.action != "wait":
            # Also after a failure, since what is on must be switched off.
            is_executed = probes.call_even_if_off("switching treatments", self._execute, order, module)
            self._can_switch &= is_executed is not None
            is_done = self._on_all_ranks(bool(is_executed))
            if not is_done:
                probes.call_even_if_off("switching treatments", self._execute, order._replace(action="undo"), module)
            elif order.action == "keep":
                self._switch = None
                self._live.note(order.text, order.finding, trainer.current_epoch)
            if trainer.is_global_zero:
                probes.call("autopilot", self._order_executed, order.action, is_done)
        self._next_sync = order.next_sync if is_done else self._n_steps + 1
        self._unit = order.unit if is_done and order.action in ("on", "off") else None

    def _on_all_ranks(self, is_true: bool) -> bool:
        return bool(self._trainer.strategy.reduce_boolean_decision(is_true, all=True)) if self._has_ranks else is_true

    def _can_continue(self) -> bool:
        """Return whether this rank could apply the treatment, and its memory allows it."""
        if self._switch is None:
            return self._can_switch
        if not self._failure and self._peak() > max(self._peak_before, _MAX_PEAK_SHARE):
            self._failure = f"it raised peak device memory above {100 * _MAX_PEAK_SHARE:.0f} %"
        return self._can_switch and not self._failure

    def _peak(self) -> float:
        return peak_share(self._trainer.strategy.root_device)

    def _execute(self, order: Order, module: Any) -> bool:
        """Switch the treatment; return whether that is possible."""
        if not order.text:  # deciding failed
            if self._switch is not None:
                self._switch[1].off()
            return True
        if self._switch is None or self._switch[0] != order.text:
            spec, self._failure = parse(order.text), ""
            refuse = partial(self._refuse, order.text)
            applier = Applier([spec], refuse, check_loader=self._check_loader, without=self._without)
            self._switch, self._peak_before = (order.text, self._live.switch(applier)), self._peak()
        switch = self._switch[1]
        if order.action in ("on", "keep"):
            self._failure = switch.on(self._trainer, module)
        else:
            switch.off()
        if order.action == "undo":
            self._switch = None
        return order.action in ("off", "undo") or not self._failure

    def _refuse(self, text: str, error: TreatmentError) -> None:
        """Record why a loader that the Trainer just created cannot be changed."""
        if self._switch is not None and self._switch[0] == text:
            self._failure = str(error)

    def _check_loader(self, loader: Any, arguments: dict[str, Any]) -> None:
        require_safe_workers(loader, arguments)
        if self._safety == "exact":
            if not seams.fetches_one_loader_between_steps(self._trainer):
                raise TreatmentError("results may change: expected one training loader, read between steps")
            require_exact(loader, arguments, self.randoms.draws)

    # -- what rank 0 decides ------------------------------------------------------------------------------------------

    def offer(self, session: Session) -> None:
        """Queue the treatments that a diagnosis recommends, the best first, if the budget allows to apply them."""
        left_s = self._budget_s() - self._lost_s()
        for finding in session.findings:
            for fix in finding.prescriptions:
                if not fix.treatment or fix.treatment in self._known:
                    continue
                spec = with_default(parse(fix.treatment), session)
                treatment, unit = spec.treatment, self._unit_of(spec)
                is_affordable = treatment.live_cost_s(session) <= max(0.0, left_s)
                if unit is not None and is_affordable and treatment.applies_to(session) is None:
                    self._known.add(fix.treatment)
                    self._waiting.append((spec.text, finding.code, unit))
        if self._waiting and not self._has_ranks and self._try is None:
            self._next_sync = 0

    def _unit_of(self, spec: TreatmentSpec) -> Unit | None:
        """Return the unit of blocks for a treatment; None if it may not be tried."""
        treatment = spec.treatment
        if not treatment.is_live or treatment.safety not in self._allowed:
            return None
        if treatment.hides_errors and self._safety == "exact":
            return None
        if not Applier([spec]).changes_loaders:
            return "step" if treatment.acts_on == "step" else None
        return "epoch" if set(loader_args([spec])) - set(self._without) else None

    def _why_not(self, text: str, unit: Unit) -> str:
        """Return why a treatment cannot be tried in this run, as it is now."""
        treatment, kept = parse(text).treatment, [one.treatment for one in self._tries if one.status == "kept"]
        for other in (parse(one).treatment for one in (*self._taken, *kept)):
            if other.id in treatment.conflicts or treatment.id in other.conflicts:
                return f"it cannot be combined with {other.id}"
        loop, per_epoch = self._probes.loop, self._trainer.num_training_batches
        n_epochs = 4 * MIN_VALUES if unit == "epoch" and self._keeps_workers(text) else 2 * MIN_VALUES
        if unit == "step" or loop is None or loop.batches_left() > n_epochs * per_epoch:
            return ""
        return f"loaders are replaced between epochs: a try needs more than {n_epochs} further ones"

    def _keeps_workers(self, text: str) -> bool:
        """Return whether workers outlive an epoch, with the treatment or without: a switch then starts new ones."""
        is_persistent = (
            loader_args([parse(text)]).get("persistent_workers") and "persistent_workers" not in self._without
        )
        return bool(is_persistent or getattr(self._trainer.train_dataloader, "persistent_workers", False))

    def _decide(self, can_continue: bool, is_epoch_start: bool) -> Order:
        trial = self._try
        if trial is None:
            return self._next_try(is_epoch_start) if can_continue else Order("wait", _NEVER)
        trial.record = msgspec.structs.replace(trial.record, last_step=self._n_steps)
        if not can_continue:
            return self._close("refused", self._failure or _OTHER_RANK)
        if self._n_steps < self._next_sync < _NEVER:
            trial.lose(self._times.overtime_s(trial.usual_s))
            return self._close("undone", _USED_UP)
        trial.n_blocks += 1
        if self._times.main is None or trial.n_blocks > _MOST_BLOCKS:
            return self._close("undone", "its steps could not be measured")
        self._times.collect()
        if trial.record.unit == "epoch":
            mean_s, trial.steps_per_block = self._times.epoch_mean()
        else:
            mean_s = self._times.step_mean(1 + trial.discarded, trial.period, is_least=trial.is_precheck)
        if trial.is_settling:
            trial.is_settling, trial.settling_s = False, mean_s
            return self._order("on" if trial.record.is_treated else "off", trial.record, _NEVER)
        if trial.is_precheck:
            slower = trial.precheck(mean_s, SLOW_FACTOR)
            if slower > SLOW_FACTOR:
                return self._close("undone", f"its first steps took {slower:.1f} times as long")
        else:
            trial.add(mean_s)
            trial.record = msgspec.structs.replace(
                trial.record,
                n_pairs=len(trial.blocks.logs),
                speedup=trial.blocks.speedup(),
                lost_s=trial.lost_s(),
            )
            verdict = trial.blocks.verdict()
            if verdict is not None:
                return self._close(verdict) if verdict == "undone" else self._order("keep", trial.record)
        if self._lost_s() > self._budget_s():
            return self._close("undone", _USED_UP)
        return self._block(trial)

    def _next_try(self, is_epoch_start: bool) -> Order:
        main = self._times.main
        median_ns = main.recent_median_ns() if main is not None else None
        usual_s = 0.0 if median_ns is None else median_ns / 1e9
        steps = max(1, min(10_000, round(IDLE_S / usual_s))) if usual_s else FIRST_SYNC_STEP
        wait = Order("wait", self._n_steps + steps)
        if not usual_s or not self._waiting or self._lost_s() >= self._budget_s():
            return wait
        text, code, unit = min(self._waiting, key=lambda each: each[2] == "epoch")  # epochs take longest
        why_not = self._why_not(text, unit)
        if (unit == "epoch") != is_epoch_start and not why_not:
            return wait._replace(next_sync=self._n_steps + 1) if is_epoch_start else wait
        self._waiting.remove((text, code, unit))
        accumulated = max(1, int(self._trainer.accumulate_grad_batches))
        steps = min(BLOCK_STEPS, max(1, math.ceil(BLOCK_S / usual_s)))
        steps = math.ceil(steps / accumulated) * accumulated  # as many optimizer steps in each block
        discarded = max(_LEAST_DISCARDED, round(_DISCARDED_SHARE * steps))
        discarded += -(1 + discarded) % accumulated
        one = AutopilotTry(
            treatment=text,
            setting=setting_text(parse(text), self._without),
            finding=code,
            status="trying",
            unit=unit,
            first_step=self._n_steps,
            last_step=self._n_steps,
            block_steps=steps if unit == "step" else None,
        )
        keeps_workers = unit == "epoch" and self._keeps_workers(text)
        self._try = TreatmentTry(one, self._rng, usual_s, discarded, accumulated, keeps_workers)
        if why_not:
            return self._close("refused", why_not)
        order = self._block(self._try)
        self._on_decision(None)
        return order

    def _block(self, trial: TreatmentTry) -> Order:
        is_on = trial.slow_s is None if trial.is_precheck else trial.blocks.is_next_treated
        trial.is_settling = trial.keeps_workers and is_on != trial.record.is_treated
        trial.record = msgspec.structs.replace(trial.record, is_treated=is_on)
        n_steps = _NEVER
        if trial.record.unit == "step":
            measured = PRECHECK_STEPS if trial.is_precheck else trial.record.block_steps or 1
            trial.steps_per_block = n_steps = 1 + trial.discarded + measured
        return self._order("on" if is_on else "off", trial.record, n_steps)

    def _order(self, action: Literal["on", "off", "keep", "undo"], one: AutopilotTry, n_steps: int = 1) -> Order:
        return Order(action, self._n_steps + n_steps, one.treatment, one.finding, one.unit)

    def _close(self, status: TryStatus, reason: str = "") -> Order:
        trial = self._try
        assert trial is not None
        one = msgspec.structs.replace(trial.record, status=status, reason=reason, lost_s=trial.lost_s())
        self._try = None
        self._tries.append(one)
        self._on_decision(decision_line(one))
        return self._order("undo", one)

    # -- time ---------------------------------------------------------------------------------------------------------

    def _order_executed(self, action: str, is_done: bool) -> None:
        """Begin the ordered block; end the try if the treatment is kept or cannot be applied."""
        if self._try is not None and not is_done:
            self._close("refused", self._failure or _OTHER_RANK)
        elif self._try is not None and action == "keep":
            self._close("kept")
        self._times.begin(self._try.record.unit if self._try is not None else None)

    def collect(self) -> None:
        """Keep the steps of the current block that were measured so far, before they are aggregated."""
        self._probes.call("autopilot", self._times.collect)

    def _lost_s(self) -> float:
        return sum(one.lost_s for one in self._tries) + (self._try.lost_s() if self._try is not None else 0.0)

    def _loses_too_much(self) -> bool:
        """Return whether the current block lost more time than the budget has left."""
        if self._try is None or self._try.record.unit == "epoch" or not self._try.record.is_treated:
            return False
        return self._times.overtime_s(self._try.usual_s) > self._budget_s() - self._lost_s()

    def _budget_s(self) -> float:
        loop = self._probes.loop
        if loop is None:
            return 0.0
        median_ns = loop.main.recent_median_ns()
        return BUDGET_SHARE * (loop.expected_wall_s(median_ns) if median_ns else loop.wall_ns() / 1e9)

    # -- the record ---------------------------------------------------------------------------------------------------

    def record(self) -> records.Autopilot:
        """Return what was tried so far."""
        kept = [one for one in self._tries if one.status == "kept"]
        gains = [one.speedup for one in kept if one.speedup is not None]
        trying = [self._try.record] if self._try is not None else []
        code = prescription([parse(one.treatment) for one in kept], without=self._without).code
        return records.Autopilot(
            safety=self._safety,
            tries=(*self._tries, *trying),
            waiting=tuple(text for text, _, _ in self._waiting),
            lost_s=self._lost_s(),
            budget_s=self._budget_s(),
            speedup=combined_speedup(gains),
            code=in_package(code, seams.namespace(self._trainer)),
        )
