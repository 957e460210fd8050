"""What Lightning costs per step, from the arm ``bare-loop`` of a trial."""

from collections.abc import Sequence

from lightning_perf.records import Arm, Interval, LightningCost, LossVerdict, Session
from lightning_perf.reports.sections.trials import MEASUREMENT
from lightning_perf.reports.wording import seconds

from .judge import AGAIN, BASELINE

_LOSSES: dict[LossVerdict, str] = {
    "within_noise": "the losses of the plain loop agree with the Trainer's only up to noise",
    "diverged": "the losses differ, so the plain loop does not train the same and the figure is unreliable",
}


def features_of(session: Session) -> tuple[str, ...]:
    """Return the names of the parts of Lightning that a training uses in its steps, with their settings."""
    trainer = session.settings.trainer
    features = [name for name in trainer.callbacks if name != trainer.progress_bar]
    if trainer.progress_bar is not None:
        features.append(trainer.progress_bar)
    features += [f"{name} every {trainer.log_every_n_steps} steps" for name in trainer.loggers]
    if trainer.profiler is not None:
        features.append(trainer.profiler)
    if trainer.gradient_clip_val:
        features.append("gradient clipping")
    if (trainer.accumulate_grad_batches or 1) > 1:
        features.append(f"accumulation over {trainer.accumulate_grad_batches} batches")
    features += [name for name in (trainer.strategy, trainer.precision) if name is not None]
    return tuple(features)


def lightning_cost(arms: Sequence[Arm], features: Sequence[str]) -> LightningCost | None:
    """Return what Lightning costs per step, by the judged arms; None if the plain loop was not measured.

    Its share of a step is 1 - 1 / speedup of the plain loop, so the interval of the share follows from the speedup's.
    """
    found = {arm.id: arm for arm in arms}
    baseline = next((found[id_] for id_ in (BASELINE, AGAIN) if id_ in found and found[id_].step_s is not None), None)
    plain = found.get(MEASUREMENT)
    if baseline is None or baseline.step_s is None or plain is None or plain.speedup is None or plain.speedup.low <= 0:
        return None
    step_s, speedup = baseline.step_s.value, plain.speedup
    share = Interval(value=1 - 1 / speedup.value, low=1 - 1 / speedup.low, high=1 - 1 / speedup.high)
    cost_s = Interval(value=step_s * share.value, low=step_s * share.low, high=step_s * share.high)
    what = seconds(cost_s.value)
    if share.low <= 0:
        what = "no measurable time" if share.high <= 0 else f"at most {seconds(cost_s.high)}"
    percent = f"{100 * share.value:.1f} %, 95 %: {100 * share.low:.1f}–{100 * share.high:.1f} %".replace("-", "−")
    text = f"Lightning costs {what} of {seconds(step_s)} per step ({percent})"
    if features:
        text += f" with {', '.join(features)}"
    if plain.loss != "identical":
        text += f"; {_LOSSES.get(plain.loss, 'there are too few losses to compare')}"
    if plain.verdict == "inconclusive":
        text += f"; inconclusive: {plain.reason}"
    return LightningCost(
        step_s=step_s, cost_s=cost_s, share=share, features=tuple(features), loss=plain.loss, text=text
    )
