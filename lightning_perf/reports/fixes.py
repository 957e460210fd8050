"""Recommendations as short reports show them: in a few words, with the present value, one row per cause."""

import json
import re
from collections.abc import Sequence
from typing import Any

from lightning_perf.records import AutopilotTry, Finding, Prescription, Session
from lightning_perf.rules.wording import headline_of, is_negligible

from . import wording
from .sections.findings import ordered_findings

_ARGUMENT = re.compile(r"\w+\(\.\.\., (\w+)=([\w.'\"-]+)\)")
"""Code that sets one simple argument."""
_BREAK = re.compile(r"[;:] |, (?:else|or|if|so) ")
_CLAUSE = re.compile(r"[;:,] | \(")
_ASIDE = re.compile(r" \((?![^() ]+:\d+\))[^()]*\)")
"""Text in parentheses, unless it is a line of code: ``(train.py:31)``."""
_SUBORDINATE = re.compile(r"(?<! as) (?:instead of|so that|if|while|because|rather than|unless) ")
_SHORTEST_CLAUSE = 20
_ARGUMENTS = 36
"""Longest text of arguments; of several of a loader, the first ones are named. Those of a Trainer need each other."""


def fix_groups(session: Session) -> list[list[Finding]]:
    """Return the findings that recommend something, one group per cause; the first of a group is the best.

    Findings belong to one group if they claim the same time: their speedups do not add up. Findings that would save
    less than 2 % are left out.
    """
    groups: list[list[Finding]] = []
    for finding in ordered_findings(session):
        if not finding.prescriptions or finding.severity == "info" or (finding.gain and is_negligible(finding.gain)):
            continue
        same = next((group for group in groups if _shares_time(session, group[0], finding)), None)
        if same is None:
            groups.append([finding])
        else:
            same.append(finding)
    return groups


def fix_text(fix: Prescription, session: Session | None = None, limit: int = 200) -> str:
    """Return a change in a few words: the arguments that it sets, with their present values if a session is given.

    A change that sets no arguments is described by its summary, or by the main clause of one longer than ``limit``.
    """
    values = _arguments(fix)
    if not values:
        return clause(fix.summary, limit)
    now = _present(fix, session, next(iter(values))) if session is not None else ""
    texts = [f"{name}={value}" for name, value in values.items()]
    while fix.loader_args and len(texts) > 1 and len(", ".join(texts) + now) > _ARGUMENTS:
        del texts[-1]
    return wording.line(", ".join(texts), 80) + now


def code_text(fix: Prescription, session: Session, limit: int) -> str:
    """Return the arguments of a change as code, ``DataLoader(num_workers=2), now 0``; empty if two callees take them.

    If the text is longer than ``limit``, the present value is left out, then the callee, then the last arguments of a
    loader.
    """
    values = _arguments(fix)
    if not values or (fix.trainer_flags and fix.loader_args):
        return ""
    callee, first = _callee(fix), next(iter(values))
    if callee == "DataLoader" and any(each.stage == "train" for each in session.settings.loaders):
        callee = "train DataLoader"
    now, callees = _now(fix, session, first), (callee, callee.removeprefix("train "))
    if fix.trainer_flags and len(values) > 1:
        return wording.line(f"Trainer({', '.join(f'{name}={value}' for name, value in values.items())})")
    for n in range(len(values), 0, -1):
        shown = ", ".join(f"{name}={value}" for name, value in list(values.items())[:n])
        for text in (f"{callee}({shown}){f', {now}' if now else ''}", *(f"{one}({shown})" for one in callees)):
            if len(text) <= limit:
                return wording.line(text, limit)
    return wording.line(f"{first}={values[first]}", limit)


def instruction(fix: Prescription, session: Session | None, limit: int = 90) -> str:
    """Return `fix_text` as part of a sentence: arguments follow the verb "set"."""
    values, text = _arguments(fix), fix_text(fix, session, limit)
    if not values:
        return text
    if session is not None and is_kept(fix, session):
        return f"the autopilot set {fix_text(fix, None, limit)}"
    return f"set {text}{'' if fix.trainer_flags or '(' in text else f' in {_callee(fix)}'}"


def _callee(fix: Prescription) -> str:
    return "Trainer" if fix.trainer_flags else "DataLoader" if fix.loader_args else fix.code.partition("(")[0]


def _arguments(fix: Prescription) -> dict[str, str]:
    """Return the arguments that make up the whole change, as code; empty if it is more than that."""
    if fix.safety == "semantics" and not fix.summary.startswith("set "):
        return {}
    values = {name: _literal(value) for name, value in {**fix.trainer_flags, **fix.loader_args}.items()}
    match = None if values else _ARGUMENT.fullmatch(fix.code)
    return {match[1]: match[2]} if match else values


def clause(text: str, limit: int = 200) -> str:
    """Return the first sentence of a text, or its main clause if the sentence is longer than `limit`."""
    whole = first_sentence(text)
    if len(whole) <= limit:
        return whole
    whole = _ASIDE.sub("", whole)
    shorter = [whole, *(pattern.split(whole)[0].rstrip(".,;:") for pattern in (_BREAK, _CLAUSE, _SUBORDINATE))]
    shorter = [each for each in shorter if len(each) >= _SHORTEST_CLAUSE]
    return next((each for each in shorter if len(each) <= limit), min(shorter, default=whole, key=len))


def first_sentence(text: str) -> str:
    """Return the first sentence without its full stop."""
    return headline_of(wording.line(text, 400))


def alternatives(group: Sequence[Finding], session: Session, limit: int) -> str:
    """Return the other fixes of a group, the best one in words; empty if all of them are the same change."""
    best = fix_text(group[0].prescriptions[0], session)
    others = [each for each in group[1:] if fix_text(each.prescriptions[0], session) != best]
    if not others:
        return ""
    text = f"or {wording.line(others[0].code, 16)} {fix_text(others[0].prescriptions[0], session, limit - 9)}"
    for each in others[1:]:
        longer = f"{text}, {wording.line(each.code, 16)}"
        text = longer if len(longer) <= limit else text
    return text


def _present(fix: Prescription, session: Session, name: str) -> str:
    """Return the present value of an argument, and which loader it belongs to if there are several."""
    loaders, now = session.settings.loaders, _now(fix, session, name)
    is_train = name in fix.loader_args and len(loaders) > 1 and any(each.stage == "train" for each in loaders)
    texts = [*["train loader"] * is_train, *[now] * bool(now)]
    return f" ({', '.join(texts)})" if texts else ""


def _now(fix: Prescription, session: Session, name: str) -> str:
    """Return ``now 0`` with the value of an argument, or ``kept``; empty if it is unknown or the one recommended."""
    if is_kept(fix, session):
        return "kept"
    trainer, train = session.settings.trainer, [each for each in session.settings.loaders if each.stage == "train"]
    owner = trainer if hasattr(trainer, name) else train[0] if len(train) == 1 else None
    now = getattr(owner, name, None)
    return "" if now is None or _literal(now) == _arguments(fix)[name] else f"now {_literal(now)}"


def _literal(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def tried_by_autopilot(fix: Prescription, session: Session) -> AutopilotTry | None:
    """Return the autopilot's last try of this change with this value; None without one."""
    one = session.autopilot.latest(fix.treatment) if session.autopilot is not None else None
    first = [f"{name}={value}" for name, value in _arguments(fix).items()][:1]
    return one if one is not None and {*first} <= {*one.setting.split(", ")} else None


def is_kept(fix: Prescription, session: Session) -> bool:
    """Return whether the autopilot made this change and kept it."""
    one = tried_by_autopilot(fix, session)
    return one is not None and one.status == "kept"


def _shares_time(session: Session, one: Finding, other: Finding) -> bool:
    """Return whether two findings claim more of a phase than it took, so that not both can save what they claim."""
    phases = session.steady.phases if session.steady is not None else {}
    main = max(other.claims, key=lambda phase: other.claims[phase], default="")
    if main not in one.claims:
        return False
    total_s = phases[main].total_s if main in phases else max(one.claims[main], other.claims[main])
    return one.claims[main] + other.claims[main] > 1.05 * total_s
