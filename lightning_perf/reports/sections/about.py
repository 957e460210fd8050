"""Facts on the measurement itself: memory peaks, overhead, rules, what is missing."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from lightning_perf.records import Session
from lightning_perf.records.remote import any_path
from lightning_perf.reports.document import AnyPart, Code, Section, pairs, section, table
from lightning_perf.reports.wording import line, seconds, share
from lightning_perf.rules.engine import all_rules

from .machine import machine_facts
from .memory import peaks_fact

_MAX_MISSING = 2
"""Missing measurements that are listed with their reason unless all are asked for."""

_MAIN_FIGURES = ("steady", "validation", "memory", "windows")
"""Parts of the session that a reader misses most."""

_DEVICE_FIGURES = ("steady.device", "memory.devices")
"""Never measured on a run without an accelerator."""

_OPTIONAL_FIGURES = ("memory.growth.heap",)
"""Available on some platforms only, and never the only source."""


def next_steps(session: Session, place: str) -> Section:
    """Return the commands to go on with; `place` is the path of the session."""
    path = any_path(line(place, 1_000))
    quoted, folder = shlex.quote(str(path)), path.parent if path.suffix == ".json" else path
    commands = (
        *(["lightning-perf trial -- python train.py   # measures the fixes on your script"]
          if any(fix.treatment for each in session.findings for fix in each.prescriptions) else []),
        *([f"lightning-perf explain {line(session.verdict.code, 16)}"] if session.verdict.code else []),
        f"lightning-perf compare {quoted} NEW_RUN   # after a change",
        f"lightning-perf report {quoted} --all   # which rules were skipped, and why",
        f"lightning-perf report {quoted} --format html --out report.html",
        *([f"tensorboard --logdir {shlex.quote(str(folder))}   # the PERFDOCTOR tab"]
          if isinstance(folder, Path) else []),
    )  # fmt: skip
    return section("next", "Next steps", [Code(commands, language="shell")])


def about_parts(session: Session, show_all: bool) -> Iterator[AnyPart]:
    """Yield facts on the measurement; with ``show_all`` also the outcome of each rule and what is missing."""
    yield pairs([
        *machine_facts(session),
        ("Memory", peaks_fact(session)),
        ("Overhead", overhead_fact(session)),
        ("Rules", rules_fact(session)),
        ("Applied", applied_fact(session)),
        ("Missing", "" if show_all else missing_fact(session)),
        ("Failed", probes_fact(session)),
    ])  # fmt: skip
    if show_all:
        names = {rule.code: f"{rule.code} {rule.name}" for rule in all_rules()} if session.outcomes else {}
        rules = [(names.get(one.code, line(one.code, 16)), one.status, line(one.reason)) for one in session.outcomes]
        yield table(("rule", "result", "reason"), rules, title="Rules", key="rules", is_folded=True)
        yield table(("what", "reason"), missing_rows(session), title="Not measured", key="missing", is_folded=True)


def overhead_fact(session: Session) -> str:
    """Return the cost of PerfDoctor itself; empty if it is not known."""
    overhead = session.overhead
    if overhead is None:
        return ""
    text = (
        f"{share(overhead.share)} of the run: {seconds(overhead.per_step_us * 1e-6)} per step, "
        f"{seconds(overhead.reporting_s)} for probes and reports"
        f"{', the rest for profiler windows' if session.windows else ''}"
    )
    if overhead.backed_off:
        text += f"; switched off to cost less: {', '.join(line(one, 100) for one in overhead.backed_off)}"
    return text


def rules_fact(session: Session) -> str:
    """Return how many rules were checked and skipped; empty if none ran."""
    if not session.outcomes:
        return ""
    n = {status: sum(one.status == status for one in session.outcomes)
         for status in ("finding", "passed", "skipped", "ignored", "failed")}  # fmt: skip
    parts = [f"{n['finding'] + n['passed']} checked"]
    return ", ".join(parts + [f"{n[status]} {status}" for status in ("skipped", "ignored", "failed") if n[status]])


def missing_fact(session: Session) -> str:
    """Return the first main figures that could not be measured, with their reasons; normally empty."""
    unexpected = _OPTIONAL_FIGURES if session.machine.devices else (*_DEVICE_FIGURES, *_OPTIONAL_FIGURES)
    rows = [(what, why) for what, why in missing_rows(session)
            if what.partition(".")[0] in _MAIN_FIGURES and what not in unexpected]  # fmt: skip
    texts = [f"{what}: {why}" for what, why in rows[:_MAX_MISSING]]
    rest = len(rows) - len(texts)
    return "; ".join(texts) + (f"; and {rest} more" if rest else "")


def missing_rows(session: Session) -> list[tuple[str, str]]:
    """Return what could not be measured and why; measurements before settings."""
    absent = [(what, why) for what, why in session.missing.items() if not getattr(session, what, None)]
    ordered = sorted(absent, key=lambda item: (item[0].startswith("settings."), item[0]))
    return [(line(what, 60), line(why, 120)) for what, why in ordered]


def probes_fact(session: Session) -> str:
    """Return the probes that failed and were switched off; normally empty."""
    return "; ".join(
        f"{line(p.probe, 60)} switched off at step {p.step}: {line(p.error, 160)}" for p in session.probes_off
    )


def applied_fact(session: Session) -> str:
    """Return what ``apply=`` changed during the run; figures span the time before and after."""
    texts = []
    tried = {one.treatment for one in session.autopilot.tries} if session.autopilot is not None else ()
    for one in session.applied:
        if one.treatment in tried:  # the autopilot's own section shows it
            continue
        name, code = line(one.treatment, 60), line(one.finding, 16)
        if one.status == "applied":
            texts.append(f"{name} from epoch {one.epoch} on ({code}); figures include the time before")
        else:
            texts.append(f"{name} was refused: {line(one.reason, 200)}")
    return "; ".join(texts)
