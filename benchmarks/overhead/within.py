"""What PerfDoctor adds to a step, measured within one training: the doctor, an empty callback and nothing, in turns.

Two processes of one and the same training differ by a tenth and more for as long as they live, by where their memory
happens to lie, and a shared machine's pace changes within seconds. So here one ``Trainer.fit`` takes turns of 67 steps:
with PerfDoctor as it is by default; with an empty ``Callback`` in its place and the Trainer's own profiler back; and
with no callback at all. Between turns nothing else changes. A turn's first steps are not timed, with caches cold. What
the doctor's background thread takes falls on all turns alike and is told by itself: the processor time of the process
less that of the training's thread.

Run by ``run.py --within``, once for each start; its last line is a JSON object: ``taken_us``, arm → what a step took in
each of its turns, by the wall and of the processor; ``thread_us``, what other threads took a step.
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
STEPS_A_TURN = 67
"""Prime, lest what the doctor does at powers of two always fall on steps that are not timed."""

UNTIMED_STEPS = 7
WARMUP_STEPS = 45 * STEPS_A_TURN
"""Over 3,000: the doctor's warm-up, its window, its first closer looks and two foldings lie in these."""


def _module(n_turns: int) -> Any:
    import torch
    from lightning.pytorch import Callback, LightningModule
    from lightning.pytorch.profilers import PassThroughProfiler

    class Empty(Callback):
        """Has every hook, does nothing in any."""

    class TinyModel(LightningModule):
        """A linear layer, that exchanges the Trainer's callback between turns."""

        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(8, 2)
            self.taken_us: dict[str, list[tuple[float, float]]] = {arm: [] for arm in ARMS}
            self.thread_us = 0.0
            self._started = (0, 0)
            self._first_clocks = (0, 0)
            self._kept: dict[str, Any] = {}

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            within = batch_idx % STEPS_A_TURN
            if batch_idx < WARMUP_STEPS:
                pass
            elif within == 0:
                self._switch((batch_idx - WARMUP_STEPS) // STEPS_A_TURN)
            elif within == UNTIMED_STEPS:
                self._started = time.perf_counter_ns(), time.thread_time_ns()
            elif within == STEPS_A_TURN - 1:
                n_us = 1e3 * (STEPS_A_TURN - 1 - UNTIMED_STEPS)
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
                beside_ns = process_ns - self._first_clocks[0] - (thread_ns - self._first_clocks[1])
                self.thread_us = beside_ns / 1e3 / (n_turns * STEPS_A_TURN)
                trainer.should_stop, self._arm = True, ARMS[0]
            # The doctor is taken out in the middle of a step, of whose end nobody will tell it.
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
    """Trains ``sys.argv[1]`` turns."""
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
