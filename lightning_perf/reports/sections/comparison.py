"""The comparison of two runs: headline, times, findings, settings."""

from collections.abc import Iterator, Sequence

from lightning_perf.records import (
    ComparedRun,
    Comparison,
    Difference,
    FigureChange,
    FindingChange,
    Interval,
    TimeChange,
)
from lightning_perf.reports.cells import PAGE, Cell, Heads, Rows, Value
from lightning_perf.reports.cells import seconds as seconds_cell
from lightning_perf.reports.document import AnyPart, Document, Verdict, facts, listing, section, table
from lightning_perf.reports.wording import (
    TOO_WIDE,
    UNKNOWN,
    count,
    line,
    phase_name,
    quantity,
    seconds,
    share,
    speedup_text,
    times,
)

MAX_DIFFERENCES = 40
"""Differences shown; JSON has all of them."""

_NEGLIGIBLE = 0.002
"""Phases without a verdict that changed by less than this share of the step are left out."""


def comparison_document(comparison: Comparison) -> Document:
    """Return what got faster or slower, and what else differs."""
    differences = (("settings", "Different settings", comparison.settings),
                   ("environment", "Different environment", comparison.environment))  # fmt: skip
    return Document(
        Verdict(headline(comparison), comparison.times[0].change if comparison.times else "", ""),
        tuple(compared_facts(comparison)),
        (
            section("notes", "Notes", [listing((*comparison.cautions, *no_interval(comparison)))], is_short=True),
            section("times", "Time",
                    [table(("", "base", "new", "change", "95 % CI", "verdict"), time_rows(comparison), about=_BASIS,
                           key="times", bars="new", bars_min_width=PAGE)], is_short=True),
            section("findings", "Findings that appeared (+), disappeared (−) or changed", _findings(comparison),
                    is_short=True),
            section("figures", "Memory and throughput",
                    [table(("", "base", "new", "change"), [_figure(one) for one in comparison.figures],
                           key="figures")]),
            *(section(key, f"{title} ({len(each)})",
                      [table(("setting", "base", "new"), difference_rows(each), key=key)])
              for key, title, each in differences),
            section("trials", "Trials", [table(("treatment", "base", "new"), trial_rows(comparison),
                                               key="trial-changes")]),
        ),
    )  # fmt: skip


def _findings(comparison: Comparison) -> Iterator[AnyPart]:
    heads: Heads = ("finding", "base", "new", "summary")
    yield table(heads, [_finding(one) for one in comparison.findings if one.base != one.new], key="finding-changes")
    same = [f"{line(one.code, 16)} {line(one.name, 60)} ({one.new})" for one in comparison.findings
            if one.base == one.new]  # fmt: skip
    yield facts(["unchanged: " + ", ".join(same)] if same else [])


def headline(comparison: Comparison) -> str:
    """Return the comparison in one sentence."""
    step, wall = comparison.time("step"), comparison.time("wall")
    shown = step
    if wall is not None and wall.change in ("faster", "slower") and (step is None or step.change not in _CLEAR):
        shown = wall
    if shown is None or shown.base_s is None or shown.new_s is None:
        return "Nothing to compare: " + (line(shown.reason, 300) if shown is not None else "no time was measured")
    what = _time_name(shown.name, comparison.per)
    if shown.ratio is None:
        change_text = f"{what} was {seconds(shown.base_s)}, now {seconds(shown.new_s)}"
        return f"Inconclusive: {change_text}; {line(shown.reason, 200)}"
    if shown.change == "inconclusive":
        interval = _range(shown.ratio)
        why = "the runs vary too much to compare them" if interval == _UNKNOWN else f"95 % CI {interval}"
        return f"Inconclusive: {what} was {seconds(shown.base_s)}, now {seconds(shown.new_s)} ({why})"
    label = {"faster": "Faster", "slower": "Slower"}.get(shown.change, "No change")
    sentence = f"{label}: {what} {_longer(shown.ratio.value)} (95 % CI {_range(shown.ratio)})"
    return sentence + (_cause(comparison, shown) if shown.change in _CLEAR else "")


_CLEAR = ("faster", "slower")
_UNKNOWN = "unknown"
_BASIS = "times are medians of blocks of steps, so that slow steps count; a report's p50 is of single steps"


def compared_facts(comparison: Comparison) -> list[str]:
    """Return what was compared, and how."""
    return [
        f"base {_runs(comparison.base)}",
        f"new {_runs(comparison.new)}",
        f"run-to-run noise ±{share(comparison.run_noise_fraction, 1)} ({line(comparison.run_noise_basis, 120)})"
        if not comparison.run_noise_basis.startswith("not used")
        else "run-to-run noise measured from the repeated runs",
    ]


def time_rows(comparison: Comparison) -> list[tuple[Cell, ...]]:
    """Return the times with their change, without phases that hardly changed."""
    step = comparison.time("step")
    least = _NEGLIGIBLE * max((step.base_s or 0.0, step.new_s or 0.0)) if step is not None else 0.0
    rows: Rows = []
    for one in comparison.times:
        is_phase = one.name not in ("step", "wall")
        if is_phase and one.change not in _CLEAR and abs((one.new_s or 0.0) - (one.base_s or 0.0)) < least:
            continue
        interval, verdict = (_range(one.ratio), one.change.replace("_", " ")) if one.ratio is not None else ("", "")
        times_s = (seconds_cell(one.base_s), seconds_cell(one.new_s), change(one.base_s, one.new_s))
        rows.append((_time_name(one.name, comparison.per), *times_s, Value(interval), verdict))
    return rows


def no_interval(comparison: Comparison) -> list[str]:
    """Return why main times have no interval."""
    return [
        f"{_time_name(one.name, comparison.per)} has no interval: {line(one.reason, 200)}"
        for one in comparison.times
        if one.name in ("step", "wall") and one.ratio is None and one.reason
    ]


def difference_rows(differences: Sequence[Difference]) -> list[tuple[str, str, str]]:
    """Return at most `MAX_DIFFERENCES` rows; the last one counts the rest."""
    rows = [(line(one.name, 80), _value(one.base), _value(one.new)) for one in differences[:MAX_DIFFERENCES]]
    if len(differences) > MAX_DIFFERENCES:
        rows.append((f"and {len(differences) - MAX_DIFFERENCES} more (--format json has all)", "", ""))
    return rows


def trial_rows(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Return the result of each treatment on both sides."""
    return [
        (line(one.arm, 80), _speedup(one.base, one.base_verdict), _speedup(one.new, one.new_verdict))
        for one in comparison.trials
    ]


def gate_line(regressions: Sequence[TimeChange], percent: float, per: str) -> str:
    """Return the message of a failed regression gate; ``per`` is that of the comparison."""
    texts = [f"{_time_name(one.name, per)} {_longer(one.ratio.value)}, at least {percent_change(one.ratio.low)}"
            for one in regressions if one.ratio is not None]  # fmt: skip
    return f"regression beyond {percent:g} %: " + "; ".join(texts)


def _cause(comparison: Comparison, shown: TimeChange) -> str:
    """Return the phase that makes up most of the change; empty without one."""
    if shown.base_s is None or shown.new_s is None:
        return ""
    total = shown.new_s - shown.base_s
    changes = [
        (one.new_s - one.base_s, one.name)
        for one in comparison.times
        if one.name not in ("step", "wall") and one.base_s is not None and one.new_s is not None
    ]
    change, name = max(changes, key=lambda item: item[0] * total, default=(0.0, ""))
    if change * total <= 0 or abs(change) <= 0.5 * abs(total):
        return ""
    return f"; mostly {phase_name(name)} ({'+' if change > 0 else '−'}{seconds(abs(change))})"


def _time_name(name: str, per: str) -> str:
    if name == "step":
        return f"time per {per}"
    return f"wall time per {per}" if name == "wall" else phase_name(name)


def _runs(runs: Sequence[ComparedRun]) -> str:
    first = line(runs[0].source or runs[0].id, 80)
    many = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    steps = count(sum(one.n_steps for one in runs), "steady step")
    return f"{first}{many} ({steps})"


def _finding(one: FindingChange) -> tuple[Cell, ...]:
    sign = "+ " if one.base is None else "− " if one.new is None else ""
    absent = "not checked" if one.unchecked else "none"
    text = line(one.summary, 200)
    if one.unchecked:
        text = f"not checked on one side ({line(one.unchecked, 80)}). {text}"
    return f"{sign}{line(one.code, 16)} {line(one.name, 60)}", one.base or absent, one.new or absent, text


def _figure(one: FigureChange) -> tuple[Cell, ...]:
    cells = (Value(UNKNOWN if value is None else quantity(value, one.unit), value) for value in (one.base, one.new))
    return line(one.name, 60), *cells, change(one.base, one.new)


def _value(text: str | None) -> str:
    return "none" if text is None else line(text, 60) or "empty"


def _speedup(interval: Interval | None, verdict: str | None) -> str:
    if verdict is None:
        return "not tried"
    return ", ".join(filter(None, (speedup_text(interval), verdict.replace("_", " "))))


def change(base: float | None, new: float | None) -> Value:
    """Return the relative change as a cell; empty if it is unknown."""
    if base is None or new is None or base <= 0:
        return Value("")
    return Value(percent_change(new / base), new / base)


def percent_change(ratio: float) -> str:
    """Return ``+10.2 %``; beyond a factor of 10 ``12.0x``."""
    if ratio != 0 and not 0.1 <= ratio < 10:
        return times(ratio)
    change = 100 * (ratio - 1)
    text = f"{abs(change):.1f} %"
    return text if text == "0.0 %" else ("+" if change > 0 else "−") + text


def _longer(ratio: float) -> str:
    if not 0.1 <= ratio < 10:
        return f"is {times(ratio)} as long"
    text = f"{abs(100 * (ratio - 1)):.1f} %"
    return "is unchanged" if text == "0.0 %" else f"is {text} {'longer' if ratio > 1 else 'shorter'}"


def _range(interval: Interval) -> str:
    if interval.high > TOO_WIDE * interval.low:
        return _UNKNOWN
    if interval.low < 0.1 or interval.high >= 10:  # both ends as factors, or neither
        return f"{times(interval.low)} to {times(interval.high)}"
    return f"{percent_change(interval.low)} to {percent_change(interval.high)}"
