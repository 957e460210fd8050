"""PD405: memory grows from step to step."""

import re

from lightning_perf.records import Finding, Growth, Prescription, Session, Suspect
from lightning_perf.rules.findings import fact, fix, make_finding
from lightning_perf.rules.memory_signals import HOST_PLACES, growth_evidence, is_leak
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.thresholds import HELD_MIN_TENSORS, MIN_RECOMPILES
from lightning_perf.rules.user_lines import is_metric, lines_of
from lightning_perf.rules.wording import size_text, three_digits


@rule("PD405", "leaking")
def check(session: Session) -> Finding | None:
    memory = session.memory
    trends = [g for g in memory.growth if g.where != "workers"]  # PD113 reports growth of workers
    held = [s for s in memory.held_graphs if s.n_with_graph >= HELD_MIN_TENSORS or s.kind == "graph"]
    leaks = [g for g in trends if is_leak(g)]
    if not leaks and not held:
        if not trends:
            raise Skip(session.missing.get("memory", "memory was not measured for long enough"))
        return None
    worst = max(leaks, key=lambda g: g.bytes_per_step, default=None)
    suspects = (worst.suspects if worst is not None else ()) or tuple(held)
    n_compiles = session.compiler.n_after_warmup if session.compiler is not None else 0
    # Compiled code takes memory too.
    is_unexplained = worst is not None and not suspects and n_compiles < MIN_RECOMPILES
    return make_finding(
        # Running out of memory is worse than a slow run, but only high if the cause is known.
        severity="high" if worst is not None and suspects else "medium" if is_unexplained else "low",
        summary=_summary(worst, suspects),
        evidence=(
            *(growth_evidence(worst) if worst is not None else ()),
            fact("compilations meanwhile", n_compiles, "count", MIN_RECOMPILES) if n_compiles else None,
            *(fact(f"growth of {s.name} per step", s.items_per_step, _unit(s), n=s.n_items) for s in suspects[:3]),
        ),
        prescriptions=_of_metric(session, suspects) or _prescription(suspects),
        confidence="high" if suspects else "medium",
    )


def _summary(growth: Growth | None, suspects: tuple[Suspect, ...]) -> str:
    first = suspects[0] if suspects else None
    if growth is None:
        assert first is not None
        grows = "gains autograd nodes" if first.kind == "graph" else "keeps tensors with their autograd graphs"
        return f"{first.name} {grows} in every step. {_what(first)}."
    place = "Host memory" if growth.where in HOST_PLACES else f"Allocated memory on {growth.where}"
    text = f"{place} grows by {size_text(growth.bytes_per_step)} per step"
    if first is None:
        return f"{text}. No container of tensors or arrays that grows with it was found."
    return f"{text}, and {first.name} grows with it. {_what(first)}."


def _what(suspect: Suspect) -> str:
    if suspect.kind == "graph":
        return f"It is one tensor whose graph of {suspect.n_items} nodes gains {suspect.items_per_step:.0f} per step"
    graphs = f", {suspect.n_with_graph} of them with graphs" if suspect.n_with_graph else ""
    gained = three_digits(suspect.items_per_step)
    return f"It is a {suspect.kind} of {suspect.n_items} elements{graphs}, and gains {gained} per step"


def _unit(suspect: Suspect) -> str:
    return "nodes" if suspect.kind == "graph" else "elements"


def _prescription(suspects: tuple[Suspect, ...]) -> Prescription:
    if any(s.n_with_graph or s.kind == "graph" for s in suspects):
        summary, code = (
            "keep detached values: tensor.detach(), or .item() where it is logged",
            "self.total += loss.detach()" if suspects[0].kind == "graph" else "self.losses.append(loss.detach())",
        )
    elif suspects:
        summary, code = f"clear {suspects[0].name} after use, or keep only the needed part", ""
    else:
        summary, code = "find objects kept in every step: lists, caches, closures, and memory outside Python", ""
    return fix(summary, "minutes", code=code)


def _of_metric(session: Session, suspects: tuple[Suspect, ...]) -> Prescription | None:
    """Recommend to let Lightning reset a metric whose state grows; None if what grows is not known to be one's."""
    path = suspects[0].name.split(".")[1:-1] if suspects else []
    if not path:
        return None
    name = f"self.{'.'.join(path)}"
    calls = re.compile(rf"\b{re.escape(name)}(?:\.update|\.forward)?\(")
    lines = [time.line for time in lines_of(session) if is_metric(time.line) and calls.search(time.line.code)]
    if not lines:
        return None
    if not session.run.has_trainer:
        code = f"# {lines[0].file}:{lines[0].line}\n{name}.reset()  # after each epoch"
        return fix(f"reset the metric {name} after each epoch", "one line", code=code)
    return fix(
        f"log the metric {name} itself, so that Lightning resets it after each epoch, or call its reset()",
        "minutes",
        code=(
            f"# {lines[0].file}:{lines[0].line}\n"
            f"{name}.update(predictions, targets)\n"
            f'self.log("{path[-1]}", {name}, on_step=False, on_epoch=True)  # the metric, not its value'
        ),
    )
