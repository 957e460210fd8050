"""What a trial measured: the ladder of treatments, what was left out and why, what to copy."""

import re
from collections.abc import Iterator
from statistics import fmean, median

from lightning_perf.records import Arm, ArmRun, Interval, LossVerdict, Rung, Trial
from lightning_perf.reports.cells import Cell, Column, Heads, Rows, Value
from lightning_perf.reports.cells import size as size_cell
from lightning_perf.reports.document import AnyPart, Code, Document, facts, heading, note, section, table
from lightning_perf.reports.wording import block, count, gain, interval_text, line, seconds, share, speedup_text, times

_WIDE = 92
_PAIR = ("baseline", "baseline-again")
_LOSSES: dict[LossVerdict, str] = {
    "identical": "identical",
    "within_noise": "in noise",
    "diverged": "diverged",
    "not_judged": "not judged",
    "unknown": "",
}
_VERDICTS = {"no_change": "no change"}
MEASUREMENT = "bare-loop"
"""Id of the treatment, and of its arm, that measures the cost of Lightning; a trial never keeps it."""
_SEARCH = -1
"""Stage of runs that search the fastest batch size."""
_MAX_SPREAD = 1.25
"""Slowest ÷ fastest run of the baseline; above it, effects of usual size cannot be measured."""
_NAME = 60
_PASTED = 60
_SENTENCE = 600


def trial_document(trial: Trial) -> Document:
    """Return everything about one trial."""
    return Document(None, (), (section("trial", "", trial_parts(trial)),))


def trial_parts(trial: Trial) -> Iterator[AnyPart]:
    """Yield the result, the ladder, each treatment alone, what was left out, and what to copy."""
    yield heading(f"Trial of {line(' '.join(trial.command), 120)}" if trial.command else "Trial")
    yield note(headline(trial), "strong")
    if trial.lightning_cost is not None and len(_treatments(trial)) > 0:
        yield note(line(trial.lightning_cost.text, _SENTENCE))
    yield facts(trial_facts(trial), "Method")
    ladder = ladder_rows(trial)
    heads: Heads = (
        "ladder",
        "speedup (95 % CI)",
        "on top",
        "predicted",
        Column("peak", 80),
        "losses",
        Column("verdict", _WIDE),
    )
    yield table(heads, ladder if len(ladder) > 1 else [], key="ladder")
    heads = ("alone", "speedup (95 % CI)", "", "predicted", Column("peak", _WIDE), Column("losses", _WIDE), "verdict")
    yield table(heads, alone_rows(trial), key="alone")
    yield facts([batch_fact(trial)], "Batch size")
    yield facts(compile_facts(trial), "Compile time")
    yield table(("left out", "reason"), left_out(trial), key="left-out")
    for label, language, lines in pasted(trial):
        yield Code(tuple(lines), label, language)


def ladder_rows(trial: Trial) -> list[tuple[Cell, ...]]:
    """Return the rungs in the order tried: the baseline, then each treatment on top of those kept before it."""
    rows: Rows = []
    for rung in trial.ladder:
        if not rung.added:
            name, _, *rest = _cells("baseline", rung, rung.step_gain)
            rows.append((name, Value("1.00x", 1.0), *rest[:-1], ""))
        elif rung.is_kept or "+" in rung.arm or rung.step_gain is not None:  # measured on top of the rung below
            rows.append(_cells(f"{'+' if rung.is_kept else '−'} {line(rung.added, _NAME)}", rung, rung.step_gain))
    return rows


def alone_rows(trial: Trial) -> list[tuple[Cell, ...]]:
    """Return each treatment alone, the fastest first; empty if the ladder already shows all of them."""
    arms = _treatments(trial)
    on_ladder = {rung.arm for rung in trial.ladder if rung.is_kept}
    if all(arm.id in on_ladder for arm in arms):
        return []
    return [
        _cells(line(arm.id, _NAME), arm)
        for arm in sorted(arms, key=lambda arm: -(arm.speedup.value if arm.speedup else 0))
    ]


def headline(trial: Trial) -> str:
    """Return the result in one sentence."""
    best = next((arm for arm in trial.arms if arm.id == trial.best and arm.treatments), None)
    if best is not None:
        which = ", ".join(line(treatment, _NAME) for treatment in best.treatments)
        if best.speedup is None:
            return f"Faster with {which}, the speedup over the baseline could not be measured"
        return f"{times(best.speedup.value)} faster (95 % CI {interval_text(best.speedup)}) with {which}"
    baseline = next((arm for arm in trial.arms if arm.id == _PAIR[0]), None)
    if baseline is not None and baseline.verdict == "failed":
        return f"Nothing was measured: the baseline failed: {line(baseline.reason, 300)}"
    noise = baseline_noise(trial)
    if trial.lightning_cost is not None and not _treatments(trial):
        return line(trial.lightning_cost.text, _SENTENCE) + (f". {noise}" if noise else "")
    if not _treatments(trial):
        is_asked = MEASUREMENT in trial.not_tried or any(arm.id == MEASUREMENT for arm in trial.arms)
        return "Lightning's cost was not measured" if is_asked else "No treatment was measured"
    if noise:
        return noise
    if not any(arm.speedup is not None for arm in _treatments(trial)):
        reason = next((arm.reason for arm in _treatments(trial) if arm.verdict != "failed"), "all failed")
        return f"No treatment was compared with the baseline: {line(reason, 300)}"
    return "No treatment made this training measurably faster"


def baseline_noise(trial: Trial) -> str:
    """Return that nothing can be measured and what to do, if the baseline's step time varies too much; else empty."""
    pair = [run for run in trial.runs if run.arm in _PAIR and run.status == "ok"]
    means = [fmean(run.block_means_s) for run in pair if run.block_means_s]
    if len(means) < 2 <= len(pair) - len(means):
        what = f"step times of the baseline change during {len(pair) - len(means)} of {len(pair)} runs"
    elif len(means) >= 2 and max(means) > _MAX_SPREAD * min(means):
        what = f"the baseline varies between {seconds(min(means))} and {seconds(max(means))} per step"
    else:
        return ""
    return f"Not measurable now: {what}; stop other programs, or use longer runs: --steps {2 * trial.steps}"


def trial_facts(trial: Trial) -> list[str]:
    """Return how it was measured."""
    facts = [line(trial.status, 16)]
    if trial.runs:
        facts.append(count(len(trial.runs), "run"))
    if trial.steps:
        facts.append(f"{count(trial.steps, 'optimizer step')} each")
    if trial.basis == "wall":
        facts.append("whole epochs, including time between steps")
    facts.append(seconds(trial.wall_s))
    if trial.aa is None and len([run for run in trial.runs if run.arm in _PAIR and run.block_means_s]) < 2:
        return facts  # nothing shows the noise
    pair = f", A/A pair {speedup_text(trial.aa)}" if trial.aa is not None else ""
    facts.append(f"noise ±{share(trial.noise_band, decimals=1)}{pair}")
    return facts


def batch_fact(trial: Trial) -> str:
    """Return throughput by multiple of the batch size, relative to the arm below; empty if no size was tried."""
    tried = [run for run in trial.runs if run.stage == _SEARCH]
    if not tried:
        return ""
    below = tried[0].arm.rpartition("+")[0] or _PAIR[0]
    rates = [_rate(run, 1) for run in trial.runs if run.arm == below and run.block_means_s]
    usual = median(rates) if rates else 0.0
    if usual <= 0:
        return ""
    parts = []
    for run in tried:
        digits = re.search(r"[0-9]{1,9}", run.arm.rpartition("=")[2])
        factor = int(digits[0]) if digits is not None else 1
        rate = times(_rate(run, factor) / usual) if run.block_means_s else line(run.reason, 80) or "failed"
        parts.append((factor, f"{factor}x: {rate}"))
    return "relative samples/s by batch size: " + ", ".join(text for _, text in sorted(parts))


def compile_facts(trial: Trial) -> list[str]:
    """Return, for each faster arm that compiles, for how long, and after how many steps that pays."""
    planned = "" if trial.planned_steps is None else f" ({trial.planned_steps:,} planned)"
    return [
        f"{line(arm.id, _NAME)} compiles for {seconds(arm.compile_s)}, which pays after "
        f"{count(arm.pays_after_steps, 'step')}{planned}"
        for arm in trial.arms
        if arm.pays_after_steps is not None
    ]


def left_out(trial: Trial) -> list[tuple[str, str]]:
    """Return treatments that are not on the ladder, and the reason: first measured ones, then untried ones."""
    rows = [(line(rung.added, _NAME), _why(rung.verdict, rung.reason)) for rung in trial.ladder if not rung.is_kept]
    named = {rung.added for rung in trial.ladder}
    if trial.lightning_cost is not None:
        named.add(MEASUREMENT)
    for arm in trial.arms:
        if len(arm.treatments) == 1 and arm.id not in named and arm.verdict != "improved":
            rows.append((line(arm.id, _NAME), _why(arm.verdict, arm.reason)))
    not_tried = [(line(treatment, _NAME), f"not tried: {line(why, 300)}") for treatment, why in trial.not_tried.items()]
    return rows + not_tried


def pasted(trial: Trial) -> list[tuple[str, str, list[str]]]:
    """Return what to copy, by label and language; empty if nothing is kept."""
    blocks = [("Python", "python", trial.code), ("LightningCLI configuration", "yaml", trial.yaml)]
    return [(label, language, block(text, _PASTED)) for label, language, text in blocks if text.strip()]


def _treatments(trial: Trial) -> list[Arm]:
    """Return the arms of single treatments."""
    return [arm for arm in trial.arms if len(arm.treatments) == 1 and arm.id != MEASUREMENT]


def _rate(run: ArmRun, factor: int) -> float:
    block_s = median(run.block_means_s)
    return factor * run.batches_per_step / block_s if block_s > 0 else 0.0


def _cells(name: str, one: Arm | Rung, step_gain: Interval | None = None) -> tuple[Cell, ...]:
    return (
        name,
        Value(speedup_text(one.speedup), one.speedup.value if one.speedup is not None else None),
        Value(times(step_gain.value), step_gain.value) if step_gain else Value(""),
        Value(gain(one.predicted)),
        size_cell(one.peak_bytes),
        _LOSSES[one.loss],
        _VERDICTS.get(one.verdict, one.verdict),
    )


def _why(verdict: str, reason: str) -> str:
    text = _VERDICTS.get(verdict, verdict)
    return f"{text}: {line(reason, 300)}" if reason else text
