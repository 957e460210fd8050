"""Earlier runs of the same training: what became slower since, and what changed from run to run."""

import re
from collections.abc import Iterator

from lightning_perf.records import EarlierRun, Session
from lightning_perf.reports.cells import Column, Rows, number, seconds
from lightning_perf.reports.document import AnyPart, Figure, note, table
from lightning_perf.reports.wording import line, phase_name, share, times
from lightning_perf.stats.comparison import BAND

_FIELD = re.compile(r"\b(?:is|has|n)_(\w+?)(?:_on)?\b")
_NAMES = {"implementation": "optimizer implementation", "shm_bytes": "shared memory", "usable_cores": "usable cores"}
_MAX_CHANGES = 3
_LARGEST_DETECTABLE = 3.0
"""Of a larger slowdown no test is needed."""


def earlier_parts(session: Session) -> Iterator[AnyPart]:
    """Yield the earlier runs, newest first; nothing without any."""
    if session.earlier is None:
        return
    news, factor = session.earlier.news, session.earlier.detectable
    yield note(news, "strong")
    if factor is not None and not news:
        least = share(factor - 1) if factor < 2 else times(factor)
        machine = session.earlier.machine_factor or 1.0
        except_for = f", except for {share(machine - 1, 0)} because the machine is slower" if machine > 1 + BAND else ""
        text = (
            f"no slower than earlier runs{except_for}; a slowdown of {least} or more would be detected in 95 % of cases"
        )
        yield note(text if factor < _LARGEST_DETECTABLE else "earlier runs vary too much to compare this one with them")
    yield Figure("earlier_runs", "Time per step over the runs")
    runs = session.earlier.runs[::-1]
    rows: Rows = [(line(each.started_at.replace("T", " ").rstrip("Z"), 40), seconds(each.step_s),
                   number(each.n_steps), _longest(each), changes_text(each)) for each in runs]  # fmt: skip
    heads = ("started (UTC)", "step", Column("steps", 100), "longest phase", "changed since the previous run")
    yield table(heads, rows, key="earlier", n_brief=6, bars="step", bars_min_width=100)


def changes_text(run: EarlierRun, limit: int = _MAX_CHANGES) -> str:
    """Return what changed since the previous run, the first few."""
    texts = [change_text(each.name, each.base, each.new) for each in run.changes[:limit]]
    rest = len(run.changes) - len(texts)
    return ", ".join(line(each, 120) for each in texts) + (f" and {rest} more" if rest > 0 else "")


def change_text(name: str, base: str | None, new: str | None) -> str:
    """Return a change, ``num_workers 8 → 4``; None where a run does not have the setting. Commits are abbreviated.

    Names that are no argument are words: ``is_compiled`` is ``compiled``, with the values yes and no.
    """
    words = _FIELD.sub(lambda match: match[1].replace("_", " "), name)
    words = " ".join(_NAMES.get(word, word.replace("_class", " class")) for word in words.split())
    of_field = {"True": "yes", "False": "no"} if words != name else {}
    values = ("none" if value is None else value[:7] if name == "commit" else value for value in (base, new))
    return f"{words} {' → '.join(of_field.get(value, value) for value in values)}"


def _longest(run: EarlierRun) -> str:
    return phase_name(max(run.phase_s, key=lambda name: run.phase_s[name])) if run.phase_s else ""
