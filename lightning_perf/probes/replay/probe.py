"""Test the hypotheses of rules by replaying operators of the sampled step, while the training pauses."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec
import torch

from lightning_perf.interrupts import error_text
from lightning_perf.probes.base import Probe, RunContext
from lightning_perf.probes.model.saved_tensors import are_hooks_in_place
from lightning_perf.records import Hypothesis, Replay, Replayed

from .calls import CallLog, TensorSpec, specs_in
from .compare import (
    MIN_ROUNDS,
    MIN_TRIMMED_ROUNDS,
    Comparison,
    DeviceWatch,
    HostWatch,
    Item,
    Stopwatch,
    compare,
    widen_interval,
)
from .functions import Work
from .operators import Arena, OperatorItem, choose_work, elements_for, uses_in_a_run
from .optimizer import MAX_ELEMENTS, OptimizerItem, ZeroingItem, kinds_of_groups
from .state import CudaMemory, ReplayMemory, unchanged, why_not
from .tables import table_items
from .threads import local_threads, own_threads
from .treatments import Treated, TreatmentFails, apply_treatment

SHARE = 0.01
LEAST_S, MOST_S = 0.5, 10.0
"""Replays take at most 1 % of the time trained so far; always half a second, never more than ten."""

LEAST_EACH_S = 0.25
"""Least time for each hypothesis while there is time: one result is better than none."""

_ROUNDS = MIN_TRIMMED_ROUNDS + 2, MIN_ROUNDS + 2
"""Rounds for which work must leave time: the larger number if ``_ENOUGH`` of the work fits then, else the smaller. Both
include two extra ones: the first, which is not counted, and one in case rounds take longer than expected."""

_ENOUGH = 0.75

RETRIED_PART = 0.2
"""Share of the budget: if more is left, it is used for the largest undecided hypothesis."""

_JOINED = "joined-groups"
_OPTIMIZERS = {"fused-optimizer": {"fused": True}, "foreach-optimizer": {"foreach": True}, _JOINED: {}}
_ZEROING = "zero-grad-none"
_SPARSE = "sparse-embeddings"
_WITHOUT_OPERATORS = {*_OPTIMIZERS, _ZEROING, _SPARSE}
"""Treatments whose work is not a list of the step's operators."""
_BYTES_PER_PARAMETER = 4 * 8  # itself, its gradient, and on each side up to three states


class ReplayProbe(Probe):
    """The replays of one run, on rank 0; other ranks wait in their next collective, at most for the budget.

    ``memory`` is replaced in tests.
    """

    name = "replay"
    field, reason, option = "replay", "only steps of a fit are replayed", "replay"
    stages = ("fit",)
    after = ("sampled_steps",)

    def __init__(self, run: RunContext, memory: ReplayMemory | None = None) -> None:
        self.spent_ns = 0
        self._context, self._trainer, self._now_ns = run, run.trainer, run.now_ns
        self._device: torch.device = run.trainer.strategy.root_device
        self._is_timed = self._device.type == "cpu"
        self._watch: Stopwatch | None = None
        if self._is_timed:
            self._watch = HostWatch(run.now_ns)
        elif (make_event := run.loop.make_event()) is not None:
            self._watch = DeviceWatch(make_event)
        own = CudaMemory(self._device) if self._device.type == "cuda" else ReplayMemory()
        self._memory: ReplayMemory = memory or own
        self._results: dict[str, Replayed] = {}
        self._log: CallLog | None = None
        self._budget_s = LEAST_S

    @classmethod
    def open(cls, run: RunContext) -> Probe | None:
        """Return the probe, unless an option is False: with ``arithmetic=False``, no operators are known."""
        if run.options.arithmetic:
            return super().open(run)
        run.missing[cls.field] = "arithmetic=False"
        return None

    def answer(self, hypotheses: Iterable[Hypothesis], log: CallLog | None, trained_s: float) -> bool:
        """Replay what is not answered yet, largest first, within the budget; return whether something was replayed.

        ``log`` holds the operators of the sampled step; None without one.
        """
        self._log = log
        self._budget_s = min(MOST_S, max(LEAST_S, SHARE * trained_s))
        pending = [one for one in hypotheses if self._is_unanswered(one.treatment)]
        reason = self._why_not() if pending else ""
        if reason:
            self.missing["replay"] = reason
            return False
        for place, one in enumerate(pending):
            left_s = self._budget_s - self.spent_ns / 1e9
            if left_s > 0 and not self._trainer.received_sigterm:
                share_s = left_s / (len(pending) - place)
                found = self._replayed(one, min(left_s, max(share_s, LEAST_EACH_S)))
                self.spent_ns += round(found.took_s * 1e9)
            else:
                reason = f"the {self._budget_s:.1f} s for replays were used up"
                if self._trainer.received_sigterm:
                    reason = "the run was asked to end"
                found = Replayed(treatment=one.treatment, reason=reason)
            self._results[one.treatment] = found
        self._retry(pending)
        return bool(pending)

    def _retry(self, pending: Sequence[Hypothesis]) -> None:
        """Measure the largest undecided hypothesis again, in the time that is left."""
        if self._trainer.received_sigterm:
            return
        left_s = self._budget_s - self.spent_ns / 1e9
        undecided = [one for one in pending if _is_undecided(self._results[one.treatment])]
        if undecided and left_s > max(RETRIED_PART * self._budget_s, self._results[undecided[0].treatment].took_s):
            found = self._replayed(undecided[0], left_s)
            self.spent_ns += round(found.took_s * 1e9)
            if found.speedup is not None:
                self._results[found.treatment] = found

    def record(self) -> Replay | None:
        if not self._results:
            self.missing.setdefault("replay", "no operators were replayed in this run")
            return None
        self.missing.pop("replay", None)
        log = self._log
        return Replay(
            operators_s=log.total_ns / 1e9 if log is not None and self._is_timed else None,
            n_operators=len(log.calls) if log is not None else 0,
            results=tuple(self._results.values()),
            took_s=self.spent_ns / 1e9,
            budget_s=self._budget_s,
        )

    def _is_unanswered(self, treatment: str) -> bool:
        """Return whether a treatment was not replayed yet, or lacked time while there is three times as much now."""
        known = self._results.get(treatment)
        left_s = self._budget_s - self.spent_ns / 1e9
        is_answered = known is not None and (known.speedup is not None or known.is_negligible)
        return known is None or (not is_answered and left_s > max(LEAST_S, 3 * known.took_s))

    def _why_not(self) -> str:
        if not self._trainer.is_global_zero:
            return "rank 0 replays"
        if self._watch is None:
            return f"{self._device.type} has no timed events"
        if are_hooks_in_place():
            return "the script's own hooks on saved tensors would see those of replayed operators"
        return why_not(self._device)

    def _replayed(self, hypothesis: Hypothesis, limit_s: float) -> Replayed:
        begin = self._now_ns()
        found = Replayed(treatment=hypothesis.treatment)
        try:
            with unchanged(self._device), self._memory.scope():
                found = self._measured(hypothesis, begin + round(limit_s * 1e9))
        except TreatmentFails as error:
            found = Replayed(treatment=hypothesis.treatment, is_negligible=True, reason=str(error))
        except Exception as error:  # noqa: BLE001 - recorded; the training goes on
            reason = error_text(error).splitlines()[0][:240].rstrip(": ")
            found = Replayed(treatment=hypothesis.treatment, reason=reason)
        return msgspec.structs.replace(found, took_s=(self._now_ns() - begin) / 1e9)

    def _measured(self, hypothesis: Hypothesis, until_ns: int) -> Replayed:
        treatment = hypothesis.treatment
        items: list[Item] = self._optimizer_items(treatment)
        found = Replayed(treatment=treatment)
        arena: Arena | None = None
        treated = Treated()
        least_speedup = _least_speedup(hypothesis.least_part)
        if treatment not in _WITHOUT_OPERATORS:
            if self._log is None:
                raise ValueError("no step's operators were recorded")
            # No variable holds the maker, so that its arena is freed before another one is made.
            treated = apply_treatment(treatment, self._log, self._device, self._tensor_maker(self._log, until_ns))
            if not items and self._is_timed:  # the optimizer's operators are not timed in the step
                found = msgspec.structs.replace(found, concerned_s=treated.concerned_s)
                total_s = self._log.total_ns / 1e9
                least_speedup = _least_speedup(hypothesis.least_part * total_s / max(1e-9, treated.concerned_s))
                if treated.works and least_speedup is None:
                    part = treated.concerned_s / total_s
                    reason = f"the operators that it changes take {100 * part:.1f} % of the time of all operators"
                    return msgspec.structs.replace(found, is_negligible=True, reason=reason)
            arena, operators = self._operators(treated, until_ns)
            if not items and self._is_timed:
                found = msgspec.structs.replace(found, seen_s=sum(item.work.seconds for item in operators))
            items = [*operators, *items]
        if not items:
            return msgspec.structs.replace(found, reason="no operator of the step can be replayed with it")
        with self._in_threads(items, treated) as threaded:
            kept_s = self._left_s(until_ns) / 4 if treated.n_hindered else 0.0
            comparison = self._compared(threaded, treated, arena, until_ns - round(kept_s * 1e9), least_speedup or 1.0)
        if treated.n_hindered:
            comparison = self._scaled(comparison, items, treated, until_ns)
        return msgspec.structs.replace(found, n_operators=len(items), **comparison._asdict())

    def _compared(
        self, items: list[Item], treated: Treated, arena: Arena | None, until_ns: int, least_speedup: float
    ) -> Comparison:
        """Compare all items; where the treatment is faster, compare them with their tensors in caches, too."""
        assert self._watch is not None
        limit_s = self._left_s(until_ns)
        enough_s = limit_s / (1 if arena is None else 2)  # half of it for the second comparison
        cold = compare(items, treated.around_pass, self._watch, limit_s, self._now_ns, least_speedup, enough_s)
        left_s = self._left_s(until_ns)
        if arena is None or cold.speedup is None or cold.speedup.low <= 1.0 or left_s <= 0:
            return cold
        arena.starts_over = True
        warm = compare(items, treated.around_pass, self._watch, min(left_s, enough_s), self._now_ns, 1.0)
        return widen_interval(cold, warm)

    def _scaled(self, found: Comparison, items: list[Item], treated: Treated, until_ns: int) -> Comparison:
        """Raise the upper end of the speedup to perfect scaling, n times the speed of one thread.

        While a process has more OpenMP threads than cores, libgomp lets threads that wait sleep at once, so that fewer
        threads are slower beside them than in a training without them:
        https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html
        """
        assert self._watch is not None
        alone = treated._replace(in_thread=partial(local_threads, 1))
        with self._in_threads(items, alone) as threaded:
            one = compare(threaded, alone.around_pass, self._watch, self._left_s(until_ns), self._now_ns)
        if found.speedup is None or one.speedup is None:
            return found
        high = max(found.speedup.high, treated.n_hindered * one.speedup.high)
        return found._replace(speedup=msgspec.structs.replace(found.speedup, high=high))

    def _left_s(self, until_ns: int) -> float:
        return (until_ns - self._now_ns()) / 1e9

    def _tensor_maker(self, log: CallLog, until_ns: int) -> Callable[[TensorSpec], torch.Tensor]:
        """Return a function that makes tensors, to find out the dtypes of operators under autocast."""
        arena: Arena | None = None

        def make(spec: TensorSpec) -> torch.Tensor:
            nonlocal arena
            if self._now_ns() > until_ns:
                raise TimeoutError("there was no time to run each operator once with the treatment")
            if arena is None:
                operators = [(call.specs, call.n_out, 0) for call in log.calls]
                arena = Arena(self._device, elements_for(operators, self._memory.free_bytes()))
            return arena.tensor(spec)

        return make

    def _operators(self, treated: Treated, until_ns: int) -> tuple[Arena | None, list[OperatorItem]]:
        """Return the largest operators that a treatment changes, as many as there is time for, and their arena."""
        works: list[Work] = []
        median_ns = self._context.loop.main.recent_median_ns()
        step_s = float("inf") if median_ns is None else median_ns / 1e9
        enough_s = _ENOUGH * sum(work.seconds for work in treated.works)
        for n_rounds in _ROUNDS:
            if not works or sum(work.seconds for work in works) < enough_s:
                most_s = self._left_s(until_ns) / (2 * n_rounds) if self._is_timed else float("inf")
                works = choose_work(treated, self._is_timed, most_s, step_s)
        if treated.works and not works:
            once_s = min(step_s, *(work.seconds / work.n for work in treated.works))
            needed_s = 2 * _ROUNDS[-1] * once_s
            left_s = self._left_s(until_ns)
            raise TimeoutError(f"replaying one operator takes at least {needed_s:.1f} s, and {left_s:.1f} s are left")
        if not works:
            return None, []
        operators = [
            (specs_in(bound), sum(call.n_out for call in work.calls) * uses_in_a_run(work, treated), work.n)
            for work in works
            for bound in (*work.as_is, *work.treated)
        ]
        levels = {call.gradient_denormal for work in works for call in work.calls}
        operators.append(([TensorSpec((), (), torch.float32, False, -1, level) for level in levels], 0, 0))
        between_bytes = max(work.between_bytes for work in works)
        arena = Arena(self._device, elements_for(operators, self._memory.free_bytes(), between_bytes))
        return arena, [OperatorItem(work, arena, treated) for work in works]

    def _optimizer_items(self, treatment: str) -> list[Item]:
        name = treatment.partition("=")[0]
        if name != "threads" and name not in _WITHOUT_OPERATORS:
            return []
        optimizers = list({id(one): one for one in self._trainer.optimizers}.values())
        free_bytes = self._memory.free_bytes()
        n_elements = min(MAX_ELEMENTS, free_bytes // _BYTES_PER_PARAMETER // max(1, len(optimizers)))
        n_batches = max(1, self._trainer.accumulate_grad_batches or 1)
        if name == _SPARSE:
            return table_items(self._log, optimizers, n_batches, free_bytes) if self._log is not None else []
        if name == _ZEROING:
            return [ZeroingItem(optimizer, n_elements, n_batches) for optimizer in optimizers]
        configs = getattr(self._trainer, "lr_scheduler_configs", None) if name == _JOINED else []
        if configs is None:
            raise ValueError("without a Trainer, the schedules of parameter groups are not known")
        schedulers = [each.scheduler for each in configs]
        items = []
        for one in optimizers:
            kinds = kinds_of_groups(one, schedulers) if name == _JOINED else None
            try:
                items.append(OptimizerItem(one, _OPTIMIZERS.get(name, {}), n_elements, n_batches, kinds))
            except ValueError:
                if name in _OPTIMIZERS:
                    raise  # else the operators of forward and backward are replayed without its step
        if name == _JOINED and not any(item.is_changed for item in items):
            raise TreatmentFails("no two parameter groups have the same arguments any more")
        return list(items)

    @contextmanager
    def _in_threads(self, items: list[Item], treated: Treated) -> Iterator[list[Item]]:
        """Yield the items, in separate threads if the treatment is a setting of a thread."""
        if treated.in_thread is None:
            yield items
            return
        with own_threads(self._thread_scope, treated.in_thread) as in_threads:
            yield [in_threads(item) for item in items]

    @contextmanager
    def _thread_scope(self) -> Iterator[None]:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # of this thread
        with self._memory.scope():
            yield


def _least_speedup(least_part: float) -> float | None:
    """Return the speedup that saves this part of the operators' time; None if none does."""
    return 1 / (1 - least_part) if least_part < 1 else None


def _is_undecided(result: Replayed) -> bool:
    """Return whether more rounds could show whether a treatment is faster."""
    if result.speedup is None:
        return bool(result.n_operators)
    return result.speedup.low < 1.0 < result.speedup.high
