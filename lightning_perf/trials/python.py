"""A trial from Python: of a command, or of a function in this process."""

import shlex
import time
from collections.abc import Callable, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from lightning_perf.checks import FLAG, Check, checked, checked_number, is_list_of, is_text, is_whole, whole
from lightning_perf.errors import ConfigError
from lightning_perf.records import Trial
from lightning_perf.treatments.specs import parse
from lightning_perf.trials.progress import Progress
from lightning_perf.trials.trial import SEED, Options, run_trial

LEAST_MEMORY_BYTES = 64 * 2**20
"""Smallest limit of memory: importing torch needs more."""
LEAST_TIME_S = 1.0
"""Smallest limit of time."""
_SEED: Check = (lambda v: is_whole(v) and -(2**63) <= v < 2**63, "a whole number of at most 64 bits")  # torch's range
_TREATMENTS: Check = (lambda v: is_text(v) or is_list_of(v, is_text), 'treatments, e.g. ["loader-workers=4"]')


def trial(
    command: str | Sequence[str | PathLike[str]] | Callable[[], Any] | None = None,
    treatments: str | Sequence[str] = (),
    *,
    make_trainer: Callable[[], Any] | None = None,
    make_module: Callable[[], Any] | None = None,
    make_data: Callable[[], Any] | None = None,
    steps: int | None = None,
    repeats: int = 3,
    semantics: bool = False,
    seed: int = SEED,
    time_limit_s: float | None = None,
    memory_limit_bytes: int | None = None,
    out_dir: str | PathLike[str] | None = None,
    progress: bool = True,
) -> Trial:
    """Run a few steps of a training repeatedly, without and with each treatment, and measure the speedups.

    A command runs in processes of its own, as with ``lightning-perf trial``. A function, or the three factories that
    stand for one, runs in this process on one device, e.g. in a notebook; it has to build a new Trainer each time.

    Args:
        command: The training command, or a function that builds a Trainer and calls its ``fit``; None with factories.
        treatments: Treatments to try, e.g. ``["loader-workers=4", "precision-bf16"]``; empty for the recommended ones.
        make_trainer: Returns a new Trainer.
        make_module: Returns a new LightningModule.
        make_data: Returns a LightningDataModule, a DataLoader, or a tuple of loaders for training and validation.
        steps: Optimizer steps per run; None to choose them automatically.
        repeats: Runs per arm; fewer or more as the result requires.
        semantics: Whether to also try treatments that change results, such as the batch size.
        seed: Random seed of every run.
        time_limit_s: Time limit per run of a command.
        memory_limit_bytes: Memory that a run of a command may use.
        out_dir: Output folder; an interrupted trial in it is resumed. ``perf_logs/trial-<time>`` by default.
        progress: Whether to report each run on stderr.

    Returns:
        The trial, after Ctrl-C with the runs until then. ``print`` it, or end a notebook's cell with it.

    Raises:
        ConfigError: An argument cannot be used as given, or the arguments do not fit together.
        TrialError: There is nothing to measure.
        KeyboardInterrupt: After Ctrl-C before the training was diagnosed.
    """
    factories = (make_trainer, make_module, make_data)
    is_command = isinstance(command, (str, Sequence))
    is_given = is_command or callable(command) if command is not None else make_trainer and make_module
    if not is_given or (command is not None and any(factories)):
        raise ConfigError("trial expects a command, a function, or make_trainer and make_module, and only one of these")
    if not is_command and (time_limit_s is not None or memory_limit_bytes is not None):
        raise ConfigError("time_limit_s and memory_limit_bytes apply to commands only, whose processes can be ended")
    execute = None
    if not is_command:
        from lightning_perf.trials.in_process import InProcess

        execute = InProcess(command if callable(command) else lambda: _fit(*factories))
    words = shlex.split(command) if isinstance(command, str) else command if is_command else (_name(command),)
    names = treatments if isinstance(treatments, str) else ",".join(checked("treatments", treatments, _TREATMENTS))
    options = Options(
        command=tuple(map(fspath, words)),  # type: ignore[arg-type]
        tries=tuple(dict.fromkeys(parse(one).text for one in names.split(",") if one.strip())),
        steps=checked("steps", steps, whole(least=1, or_none=True)),
        repeats=checked("repeats", repeats, whole(least=1)),
        semantics=checked("semantics", semantics, FLAG),
        time_limit_s=checked_number("time_limit_s", time_limit_s, "seconds, at least 1, or None", LEAST_TIME_S),
        memory_limit_bytes=checked("memory_limit_bytes", memory_limit_bytes, whole(LEAST_MEMORY_BYTES, or_none=True)),
        seed=checked("seed", seed, _SEED),
    )
    folder = Path(out_dir) if out_dir is not None else Path("perf_logs") / f"trial-{time.strftime('%Y%m%d-%H%M%S')}"
    with Progress(folder, is_quiet=not progress) as shown:
        return run_trial(options, folder.resolve(), shown, execute)


def _fit(make_trainer: Any, make_module: Any, make_data: Any) -> None:
    trainer, module, data = make_trainer(), make_module(), make_data() if make_data is not None else ()
    trainer.fit(module, *(data if isinstance(data, tuple) else (data,)))


def _name(function: Any) -> str:
    return f"{getattr(function, '__name__', None) or type(function).__name__}()" if function else "make_trainer().fit()"
