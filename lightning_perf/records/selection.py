"""Select recommendations of a session that can be applied together; give a reason for the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from lightning_perf.errors import SessionError

from .finding import SAFETIES, SEVERITIES, Finding, Prescription, Safety

if TYPE_CHECKING:
    from .session import Session

_AUTOMATIC_ONLY = ("accumulate_grad_batches", "gradient_clip_val")
"""Arguments that Lightning refuses with manual optimization."""
_NEED_WORKERS = ("prefetch_factor", "persistent_workers")
"""Arguments that ``DataLoader`` refuses with ``num_workers=0``."""


class Selection(NamedTuple):
    """Recommended arguments that do not contradict each other.

    Attributes:
        trainer: Arguments of ``Trainer``.
        loader: Arguments of the training ``DataLoader``.
        sources: Codes of the findings that recommend an argument, by its name.
        left_out: Reasons by recommendation.
    """

    trainer: dict[str, Any]
    loader: dict[str, Any]
    sources: dict[str, str]
    left_out: dict[str, str]


def select(
    session: Session, safety: Safety, objects: Callable[[Prescription], dict[str, Any]] = lambda fix: {}
) -> Selection:
    """Return the recommended arguments of a session; of two that contradict, the one with the larger speedup.

    Findings are taken by severity, then by speedup. Within a finding, a less safe alternative to a recommendation that
    was taken is left out.

    Recommendations less safe than ``safety`` are left out. ``objects`` returns further ``Trainer`` arguments of a
    recommendation: objects, as in a LightningCLI configuration.

    Raises:
        SessionError: There is no such safety.
    """
    if safety not in SAFETIES:
        raise SessionError(f"safety={safety!r} is not one of {', '.join(SAFETIES)}")
    chosen, useless = Selection({}, {}, {}, {}), _gained_nothing(session)
    for finding in sorted(session.findings, key=_order):
        taken: Prescription | None = None
        for fix in finding.prescriptions:
            trainer = {**fix.trainer_flags, **objects(fix)}
            if not trainer and not fix.loader_args:
                reason = _why_no_arguments(finding, fix)
            elif finding.gain is not None and fix.treatment in useless:
                reason = f"no gain in a trial: {useless[fix.treatment].replace('_', ' ')}"
            elif SAFETIES.index(fix.safety) > SAFETIES.index(safety):
                reason = f'may change results; safety="{fix.safety}" includes it'
            elif taken is not None and SAFETIES.index(fix.safety) > SAFETIES.index(taken.safety):
                reason = f"less safe alternative to: {taken.summary}"
            else:
                reason = _why_not(session, chosen, trainer) or _contradiction(chosen, trainer, fix.loader_args)
            if reason:
                chosen.left_out[f"{finding.code}: {fix.summary}"] = reason
                continue
            taken = taken or fix
            for name, value in trainer.items():
                chosen.trainer[name] = merged(chosen.trainer.get(name, value), value)
            chosen.loader.update(fix.loader_args)
            for name in (*trainer, *fix.loader_args):
                codes = chosen.sources.get(name, "")
                chosen.sources[name] = f"{codes}, {finding.code}" if codes else finding.code
    return chosen


def merged(one: Any, other: Any) -> Any:
    """Return an argument that combines two values; None if they contradict."""
    if one == other:
        return one
    if isinstance(one, list) and isinstance(other, list):
        return [*one, *(each for each in other if each not in one)]
    if not _is_object(one) or not _is_object(other) or one["class_path"] != other["class_path"]:
        return None
    arguments = {**one["init_args"], **other["init_args"]}
    return {**one, "init_args": arguments} if arguments.items() >= one["init_args"].items() else None


def _is_object(value: Any) -> bool:
    """Return whether an argument is an object, as in a LightningCLI configuration; a file may have other dicts."""
    return isinstance(value, dict) and [type(value.get(key)) for key in ("class_path", "init_args")] == [str, dict]


def _gained_nothing(session: Session) -> dict[str, str]:
    """Return verdicts of treatments that gained nothing alone in the autopilot or the latest trial, by their ids."""
    tries = session.autopilot.tries if session.autopilot is not None else ()
    undone = {one.treatment.partition("=")[0]: "no_change" for one in tries if one.gains_nothing}
    arms = [arm for arm in session.trials[-1].arms if len(arm.treatments) == 1] if session.trials else []
    verdicts = {
        arm.id.partition("=")[0]: arm.verdict for arm in sorted(arms, key=lambda arm: arm.verdict == "improved")
    }
    trials = {name: verdict for name, verdict in verdicts.items() if verdict in ("no_change", "regressed", "failed")}
    return {**{name: undone[name] for name in undone.keys() - verdicts.keys()}, **trials}


def _order(finding: Finding) -> tuple[int, float, float]:
    gain = finding.gain
    return SEVERITIES.index(finding.severity), -gain.low if gain else -1.0, -gain.high if gain else -1.0


def _why_no_arguments(finding: Finding, fix: Prescription) -> str:
    gain = finding.gain
    if fix.treatment and fix.safety != "exact" and (gain is None or gain.method == "modeled" or gain.low <= 1.0):
        return f"its speedup was not measured: lightning-perf trial --try {fix.treatment} -- python train.py"
    return f"write it in your code: {fix.code.splitlines()[0]}" if fix.code else "needs a change of your code or system"


def _why_not(session: Session, chosen: Selection, trainer: dict[str, Any]) -> str:
    """Return why Lightning would refuse ``Trainer`` arguments in this training; empty if it would not."""
    settings = session.settings.trainer
    for name in _AUTOMATIC_ONLY:
        if name in trainer and settings.is_automatic_optimization is False:
            return f"Lightning refuses {name} with manual optimization"
    clipping = ("gradient_clip_val", "gradient_clip_algorithm")
    every = {**{name: getattr(settings, name) for name in clipping}, **chosen.trainer, **trainer}
    clips_by_norm = every["gradient_clip_val"] and every["gradient_clip_algorithm"] != "value"
    if every.get("strategy") == "fsdp" and clips_by_norm and {"strategy", *clipping} & trainer.keys():
        return 'Lightning refuses gradient clipping by norm with strategy="fsdp"'
    return ""


def _contradiction(chosen: Selection, trainer: dict[str, Any], loader: dict[str, Any]) -> str:
    """Return why a chosen argument contradicts the new ones; empty if none does."""
    for new, old in ((trainer, chosen.trainer), (loader, chosen.loader)):
        for name, value in new.items():
            if name in old and old[name] != value and merged(old[name], value) is None:
                return _against(chosen, name, old[name])
    n_workers, old = loader.get("num_workers"), chosen.loader
    for name in _NEED_WORKERS:
        if n_workers == 0 and old.get(name):
            return _against(chosen, name, old[name])
        if loader.get(name) and n_workers is None and old.get("num_workers") == 0:
            return _against(chosen, "num_workers", 0)
    return ""


def _against(chosen: Selection, name: str, value: Any) -> str:
    shown = value["class_path"].rpartition(".")[2] if _is_object(value) else repr(value)
    return f"contradicts {name}={shown} of {chosen.sources[name]}, which has priority"
