"""Follow the loss scaler of fp16 training: its scale, and the steps that it skips."""

from typing import Any

from lightning_perf.probes.base import Probe, RunContext
from lightning_perf.records import LossScaler
from lightning_perf.seams import remove_hook

WARMUP_STEPS = 50
"""First optimizer steps, of which a scaler may skip some dozen: it halves its scale until gradients are finite."""


class ScalerProbe(Probe):
    """Counts the optimizer steps that were requested and made; the others were skipped.

    Counting does not wait for the device. Reading the scale does, so it is read only between epochs.
    """

    name = "loss_scaler"
    field, reason = "loss_scaler", "this training has no loss scaler"
    stages = ("fit",)
    after = ("steps",)

    def __init__(self, run: RunContext) -> None:
        self._trainer = run.trainer
        self._scaler: Any = None
        self._n_made = 0
        self._first_step = 0
        self._warmup: tuple[int, int] | None = None  # steps requested and skipped in it
        self._first_scale: float | None = None
        self._scale: float | None = None
        self._hooked: list[Any] = []  # the optimizers that have our hook
        self._hook = self._made  # one object: `remove_hook` compares by identity

    def loops_ready(self, run: RunContext) -> None:
        scaler = getattr(getattr(self._trainer, "precision_plugin", None), "scaler", None)
        self._first_step = self._trainer.global_step
        if scaler is None or not scaler.is_enabled():
            return
        self._scaler = scaler
        self._hooked = list(self._trainer.optimizers)
        for optimizer in self._hooked:
            optimizer.register_step_post_hook(self._hook)
        self.epoch_ends()

    def _made(self, *args: Any, **kwargs: Any) -> None:
        requested = self._trainer.global_step - self._first_step
        if self._warmup is None and requested >= WARMUP_STEPS:
            self._warmup = (requested, max(0, requested - self._n_made))
        self._n_made += 1

    def epoch_ends(self) -> None:
        """Read the scale, which waits for the device: only between epochs."""
        if self._scaler is None:
            return
        self._scale = float(self._scaler.get_scale())
        if self._first_scale is None:
            self._first_scale = self._scale

    def close(self) -> None:
        for optimizer in self._hooked:
            remove_hook([optimizer._optimizer_step_post_hooks], self._hook)
        self._hooked = []

    def record(self) -> LossScaler | None:
        if self._scale is None or self._first_scale is None:
            return None
        requested = self._trainer.global_step - self._first_step
        skipped = max(0, requested - self._n_made)
        n_warmup, warmup_skips = self._warmup if self._warmup is not None else (requested, skipped)
        return LossScaler(
            scale=self._scale,
            first_scale=self._first_scale,
            n_steps=requested - n_warmup,
            skips=skipped - warmup_skips,
            n_warmup_steps=n_warmup,
            warmup_skips=warmup_skips,
        )
