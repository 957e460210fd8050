"""What reports say of a trial, worked out once: the ladder, what was left out of it and why, what to paste."""

from __future__ import annotations

import math
from statistics import median
from typing import NamedTuple

from lightning_perf.records import Arm, ArmRun, Interval, LossVerdict, Rung, Trial

from .wording import block, count, gain, line, seconds, share, size

HEADS = ("rung", "speed-up", "95 %", "on top", "predicted", "peak", "losses", "verdict")
"""Of the ladder's columns; where there is no room, the last is left out: what is kept is improved."""

_PAIR = ("baseline", "baseline-again")
_LOSSES: dict[LossVerdict, str] = {
    "identical": "identical",
    "within_noise": "in noise",
    "diverged": "diverged",
    "not_judged": "not judged",
    "unknown": "",
}
_VERDICTS = {"no_change": "no change"}
_SEARCH = -1
_TOO_WIDE = 20  # times from end to end: of two runs that differ much, an interval says nothing
_NAME = 60
_PASTED = 60


class LadderRow(NamedTuple):
    """One rung, in words; what was not measured is empty.

    Attributes:
        name: ``baseline``, ``+ treatment`` where it is kept, ``− treatment`` where it was left out.
        speedup: Over the baseline.
        interval: Of the speed-up, 95 %.
        step_gain: Over the rung below.
        predicted: What the rule expected.
        peak: Memory.
        losses: Against the baseline's.
        verdict: On top of the rung below.
    """

    name: str
    speedup: str
    interval: str
    step_gain: str
    predicted: str
    peak: str
    losses: str
    verdict: str


def trial_title(trial: Trial) -> str:
    """What was tried."""
    return f"Trial of {line(' '.join(trial.command), 120)}" if trial.command else "Trial"


def headline(trial: Trial) -> str:
    """What came of it, in one sentence."""
    best = next((arm for arm in trial.arms if arm.id == trial.best and arm.treatments), None)
    if best is not None:
        which = ", ".join(line(treatment, _NAME) for treatment in best.treatments)
        if best.speedup is None:
            return f"Faster with {which}, by how much over the baseline could not be measured"
        return f"{times(best.speedup.value)} faster ({_range(best.speedup)}) with {which}"
    baseline = next((arm for arm in trial.arms if arm.id == _PAIR[0]), None)
    if baseline is not None and baseline.verdict == "failed":
        return f"Nothing could be measured: the baseline failed: {line(baseline.reason, 300)}"
    if not any(arm.treatments for arm in trial.arms):
        return "No treatment was measured"
    return "No treatment was shown to make this training faster"


def trial_facts(trial: Trial) -> list[str]:
    """How it was measured."""
    facts = [line(trial.status, 16)]
    if trial.runs:
        facts.append(count(len(trial.runs), "run"))
    if trial.steps:
        facts.append(f"{count(trial.steps, 'optimizer step')} each")
    if trial.basis == "wall":
        facts.append("of whole epochs, with what is between the steps")
    facts.append(seconds(trial.wall_s))
    pair = f", the A/A pair {times(trial.aa.value)} ({_range(trial.aa)})" if trial.aa is not None else ""
    facts.append(f"noise ±{share(trial.noise_band, decimals=1)}{pair}")
    return facts


def ladder_rows(trial: Trial) -> list[LadderRow]:
    """The rungs in the order tried: the baseline, then each treatment on top of those kept before it."""
    return [_row(rung) for rung in trial.ladder if rung.is_kept or _was_on_top(rung)]


def alone_rows(trial: Trial) -> list[LadderRow]:
    """Each treatment by itself, the fastest first; empty where the ladder already says it all."""
    arms = [arm for arm in trial.arms if len(arm.treatments) == 1]
    told = {rung.arm for rung in trial.ladder if rung.is_kept}
    if all(arm.id in told for arm in arms):
        return []
    return [_alone(arm) for arm in sorted(arms, key=lambda arm: -(arm.speedup.value if arm.speedup else 0))]


def batch_fact(trial: Trial) -> str:
    """Throughput by multiple of the batch size, over the arm it was tried on; empty where it was not looked for."""
    tried = [run for run in trial.runs if run.stage == _SEARCH]
    if not tried:
        return ""
    below = tried[0].arm.rpartition("+")[0] or _PAIR[0]
    usual = [_rate(run, 1) for run in trial.runs if run.arm == below and run.block_means_s]
    if not usual:
        return ""
    parts = []
    for run in tried:
        factor = int("".join(filter(str.isdigit, run.arm.rpartition("=")[2])) or 1)
        rate = times(_rate(run, factor) / median(usual)) if run.block_means_s else line(run.reason, 80) or "failed"
        parts.append((factor, f"{factor} times the size {rate}"))
    return "samples a second by batch size: " + ", ".join(text for _, text in sorted(parts))


def left_out(trial: Trial) -> list[tuple[str, str]]:
    """Treatments that are not on the ladder, and why: measured and left out, then never tried."""
    rows = [(line(rung.added, _NAME), _why(rung.verdict, rung.reason)) for rung in trial.ladder if not rung.is_kept]
    named = {rung.added for rung in trial.ladder}
    for arm in trial.arms:
        if len(arm.treatments) == 1 and arm.id not in named and arm.verdict != "improved":
            rows.append((line(arm.id, _NAME), _why(arm.verdict, arm.reason)))
    not_tried = [(line(treatment, _NAME), f"not tried: {line(why, 300)}") for treatment, why in trial.not_tried.items()]
    return rows + not_tried


def pasted(trial: Trial) -> list[tuple[str, str, list[str]]]:
    """What to paste, by label and language; empty where nothing is kept."""
    blocks = [("paste", "python", trial.code), ("as LightningCLI configuration", "yaml", trial.yaml)]
    return [(label, language, block(text, _PASTED)) for label, language, text in blocks if text.strip()]


def times(value: float) -> str:
    """A ratio: ``1.50×``, ``12.3×``."""
    if not math.isfinite(value):
        return "n/a"
    return f"{value:.2f}×" if abs(value) < 9.995 else f"{value:.1f}×" if abs(value) < 99.95 else f"{value:,.0f}×"


def _range(interval: Interval) -> str:
    if interval.high > _TOO_WIDE * interval.low:
        return "anything"
    return f"{times(interval.low)[:-1]}–{times(interval.high)[:-1]}"


def _rate(run: ArmRun, factor: int) -> float:
    return factor * run.batches_per_step / median(run.block_means_s)


def _was_on_top(rung: Rung) -> bool:
    return "+" in rung.arm or (rung.step_gain is not None and not rung.is_kept)


def _row(rung: Rung) -> LadderRow:
    is_baseline = not rung.added
    return LadderRow(
        name="baseline" if is_baseline else f"{'+' if rung.is_kept else '−'} {line(rung.added, _NAME)}",
        speedup="1.00×" if is_baseline else times(rung.speedup.value) if rung.speedup else "",
        interval=_range(rung.speedup) if rung.speedup else "",
        step_gain=times(rung.step_gain.value) if rung.step_gain else "",
        predicted=gain(rung.predicted),
        peak=size(rung.peak_bytes) if rung.peak_bytes is not None else "",
        losses=_LOSSES[rung.loss],
        verdict="" if is_baseline else _VERDICTS.get(rung.verdict, rung.verdict),
    )


def _alone(arm: Arm) -> LadderRow:
    return LadderRow(
        name=line(arm.id, _NAME),
        speedup=times(arm.speedup.value) if arm.speedup else "",
        interval=_range(arm.speedup) if arm.speedup else "",
        step_gain="",
        predicted=gain(arm.predicted),
        peak=size(arm.peak_bytes) if arm.peak_bytes is not None else "",
        losses=_LOSSES[arm.loss],
        verdict=_VERDICTS.get(arm.verdict, arm.verdict),
    )


def _why(verdict: str, reason: str) -> str:
    told = _VERDICTS.get(verdict, verdict)
    return f"{told}: {line(reason, 300)}" if reason else told
