"""The document of a session: verdict, where the time goes, ranked fixes, findings, then everything else."""

from collections.abc import Iterator

from lightning_perf.records import Session

from .cells import PAGE
from .document import AnyPart, Document, Figure, Section, facts, heading, section
from .sections import (
    about,
    autopilot,
    earlier,
    findings,
    fixes,
    host,
    loader,
    memory,
    model,
    phases,
    ranks,
    trace,
    trials,
    verdict,
)
from .wording import count, line, seconds

MAX_WINDOWS = 12
"""Profiler windows that are shown: the latest."""


def session_document(session: Session, show_all: bool = False, place: str | None = None) -> Document:
    """Return the full report of a session.

    With ``show_all``, it lists the outcome of each rule and what could not be measured; with ``place``, the path of the
    session, it ends with commands for next steps.
    """
    sections = (*_sections(session, show_all), *([about.next_steps(session, place)] if place else []))
    return Document(verdict.verdict_of(session), tuple(verdict.run_facts(session)), sections)


def _sections(session: Session, show_all: bool) -> Iterator[Section]:
    title, steady = "Time per phase", session.steady
    if steady is not None:
        steps = count(steady.n_span_steps, f"steady {verdict.step_word(session)}")
        title += f": {steps} in {seconds(steady.span_s)}"
    yield section("time", title, phases.steady_parts(session), is_short=True)
    yield section("fixes", "Fixes, best first", [fixes.fixes_table(session)], is_short=True)
    yield section("findings", "Findings", findings.finding_parts(session), is_short=True)
    yield section("history", "Step time over the run, epochs, startup", phases.history_parts(session))
    yield section("earlier", "Earlier runs", earlier.earlier_parts(session))
    yield section("autopilot", "Autopilot", autopilot.autopilot_parts(session))
    yield section("trials", "Trials", _trial_parts(session))
    validation = session.validation
    if validation is not None:
        title = f"Validation: {count(validation.n_span_steps, 'batch')} in {seconds(validation.span_s)}"
        yield section("validation", title, phases.stage_parts(validation, "batch", "validation-phases"))
    title = ranks.rank_title(session.ranks) if session.ranks is not None else "Ranks"
    yield section("ranks", title, ranks.rank_parts(session.ranks))
    title = loader.loader_title(session.loader_probe) if session.loader_probe is not None else "DataLoader"
    yield section("loader", title, loader.loader_parts(session))
    yield section("memory", memory.memory_title(session.memory.breakdown), memory.memory_parts(session))
    title = model.model_title(session.model_profile) if session.model_profile is not None else "Model"
    yield section("model", title, model.model_parts(session.model_profile, session.run.stage == "fit"))
    yield section("host", "Host and compiler", [*host.host_parts(session), *phases.named_parts(session)])
    yield section("windows", "Profiler windows", _window_parts(session), min_width=PAGE)
    yield section("about", "About this measurement", about.about_parts(session, show_all))


def _trial_parts(session: Session) -> Iterator[AnyPart]:
    if session.trials:
        yield Figure("trials", "Measured speedups")
    for trial in session.trials:
        yield from trials.trial_parts(trial)


def _window_parts(session: Session) -> Iterator[AnyPart]:
    earlier = len(session.windows) - MAX_WINDOWS
    yield facts([f"{count(earlier, 'earlier window')} not shown" if earlier > 0 else ""])
    yield Figure("trace_steps", "Time per step by category")
    for window in session.windows[-MAX_WINDOWS:]:
        yield heading(f"Window at step {window.first_step}: {count(window.n_steps, 'step')}, {window.status}")
        yield facts([line(window.reason, 200), f"cost {seconds(window.cost_s)}"])
        if window.trace is not None:
            yield from trace.trace_parts(window.trace)
