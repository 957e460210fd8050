"""A trial: treatments measured against the baseline on the user's own script."""

from typing import Any, Literal

from .base import Record
from .finding import Gain, Safety
from .text import clean_line

ArmVerdict = Literal["improved", "regressed", "no_change", "inconclusive", "failed"]
LossVerdict = Literal["identical", "within_noise", "diverged", "not_judged", "unknown"]


class Interval(Record, frozen=True, kw_only=True):
    """An estimate with a 95 % interval; all three have the unit of the field that holds the record."""

    value: float
    low: float
    high: float


class ArmRun(Record, frozen=True, kw_only=True):
    """One run of the user's script with an arm's treatments, with its raw measurements.

    Attributes:
        repeat: 0 for its first run.
        position: Position in the order of runs, from 0.
        status: ``ok``, ``failed`` or ``interrupted``.
        reason: Why it failed: the error's last line, a time limit, memory, NaN; empty otherwise.
        block_means_s: Mean seconds of an optimizer step, by block of ``block_steps`` in the steady state.
        block_steps: Optimizer steps per block.
        steady_from: Optimizer step at which the steady state began; None if it was never reached.
        samples_per_s: Over the steady state; None if batches have no known size.
        batches_per_step: Batches per optimizer step (accumulation).
        samples_per_step: Samples per optimizer step on all ranks together; None if batches have no known size.
        stage: Runs of the same stage were interleaved and can be compared: 0 for the baseline and single treatments,
            one more for each further rung; -1 for runs that search a batch size.
        peak_device_bytes: Peak of device memory; None on a CPU.
        peak_host_bytes: Peak resident memory of the process of rank 0, plus that of its loader workers at the end;
            None if it was not read.
        compile_s: Seconds that torch.compile took.
        losses: The loss of every ``loss_every`` th batch, from the first on.
        loss_every: Batches between two losses.
        log: File with the output of the process, relative to the trial's folder.
    """

    arm: str
    repeat: int
    position: int
    status: Literal["ok", "failed", "interrupted"]
    reason: str = ""
    block_means_s: tuple[float, ...] = ()
    block_steps: int = 0
    n_steps: int = 0
    steady_from: int | None = None
    samples_per_s: float | None = None
    batches_per_step: int = 1
    samples_per_step: float | None = None
    stage: int = 0
    peak_device_bytes: int | None = None
    peak_host_bytes: int | None = None
    compile_s: float = 0.0
    losses: tuple[float, ...] = ()
    loss_every: int = 1
    wall_s: float = 0.0
    log: str | None = None


class Arm(Record, frozen=True, kw_only=True):
    """Result of one combination of treatments.

    Attributes:
        id: ``"baseline"``, ``"baseline-again"`` (the other half of the A/A pair), or the treatments joined by ``+``.
        treatments: Treatments as given, e.g. ``("loader-workers=4", "precision-bf16")``; empty for the baseline.
        safety: The least safe of them.
        verdict: ``improved``, ``regressed``, ``no_change``, ``inconclusive`` or ``failed``, compared with the baseline.
        reason: Why it failed, or why it is inconclusive and how many more repeats would decide it; otherwise empty.
        speedup: Baseline step ÷ this arm's step, per sample if batch sizes differ; None for the baseline or if failed.
        p_value: Result of the exact permutation test; None if not computed.
        step_s: Seconds per optimizer step; None if failed.
        predicted: Speedup expected by the rule that recommended it; None if none did.
        peak_bytes: Median peak memory of its runs: of the device, or of the host on a CPU.
        loss: Whether its losses agree with those of the baseline.
        repeats_needed: Further repeats that would probably decide an inconclusive verdict; otherwise None.
        compile_s: Seconds by which torch.compile takes longer than in the baseline, in the slowest run: later ones may
            find compiled code in torch's cache.
        pays_after_steps: Optimizer steps of the baseline after which the speedup has saved ``compile_s``; None without
            compile time, or if the arm is not ``improved``.
    """

    id: str
    treatments: tuple[str, ...] = ()
    safety: Safety = "exact"
    verdict: ArmVerdict = "inconclusive"
    reason: str = ""
    speedup: Interval | None = None
    p_value: float | None = None
    step_s: Interval | None = None
    predicted: Gain | None = None
    peak_bytes: int | None = None
    loss: LossVerdict = "unknown"
    repeats_needed: int | None = None
    compile_s: float = 0.0
    pays_after_steps: int | None = None


class Rung(Record, frozen=True, kw_only=True):
    """One rung of the ladder: what a treatment adds to those kept before it.

    Attributes:
        added: The treatment of this rung; empty for the baseline.
        arm: Id of the arm that was measured.
        is_kept: Whether it is ``improved`` compared with the rung below.
        verdict: Comparison with the rung below.
        step_gain: Speedup over the rung below; None if failed.
        speedup: Speedup over the baseline; None if failed.
        predicted: Expected speedup of the treatment alone; None without a rule that recommends it.
        reason: Why it was left out; empty if kept.
    """

    added: str
    arm: str
    is_kept: bool
    verdict: ArmVerdict
    step_gain: Interval | None = None
    speedup: Interval | None = None
    predicted: Gain | None = None
    peak_bytes: int | None = None
    loss: LossVerdict = "unknown"
    reason: str = ""


class LightningCost(Record, frozen=True, kw_only=True):
    """What Lightning's Trainer costs per optimizer step, compared with a plain PyTorch loop of the same training.

    Attributes:
        step_s: Seconds per optimizer step with the Trainer.
        cost_s: Seconds by which the plain loop is faster.
        share: ``cost_s`` ÷ ``step_s``.
        features: Features of Lightning that the training uses: callbacks, loggers, gradient clipping, strategy …
        loss: Whether the losses of the plain loop agree with the Trainer's.
        text: The result in one sentence.
    """

    step_s: float
    cost_s: Interval
    share: Interval
    features: tuple[str, ...] = ()
    loss: LossVerdict = "unknown"
    text: str = ""


class Trial(Record, frozen=True, kw_only=True):
    """One trial of a command.

    Attributes:
        status: ``running`` until the end; ``interrupted`` by Ctrl-C, with verdicts on the runs until then.
        started_at: ISO 8601, UTC.
        noise_band: Relative change that counts as noise: from the A/A pair, at least 0.01.
        aa: Ratio of the two halves of the A/A pair; None if there was none.
        ladder: Cumulative, the baseline first.
        best: Id of the arm at the end of the ladder.
        code: Python code to paste.
        yaml: The same as a LightningCLI configuration; empty if nothing can be expressed in it.
        not_tried: Why a treatment was not tried, by treatment.
        basis: ``steps``: times are of optimizer steps only. ``wall``: of whole epochs, including validation,
            checkpoints and other time between steps, because some treatments act there.
        planned_steps: Optimizer steps of the whole training; None if unknown.
        lightning_cost: Result of the arm ``bare-loop``; None if it was not tried, or has no figure.
    """

    id: str
    command: tuple[str, ...]
    status: Literal["running", "finished", "interrupted", "failed"]
    started_at: str
    wall_s: float = 0.0
    steps: int = 0
    repeats: int = 0
    seed: int | None = None
    noise_band: float = 0.01
    aa: Interval | None = None
    arms: tuple[Arm, ...] = ()
    ladder: tuple[Rung, ...] = ()
    runs: tuple[ArmRun, ...] = ()
    best: str = "baseline"
    trainer_flags: dict[str, Any] = {}
    loader_args: dict[str, Any] = {}
    code: str = ""
    yaml: str = ""
    not_tried: dict[str, str] = {}
    basis: Literal["steps", "wall"] = "steps"
    planned_steps: int | None = None
    lightning_cost: LightningCost | None = None

    def __repr__(self) -> str:
        """Return one line; `str` gives the ladder and `Trial.arms` all results."""
        return f"Trial({', '.join(str(value) for _, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return what rich's pretty printer shows."""
        best = next((arm for arm in self.arms if arm.id == self.best and arm.speedup is not None), None)
        speedup = "" if best is None or best.speedup is None else f"{best.speedup.value:.2f}x with "
        n_runs = f"{len(self.runs)} run{'s' if len(self.runs) != 1 else ''}"
        return [("status", self.status), ("runs", n_runs), ("best", f"{speedup}{clean_line(self.best)}")]
