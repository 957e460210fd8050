"""The verdict and the facts of the run as a whole."""

from lightning_perf.records import Finding, Session, TraceRecord
from lightning_perf.reports.document import Verdict
from lightning_perf.reports.fixes import is_kept
from lightning_perf.reports.wording import count, line, seconds


def verdict_finding(session: Session) -> Finding | None:
    """Return the finding that the verdict names; None if it names none."""
    return next((f for f in session.findings if f.code == session.verdict.code), None)


def verdict_text(session: Session) -> str:
    """Return the verdict in one line, with the code of its rule."""
    text, code, finding = line(session.verdict.text, 400), session.verdict.code, verdict_finding(session)
    if finding is not None and finding.prescriptions and is_kept(finding.prescriptions[0], session):
        text += "; the autopilot did so in this run"
    return f"{text} ({line(code, 16)})" if code and code not in text else text


def verdict_of(session: Session) -> Verdict:
    """Return the verdict with the severity of its finding."""
    finding = verdict_finding(session)
    severity = "" if finding is None else finding.severity
    return Verdict(verdict_text(session), line(session.verdict.category, 40), severity)


def verdict_of_trace(record: TraceRecord) -> Verdict | None:
    """Return the verdict of a trace without a session; None if it was not diagnosed."""
    return None if record.verdict is None else Verdict(line(record.verdict.text, 600), record.verdict.category, "")


def step_word(session: Session) -> str:
    """Return ``step`` for training and ``batch`` for other stages."""
    return "step" if session.run.stage == "fit" else "batch"


def run_facts(session: Session) -> list[str]:
    """Return stage, status, size, duration and machine of the run."""
    run = session.run
    facts = [f"{line(run.stage, 16)} {line(run.status, 16)}" + (f" ({line(run.error, 60)})" if run.error else "")]
    if run.n_epochs > 1:
        facts.append(count(run.n_epochs, "epoch"))
    facts += [count(run.n_steps, step_word(session)), seconds(run.wall_s)]
    if run.world_size > 1:
        facts.append(f"rank {run.rank} of {run.world_size}")
    return [*facts, machine_text(session)]


def run_name(session: Session, name: str = "") -> str:
    """Return the name of the run, or else the class of its model, and when it started."""
    model = session.settings.model
    started = line(session.run.started_at, 40)[:16].replace("T", " ")
    here = "" if name == "." else line(name, 120)  # a session in the current folder
    texts = (here or (line(model.class_name, 60) if model is not None else ""), started and f"{started} UTC")
    return " · ".join(filter(None, texts))


def machine_text(session: Session) -> str:
    """Return the devices, or "CPU", and the number of usable cores."""
    machine = session.machine
    cores = count(int(machine.usable_cores), "core") if machine.usable_cores >= 1 else "1 core"
    if machine.devices:
        name = line(machine.devices[0].name, 40)
        many = f"{len(machine.devices)} x " if len(machine.devices) > 1 else ""
        return f"{many}{name}, {cores}"
    return f"CPU, {cores}"
