"""Measure PerfDoctor's overhead within one training: PerfDoctor, an empty callback and no callback in alternation.

Two processes of the same training differ by a tenth and more for as long as they live, because of their memory layout,
and the speed of a shared machine changes within seconds. So here a single ``Trainer.fit`` alternates in turns of 67
steps: with PerfDoctor at its defaults; with an empty ``Callback`` instead, and the Trainer's own profiler restored; and
with no callback. Nothing else changes between turns. The first steps of a turn, when caches are cold, are not timed.
The CPU time of PerfDoctor's background thread falls on all turns alike and is reported separately: the CPU time of the
process minus that of the training thread.

``run.py --within`` runs this once per start. The last line of output is a JSON object: ``taken_us`` maps an arm to the
wall and CPU time per step of each of its turns; ``thread_us`` is the CPU time per step of other threads.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from typing import Any

from arm import loader

ARMS = ("PerfDoctor()", "empty callback", "bare")
STEPS_PER_TURN = 67
"""A prime, so that work PerfDoctor does at powers of two does not always fall on untimed steps."""

UNTIMED_STEPS = 7
WARMUP_STEPS = 45 * STEPS_PER_TURN
"""Over 3,000, to include PerfDoctor's warm-up, its window, its first sampled steps and two aggregations."""


def _module(n_turns: int) -> Any:
    import torch
    from lightning.pytorch import Callback, LightningModule
    from lightning.pytorch.profilers import PassThroughProfiler

    class Empty(Callback):
        """A callback whose hooks do nothing."""

    class TinyModel(LightningModule):
        """A linear layer that exchanges the Trainer's callback between turns."""

        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(8, 2)
            self.taken_us: dict[str, list[tuple[float, float]]] = {arm: [] for arm in ARMS}
            self.thread_us = 0.0
            self._started = (0, 0)
            self._first_clocks = (0, 0)
            self._kept: dict[str, Any] = {}

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            within = batch_idx % STEPS_PER_TURN
            if batch_idx < WARMUP_STEPS:
                pass
            elif within == 0:
                self._switch((batch_idx - WARMUP_STEPS) // STEPS_PER_TURN)
            elif within == UNTIMED_STEPS:
                self._started = time.perf_counter_ns(), time.thread_time_ns()
            elif within == STEPS_PER_TURN - 1:
                n_us = 1e3 * (STEPS_PER_TURN - 1 - UNTIMED_STEPS)
                wall_us = (time.perf_counter_ns() - self._started[0]) / n_us
                self.taken_us[self._arm].append((wall_us, (time.thread_time_ns() - self._started[1]) / n_us))
            return self.net(batch).sum()

        def _switch(self, turn: int) -> None:
            trainer = self.trainer
            if turn == 0:
                self._kept = {
                    "callbacks": list(trainer.callbacks),
                    "profiler": trainer.profiler,
                    "plain": PassThroughProfiler(),
                }
                self._first_clocks = (time.process_time_ns(), time.thread_time_ns())
            self._arm = (*ARMS, *reversed(ARMS))[turn % (2 * len(ARMS))]
            if turn == n_turns:
                process_ns, thread_ns = time.process_time_ns(), time.thread_time_ns()
                other_threads_ns = process_ns - self._first_clocks[0] - (thread_ns - self._first_clocks[1])
                self.thread_us = other_threads_ns / 1e3 / (n_turns * STEPS_PER_TURN)
                trainer.should_stop, self._arm = True, ARMS[0]
            # PerfDoctor is removed in the middle of a step, so it would miss the batch end.
            self._kept["callbacks"][0]._probes.loop.main.batch_ends()
            is_doctors = self._arm == ARMS[0]
            trainer.profiler = self._kept["profiler" if is_doctors else "plain"]
            trainer.callbacks[:] = (
                self._kept["callbacks"] if is_doctors else [Empty()] if self._arm == "empty callback" else []
            )

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return TinyModel()


def main() -> None:
    """Train for ``sys.argv[1]`` turns."""
    import torch
    from lightning.pytorch import Trainer

    from lightning_perf import PerfDoctor

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            max_epochs=1,
            accelerator="cpu",
            devices=1,
            logger=False,
            default_root_dir=folder,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[PerfDoctor(out_dir=folder)],
        )
        module = _module(int(sys.argv[1]))
        trainer.fit(module, loader())
    print(json.dumps({"taken_us": module.taken_us, "thread_us": module.thread_us}))


if __name__ == "__main__":
    main()
