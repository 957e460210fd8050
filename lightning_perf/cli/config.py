"""``lightning-perf config``: print the recommended arguments of a session, ready to use."""

import shlex
import sys
from collections.abc import Iterator
from typing import Annotated, Any, cast

import typer
import yaml

from lightning_perf.records import SAFETIES, Prescription, Safety, Selection, Session, load_run, select
from lightning_perf.records.remote import any_path
from lightning_perf.reports.wording import fit_encoding, line
from lightning_perf.treatments.prescription import cli_name, code_of, imports_of, in_package, objects_in, objects_of

from .output import check_choice, check_file, write

FORMATS = ("python", "yaml", "cli")


def config(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="A perf_session.json, or its folder; also a URL.")],
    format_: Annotated[
        str, typer.Option("--format", help="python, yaml for LightningCLI, or cli for its command line.")
    ] = "python",
    safety: Annotated[
        str, typer.Option(help="Include changes up to: exact (same results), numerics (rounding), or semantics.")
    ] = "exact",
    out: Annotated[str | None, typer.Option("--out", help="Write to this file or URL, not to the terminal.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file of --out.")] = False,
) -> None:
    """Print the recommended arguments of a saved session for Python or LightningCLI. Needs no torch.

    Comments name the findings, and what is left out, with the reason. With --format cli they are printed to stderr:
    python train.py fit $(lightning-perf config SESSION --format cli).
    """
    check_choice("--format", format_, FORMATS)
    check_choice("--safety", safety, SAFETIES)
    check_file(out, force)
    loaded = load_run(any_path(session))
    settings, notes = configuration(loaded, format_, cast(Safety, safety))
    settings = [in_package(each, loaded.settings.trainer.package) for each in settings]
    if format_ == "cli":
        for note in notes:
            print(fit_encoding(note, sys.stderr.encoding), file=sys.stderr)
        notes = []
    write("\n".join([*settings, *notes]), out, force)


def configuration(session: Session, format_: str, safety: Safety) -> tuple[list[str], list[str]]:
    """Return the recommended arguments as lines in one of ``FORMATS``, and the notes on what they leave out."""
    bar = session.settings.trainer.progress_bar

    def objects(fix: Prescription) -> dict[str, Any]:
        found = objects_of(fix)
        replaces_bar = "callbacks" in found and bar != "TQDMProgressBar"  # the recommended callback is a TQDM bar
        return {} if replaces_bar else found

    chosen = select(session, safety, objects)
    notes = [f"# {line(what, 300)} -> {line(why, 300)}" for what, why in chosen.left_out.items()]
    if notes:
        notes.insert(0, f"# Not included (--safety {safety}):")
    if format_ == "python":
        return list(_python(chosen)), notes
    loader = []
    if chosen.loader:
        loader.append("# for the training DataLoader, if your DataModule passes them on:")
        loader += [f"# {text}" for text in _yaml("data", chosen.loader, chosen)]
    if format_ == "yaml":
        return [*_yaml("trainer", chosen.trainer, chosen), *loader], notes
    return [" ".join(map(shlex.quote, _cli(chosen)))], [*loader, *notes]


def _python(chosen: Selection) -> Iterator[str]:
    imports = imports_of(chosen.trainer)
    yield from [*imports, ""] if imports else []
    for name, arguments, use in (
        ("trainer_flags", chosen.trainer, "trainer = Trainer(**trainer_flags, ...)"),
        ("loader_args", chosen.loader, "train_loader = DataLoader(dataset, **loader_args, ...)"),
    ):
        yield f"{name} = {{"
        for key, value in arguments.items():
            yield f"    {code_of(key)}: {code_of(value)},  # {chosen.sources[key]}"
        yield f"}}  # {use}"


def _yaml(key: str, arguments: dict[str, Any], chosen: Selection) -> list[str]:
    if not arguments:
        return [f"{key}: {{}}"]
    lines = [f"{key}:"]
    for name, value in arguments.items():
        text = yaml.safe_dump({cli_name(name, value): value}, sort_keys=False)
        first, *rest = text.splitlines()
        lines += [f"  {first}  # {chosen.sources[name]}", *(f"  {each}" for each in rest)]
    return lines


def _cli(chosen: Selection) -> Iterator[str]:
    for name, value in chosen.trainer.items():
        if not objects_in(value):
            yield f"--trainer.{name}={_scalar(value)}"
        for each in objects_in(value):
            yield f"--trainer.{cli_name(name, value)}={each['class_path']}"
            for argument, one in each["init_args"].items():
                yield f"--trainer.{name}.{argument}={_scalar(one)}"


def _scalar(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
