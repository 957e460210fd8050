"""Check whether the training loader can get workers during a run: shared state, random numbers drawn."""

from typing import Any

from lightning_perf.dataset_contents import random_states
from lightning_perf.errors import TreatmentError
from lightning_perf.loader_kinds import inner_loader
from lightning_perf.probes.base import Probe
from lightning_perf.probes.clock import NEVER
from lightning_perf.probes.loader.held import why_state_is_shared
from lightning_perf.treatments.rebuild import require_forked_workers

WATCHED_STEPS = 32


def require_safe_workers(loader: Any, arguments: dict[str, Any]) -> None:
    """Refuse workers for a loader without workers if it shares state with the training, or would have to be pickled.

    Raises:
        TreatmentError: The loader shares state, or workers would not be forked.
    """
    loader = inner_loader(loader)
    if loader.num_workers > 0 or not arguments.get("num_workers"):
        return
    require_forked_workers(loader, arguments)
    reason = why_state_is_shared(loader)
    if reason:
        raise TreatmentError(reason)


class RandomWatch(Probe):
    """Detects whether fetching draws random numbers: compares random states after a step and before the next one.

    A callback that draws between the two counts as fetching, which errs on the safe side.

    Attributes:
        draws: Whether numbers were drawn between the steps watched; None before the first two.
    """

    name = "random_watch"
    next_step = 0

    def __init__(self) -> None:
        self.draws: bool | None = None
        self._after_step: Any = None

    def step_begins(self, batch: Any) -> None:
        """Compare the states with those at the end of the last step."""
        if self._after_step is not None:
            self.draws = bool(self.draws) or random_states() != self._after_step

    def step_ends(self) -> None:
        """Remember the states."""
        self._after_step = random_states()
        self.next_step = NEVER if self.draws or self.next_step >= WATCHED_STEPS else self.next_step + 1
        if self.next_step == NEVER:
            self._after_step = None

    def epoch_ends(self) -> None:
        """Forget the states: samplers draw between epochs."""
        self._after_step = None
