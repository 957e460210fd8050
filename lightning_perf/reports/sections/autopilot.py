"""What the autopilot tried in the run, what it kept, and the lines for the next run."""

from collections.abc import Iterator

from lightning_perf.records import AutopilotTry, Session
from lightning_perf.reports.cells import Column, Rows
from lightning_perf.reports.document import AnyPart, Code, facts, table
from lightning_perf.reports.wording import block, count, interval_text, line, seconds, speedup_text, times

RESULTS = {"kept": "kept", "undone": "undid", "refused": "left out", "trying": "undecided"}


def autopilot_parts(session: Session) -> Iterator[AnyPart]:
    """Yield the decisions in order; nothing without an autopilot."""
    found = session.autopilot
    if found is None:
        return
    n_kept = count(sum(one.status == "kept" for one in found.tries), "kept treatment")
    waiting = ", ".join(line(text, 60) for text in found.waiting)
    yield facts([
        f"{speedup_text(found.speedup)} from {n_kept}" if found.speedup is not None else "",
        f"{seconds(found.lost_s)} lost to slower treatments, of {seconds(found.budget_s)} allowed",
        f"not tried: {waiting}" if waiting else "",
    ])  # fmt: skip
    rows: Rows = [
        (
            line(one.setting, 60), RESULTS[one.status],
            *((times(one.speedup.value), interval_text(one.speedup)) if one.speedup is not None else ("", "")),
            _blocks(one), f"{one.first_step}–{one.last_step}", line(one.finding, 16), why(one),
        )
        for one in found.tries
    ]  # fmt: skip
    heads = ("treatment", "result", "speedup", "95 % CI", "blocks", Column("steps", 100), "finding", "why")
    yield table(heads, rows, key="autopilot")
    if found.code:
        yield Code(tuple(block(found.code)), "to start the next run with the kept treatments")


def decision_line(one: AutopilotTry) -> str:
    """Return a decision as one line for the console."""
    speedup = speedup_text(one.speedup)
    texts = [speedup, _blocks(one) if speedup else "", line(one.reason, 200)]
    return f"{RESULTS[one.status]} {line(one.setting, 60)}: {', '.join(filter(None, texts))}"


def kept_facts(session: Session) -> list[tuple[str, str]]:
    """Return what all kept treatments gained together, and how the next run starts with them; empty without any."""
    found = session.autopilot
    if found is None or found.speedup is None:
        return []
    settings = ", ".join(line(one.setting, 60) for one in found.tries if one.status == "kept")
    code = "; ".join(line(each, 200) for each in block(found.code))
    return [("kept", f"{speedup_text(found.speedup)}: {settings}"), ("next run", code)]


def why(one: AutopilotTry) -> str:
    """Return the reason of a decision that its figures do not give, or the block in which the run ended."""
    if one.status == "trying":
        return f"the run ended in a block {'with' if one.is_treated else 'without'} it"
    return line(one.reason, 200)


def _blocks(one: AutopilotTry) -> str:
    return f"{one.n_pairs} + {one.n_pairs} {'epochs' if one.unit == 'epoch' else 'blocks'}" if one.n_pairs else ""
