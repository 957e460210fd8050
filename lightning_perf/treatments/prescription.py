"""Treatments written as Trainer flags, loader arguments, Python code and LightningCLI YAML."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml
from msgspec.structs import replace

from lightning_perf.errors import ConfigError
from lightning_perf.records import Prescription, Session
from lightning_perf.records.selection import merged

from .data import train_loaders
from .distributed import DDP_ARGUMENTS
from .specs import TreatmentSpec, find, with_default


class Written(NamedTuple):
    """Treatments as a user writes them.

    Attributes:
        trainer_flags: Keyword arguments for ``Trainer`` that JSON can hold.
        loader_args: Keyword arguments for the training ``DataLoader``.
        code: Python, ready to paste; may be empty.
        yaml: Part of a LightningCLI configuration; empty if it cannot hold any of the treatments.
    """

    trainer_flags: dict[str, Any]
    loader_args: dict[str, Any]
    code: str
    yaml: str


def prescription(
    specs: Sequence[TreatmentSpec], session: Session | None = None, without: Sequence[str] = ()
) -> Written:
    """Return how a user writes these treatments; the session chooses the values that were not given.

    Loader arguments named in ``without`` are left out.
    """
    flags: dict[str, Any] = {}
    objects: dict[str, Any] = {}
    loader: dict[str, Any] = {}
    environment: dict[str, str] = {}
    statements: list[str] = []
    completed: dict[str, str] = {}
    # As in the Applier, those that depend on the loader come last, and see what the others set.
    for spec in sorted((with_default(spec, session) for spec in specs), key=lambda spec: spec.treatment.needs_loader):
        treatment, value = spec.treatment, spec.value
        if treatment.needs_loader and session is not None:
            session = _with_arguments(session, flags, loader)
        flags.update(treatment.trainer_flags(value, session))
        for name, one in treatment.trainer_objects(value).items():
            objects[name] = merged(objects.get(name, one), one)
        loader.update(treatment.loader_args(value, session))
        completed.update(treatment.trainer_code)
        environment.update(treatment.environment(value))
        statements += filter(None, [treatment.statements(value)])
    loader = {name: value for name, value in loader.items() if name not in without}
    if "strategy" in objects and session is not None:
        own = {name: True for name in DDP_ARGUMENTS if getattr(session.settings.trainer, name)}
        objects["strategy"]["init_args"] = {**own, **objects["strategy"]["init_args"]}  # it replaces the user's
    trainer = {**flags, **objects}
    lines: list[str] = []
    if environment:
        setting = " ".join(f"{name}={value}" for name, value in environment.items())
        lines.append(f"# start with: {setting} python train.py")
    lines += [*imports_of(objects), *statements]
    if trainer or completed:
        lines.append(f"Trainer(..., {_keywords(trainer, completed)})")
    if loader:
        call = next((one.call for one in train_loaders(session)), "DataLoader")
        lines.append(f"{call}(..., {_keywords(loader)})")
    package = session.settings.trainer.package if session is not None else None
    return Written(flags, loader, in_package("\n".join(lines), package), in_package(_yaml(trainer, loader), package))


def in_package(text: str, package: str | None) -> str:
    """Return code or YAML with Lightning's classes from the package of the user's Trainer, if it is known."""
    return text if package is None else text.replace("lightning.pytorch.", f"{package}.")


def _with_arguments(session: Session, flags: dict[str, Any], loader: dict[str, Any]) -> Session:
    """Return the session with the accumulation and the number of workers that these arguments set."""
    settings = session.settings
    accumulated = flags.get("accumulate_grad_batches", settings.trainer.accumulate_grad_batches)
    loaders = tuple(
        replace(one, num_workers=loader.get("num_workers", one.num_workers)) if one.stage == "train" else one
        for one in settings.loaders
    )
    trainer = replace(settings.trainer, accumulate_grad_batches=accumulated)
    return replace(session, settings=replace(settings, trainer=trainer, loaders=loaders))


def objects_of(fix: Prescription) -> dict[str, Any]:
    """Return the ``Trainer`` arguments of a recommendation that are objects, as a LightningCLI configuration."""
    try:
        treatment = find(fix.treatment)
        value = treatment.default if fix.value is None else treatment.parse_value(str(fix.value))
    except ConfigError:  # advice without a treatment, or one of a newer version
        return {}
    return treatment.trainer_objects(value)


def objects_in(value: Any) -> list[dict[str, Any]]:
    """Return the objects that an argument is or lists, as in a LightningCLI configuration."""
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)]


def imports_of(arguments: dict[str, Any]) -> list[str]:
    """Return the imports that the objects among the arguments need."""
    paths = sorted({one["class_path"].rpartition(".") for value in arguments.values() for one in objects_in(value)})
    return [f"from {module} import {name}" for module, _, name in paths]


def code_of(value: Any) -> str:
    """Return an argument as Python code, strings in double quotes."""
    if isinstance(value, list):
        return f"[{', '.join(map(code_of, value))}]"
    if isinstance(value, dict):
        return f"{value['class_path'].rpartition('.')[2]}({_keywords(value['init_args'])})"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def cli_name(name: str, value: Any) -> str:
    """Return the name for LightningCLI, with "+" for a list, which is then added to the user's list."""
    return f"{name}+" if isinstance(value, list) else name


def _keywords(arguments: dict[str, Any], completed: Mapping[str, str] = {}) -> str:
    written = {**{name: code_of(value) for name, value in arguments.items()}, **completed}
    return ", ".join(f"{name}={value}" for name, value in written.items())


def _yaml(trainer: dict[str, Any], loader: dict[str, Any]) -> str:
    """Return YAML for LightningCLI, which configures the Trainer; the user's DataModule configures the loader."""
    named = {cli_name(name, value): value for name, value in trainer.items()}
    text: str = yaml.safe_dump({"trainer": named}, sort_keys=False) if named else ""
    if loader:
        lines = yaml.safe_dump({"data": loader}, sort_keys=False).splitlines()
        text += "".join(f"# {line}\n" for line in ("if your DataModule passes them on to its DataLoader:", *lines))
    return text


def setting_text(spec: TreatmentSpec, without: Sequence[str]) -> str:
    """Return the arguments that a user would write, ``num_workers=2``, or else the treatment itself.

    Loader arguments named in ``without`` are left out.
    """
    written = prescription([spec], without=without)
    return _keywords({**written.trainer_flags, **written.loader_args}) or spec.text
