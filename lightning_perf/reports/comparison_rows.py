"""What reports say of a comparison, worked out once: the headline, the tables, the cautions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lightning_perf.records import (
    Change,
    ComparedRun,
    Comparison,
    Difference,
    FigureChange,
    FindingChange,
    Interval,
    TimeChange,
)

from .trial_rows import times
from .wording import NOT_TOLD, count, line, phase_name, quantity, seconds, share

TIME_HEADS = ("", "base", "new", "change", "95 %", "")
FIGURE_HEADS = ("", "base", "new", "change")
FINDING_HEADS = ("finding", "base", "new", "what it says")
DIFFERENCE_HEADS = ("what", "base", "new")
TRIAL_HEADS = ("treatment", "base", "new")

MAX_DIFFERENCES = 40
"""Lines of settings or environment that are shown; JSON has them all."""

_VERDICTS: dict[Change, str] = {
    "faster": "faster",
    "slower": "slower",
    "no_change": "no change",
    "inconclusive": "inconclusive",
}
_TOO_WIDE = 20  # times from end to end: such an interval says nothing
_NEGLIGIBLE = 0.002  # of the step: phases that changed by less, and have no verdict, are left out


class FindingRow(NamedTuple):
    """One finding: ``+`` appeared, ``−`` went, empty where it stayed."""

    sign: str
    name: str
    base: str
    new: str
    text: str


def headline(comparison: Comparison) -> str:
    """The comparison in one sentence."""
    step, wall = comparison.time("step"), comparison.time("wall")
    shown = step
    if wall is not None and wall.change in ("faster", "slower") and (step is None or step.change not in _CLEAR):
        shown = wall
    if shown is None or shown.base_s is None or shown.new_s is None:
        return "Nothing to compare: " + (line(shown.reason, 300) if shown is not None else "no time was measured")
    what = f"a {comparison.per}" if shown.name == "step" else f"a {comparison.per} with all that is between"
    if shown.ratio is None:
        told = f"{what} took {seconds(shown.base_s)}, now {seconds(shown.new_s)}; {line(shown.reason, 200)}"
        return f"Inconclusive: {told}"
    label = {"faster": "Faster", "slower": "Slower", "no_change": "No change"}.get(shown.change, "Inconclusive")
    sentence = f"{label}: {what} takes {_longer(shown.ratio.value)} (95 %: {_range(shown.ratio)})"
    return sentence + (_cause(comparison, shown) if shown.change in _CLEAR else "")


_CLEAR = ("faster", "slower")


def facts(comparison: Comparison) -> list[str]:
    """What was compared, and how."""
    return [
        f"base {_runs(comparison.base)}",
        f"new {_runs(comparison.new)}",
        f"runs differ by ±{share(comparison.run_noise_fraction, 1)} ({line(comparison.run_noise_basis, 120)})"
        if not comparison.run_noise_basis.startswith("not used")
        else "runs tell themselves what they differ by",
    ]


def cautions(comparison: Comparison) -> list[str]:
    """What makes it weaker than its figures look."""
    return [line(caution, 200) for caution in comparison.cautions]


def time_rows(comparison: Comparison) -> list[tuple[str, str, str, str, str, str]]:
    """Times by how they changed; phases that hardly did are left out."""
    step = comparison.time("step")
    least = _NEGLIGIBLE * max((step.base_s or 0.0, step.new_s or 0.0)) if step is not None else 0.0
    rows = []
    for one in comparison.times:
        is_phase = one.name not in ("step", "wall")
        if is_phase and one.change not in _CLEAR and abs((one.new_s or 0.0) - (one.base_s or 0.0)) < least:
            continue
        rows.append(
            (
                _time_name(one.name, comparison.per),
                seconds(one.base_s),
                seconds(one.new_s),
                _change(one.base_s, one.new_s),
                _range(one.ratio) if one.ratio is not None else "",
                _VERDICTS[one.change] if one.ratio is not None else "",
            )
        )
    return rows


def no_interval(comparison: Comparison) -> list[str]:
    """Why the main times have no interval; empty where they have one."""
    return [
        f"{_time_name(one.name, comparison.per)} has no interval: {line(one.reason, 200)}"
        for one in comparison.times
        if one.name in ("step", "wall") and one.ratio is None and one.reason
    ]


def figure_rows(comparison: Comparison) -> list[tuple[str, str, str, str]]:
    """Memory, throughput and other figures without an interval."""
    return [_figure(one) for one in comparison.figures]


def finding_rows(comparison: Comparison) -> list[FindingRow]:
    """Findings that appeared, then those that went, then those whose severity changed."""
    return [_finding(one) for one in comparison.findings if one.base != one.new]


def stayed(comparison: Comparison) -> str:
    """Findings that both sides have; empty without any."""
    same = [one for one in comparison.findings if one.base == one.new]
    return ", ".join(f"{line(one.code, 16)} {line(one.name, 60)} ({one.new})" for one in same)


def difference_rows(differences: Sequence[Difference]) -> list[tuple[str, str, str]]:
    """At most ``MAX_DIFFERENCES``; the last row tells how many more there are."""
    rows = [
        (line(one.name, 80), _value(one.base), _value(one.new))
        for one in differences[:MAX_DIFFERENCES]
    ]  # fmt: skip
    if len(differences) > MAX_DIFFERENCES:
        rows.append((f"and {len(differences) - MAX_DIFFERENCES} more (--format json has all)", "", ""))
    return rows


def trial_rows(comparison: Comparison) -> list[tuple[str, str, str]]:
    """What each side's trial says of each treatment."""
    return [
        (line(one.arm, 80), _speedup(one.base, one.base_verdict), _speedup(one.new, one.new_verdict))
        for one in comparison.trials
    ]


def gate_line(regressions: Sequence[TimeChange], percent: float) -> str:
    """What a gate says that fails."""
    told = [f"{_gated(one.name)} {_longer(one.ratio.value)}, at least {percent_change(one.ratio.low)}"
            for one in regressions if one.ratio is not None]  # fmt: skip
    return f"regression beyond {percent:g} %: " + "; ".join(told)


def _gated(name: str) -> str:
    return "a step takes" if name == "step" else "a step with all that is between takes"


def _cause(comparison: Comparison, shown: TimeChange) -> str:
    """The phase that makes up most of the change, where one does."""
    if shown.base_s is None or shown.new_s is None:
        return ""
    total = shown.new_s - shown.base_s
    phases = [one for one in comparison.times if one.name not in ("step", "wall")]
    phases = [one for one in phases if one.base_s is not None and one.new_s is not None]
    changes = [((one.new_s or 0.0) - (one.base_s or 0.0), one.name) for one in phases]
    same_way = [(change, name) for change, name in changes if change * total > 0]
    if not same_way:
        return ""
    change, name = max(same_way, key=lambda item: abs(item[0]))
    if abs(change) <= 0.5 * abs(total):
        return ""
    return f"; mostly {phase_name(name)} ({'+' if change > 0 else '−'}{seconds(abs(change))})"


def _time_name(name: str, per: str) -> str:
    if name == "step":
        return f"a {per}, typical"
    return f"a {per}, all included" if name == "wall" else phase_name(name)


def _runs(runs: Sequence[ComparedRun]) -> str:
    first = line(runs[0].source or runs[0].id, 80)
    many = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    steps = count(sum(one.n_steps for one in runs), "steady step")
    return f"{first}{many} ({steps})"


def _finding(one: FindingChange) -> FindingRow:
    sign = "+" if one.base is None else "−" if one.new is None else ""
    absent = "not checked" if one.unchecked else "none"
    text = line(one.summary, 200)
    if one.unchecked:
        text = f"not checked on one side ({line(one.unchecked, 80)}). {text}"
    name = f"{line(one.code, 16)} {line(one.name, 60)}"
    return FindingRow(sign, name, one.base or absent, one.new or absent, text)


def _figure(one: FigureChange) -> tuple[str, str, str, str]:
    def told(value: float | None) -> str:
        return NOT_TOLD if value is None else quantity(value, one.unit)

    return line(one.name, 60), told(one.base), told(one.new), _change(one.base, one.new)


def _value(text: str | None) -> str:
    return "none" if text is None else line(text, 60) or "empty"


def _speedup(interval: Interval | None, verdict: str | None) -> str:
    if verdict is None:
        return "not tried"
    told = f"{times(interval.value)} ({times(interval.low)[:-1]}–{times(interval.high)[:-1]}), " if interval else ""
    return told + verdict.replace("_", " ")


def _change(base: float | None, new: float | None) -> str:
    if base is None or new is None or base <= 0:
        return ""
    return percent_change(new / base)


def percent_change(ratio: float) -> str:
    """``+10.2 %``; beyond a factor of 10 as ``12.0×``."""
    if not 0.1 <= ratio < 10:
        return times(ratio)
    change = 100 * (ratio - 1)
    text = f"{abs(change):.1f} %"
    return text if text == "0.0 %" else ("+" if change > 0 else "−") + text


def _longer(ratio: float) -> str:
    if not 0.1 <= ratio < 10:
        return f"{times(ratio)} the time"
    text = f"{abs(100 * (ratio - 1)):.1f} %"
    return "as long as before" if text == "0.0 %" else f"{text} {'more' if ratio > 1 else 'less'} time"


def _range(interval: Interval) -> str:
    if interval.high > _TOO_WIDE * interval.low:
        return "anything"
    if interval.low < 0.1 or interval.high >= 10:  # both ends as factors, or neither
        return f"{times(interval.low)} to {times(interval.high)}"
    return f"{percent_change(interval.low)} to {percent_change(interval.high)}"
