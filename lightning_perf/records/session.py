"""The session: everything that was measured and found in one run, and its file."""

import contextlib
import os
from typing import Any, Literal

import msgspec

from lightning_perf.errors import SessionError

from .autopilot import Autopilot
from .base import Record
from .files import read_regular, write_whole
from .finding import Finding, RuleOutcome, Safety, Verdict
from .hang import Hang
from .history import EarlierRuns, Provenance
from .host_calls import CompilerWatch, LossScaler, SyncCalls
from .host_profile import Collections, HostProfile
from .loader_probe import LoaderProbe
from .machine import Machine
from .memory import Memory
from .model_profile import ModelProfile
from .ranks import Ranks
from .remote import AnyPath, RemotePath, any_path, exists, is_dir
from .replay import Replay
from .selection import select
from .settings import Settings
from .steps import Epoch, Padding, StageTimes
from .telemetry import Telemetry
from .text import clean_line
from .trace import TraceRecord
from .trial import Trial
from .validation import Refused, check_any, checked, repaired

SCHEMA_VERSION = 1
SESSION_FILE = "perf_session.json"


class Run(Record, frozen=True, kw_only=True):
    """One call of fit, validate, test or predict.

    Attributes:
        id: Unique, also among the runs in one folder.
        stage: ``"fit"``, ``"validate"``, ``"test"`` or ``"predict"``; ``"data"`` of ``lightning-perf data``.
        status: ``running`` until the end; ``interrupted`` by Ctrl-C, SIGTERM or Optuna's pruning; ``failed`` by an
            exception.
        started_at: ISO 8601, UTC.
        wall_s: From ``setup`` to the end.
        n_steps: Batches.
        n_optimizer_steps: ``trainer.global_step`` at the end minus at the start.
        time_to_first_step_s: From ``setup`` to the end of the first step; None if there was none.
        startup: Seconds until the end of the first step by part. Before the first fetch: ``sanity_validation``, the
            phases (``callbacks`` …) and ``other``. Then ``loader_start`` (the first fetch minus a median one) and
            ``first_step`` (the rest of the step minus a median step's rest); without a median, nothing is subtracted.
            These two are absent if a profiler window includes the first step. Parts without time are absent.
        error: Type of the exception that ended the run; None without one.
        has_trainer: Whether a Trainer ran the steps; False for a loop of the user's own.
    """

    id: str
    stage: str
    status: Literal["running", "finished", "interrupted", "failed"]
    started_at: str
    wall_s: float
    n_steps: int = 0
    n_epochs: int = 0
    n_optimizer_steps: int | None = None
    time_to_first_step_s: float | None = None
    startup: dict[str, float] = {}
    rank: int = 0
    world_size: int = 1
    error: str | None = None
    lightning_perf: str = ""
    has_trainer: bool = True


class Overhead(Record, frozen=True, kw_only=True):
    """Overhead of PerfDoctor itself.

    Attributes:
        per_step_us: Microseconds per step: the median time in its own hooks, the measured cost of its spans, and what
            sampling memory took, spread over the steps.
        reporting_s: Total seconds spent reading settings, diagnosing, reporting, and sampling steps.
        share: All time in its hooks and spans ÷ the wall time of the run.
        backed_off: Measurements that it stopped because the overhead exceeded the budget; normally empty.
    """

    per_step_us: float
    reporting_s: float
    share: float
    budget_us: float
    backed_off: tuple[str, ...] = ()


class ProbeFailure(Record, frozen=True, kw_only=True):
    """A probe or report that raised and was switched off for the rest of the run."""

    probe: str
    error: str
    step: int


class Window(Record, frozen=True, kw_only=True):
    """One profiler window.

    Attributes:
        status: ``recorded``, ``empty``, ``incomplete`` or ``failed``.
        reason: Why it was opened, or why it failed.
        file: The trace file, relative to the session; None if it was not kept.
        trace: Analysis of the trace; None without events.
    """

    first_step: int
    n_steps: int
    status: Literal["recorded", "empty", "incomplete", "failed"]
    reason: str
    cost_s: float
    file: str | None = None
    trace: TraceRecord | None = None


class AppliedTreatment(Record, frozen=True, kw_only=True):
    """A treatment that PerfDoctor was allowed to apply between epochs or steps (``PerfDoctor(apply=...)``).

    Attributes:
        treatment: With its value, e.g. ``"loader-workers=4"``.
        finding: Code of the finding that recommended it.
        epoch: First epoch with the treatment, perhaps not in all of its steps. The session includes the time
            before.
        status: ``applied``, or ``refused`` if that was not possible.
        reason: Why it was refused; empty otherwise.
    """

    treatment: str
    finding: str
    epoch: int
    status: Literal["applied", "refused"]
    reason: str = ""


class Session(Record, frozen=True, kw_only=True):
    """One run: measurements, findings and recommendations.

    Attributes:
        steady: The training steps (fit) or batches (other stages) in the steady state; None until there are enough.
        validation: The batches of validation inside fit, of all rounds; None without any.
        ranks: Comparison of all ranks; None with one rank.
        missing: Why a measurement is None: ``{"steady.device": "the CPU has no device clock"}``.
        telemetry: Device and host metrics; None with ``device_stats=False`` or if nothing could be read.
        loader_probe: Measurements of the training loader; None if it was not probed.
        model_profile: Cost of the model's operations; None if no step was sampled.
        replay: Operators of one step, timed without and with treatments; None if not replayed.
        trials: Treatments measured on this training.
        applied: Treatments that PerfDoctor applied to this training, in order.
        sync_calls: Calls in sampled steps that make the host wait; None if no step was sampled.
        compiler: Compilations by ``torch.compile``; None without any.
        loss_scaler: The loss scaler of fp16 training; None without one.
        host_profile: Lines of the user's code by host time; None if the stack was not sampled.
        collections: Python's garbage collections; None without any.
        hangs: Times without progress; empty without any, or with ``hang_after_s=None``.
        provenance: What identifies the training and its code; None if it was not read.
        earlier: Earlier runs of this training; None without any, or if no history is kept.
        autopilot: Treatments that the autopilot tried; None without ``PerfDoctor(autopilot=...)``.
        padding: Padding in training batches; None if batches have no tokens, or nothing marks padding.
    """

    schema_version: int = SCHEMA_VERSION
    run: Run
    machine: Machine
    settings: Settings = Settings()
    epochs: tuple[Epoch, ...] = ()
    steady: StageTimes | None = None
    validation: StageTimes | None = None
    ranks: Ranks | None = None
    memory: Memory = Memory()
    windows: tuple[Window, ...] = ()
    findings: tuple[Finding, ...] = ()
    outcomes: tuple[RuleOutcome, ...] = ()
    verdict: Verdict = Verdict(category="unknown", code=None, text="nothing measured yet")
    trials: tuple[Trial, ...] = ()
    overhead: Overhead | None = None
    probes_off: tuple[ProbeFailure, ...] = ()
    missing: dict[str, str] = {}
    telemetry: Telemetry | None = None
    loader_probe: LoaderProbe | None = None
    model_profile: ModelProfile | None = None
    sync_calls: SyncCalls | None = None
    compiler: CompilerWatch | None = None
    loss_scaler: LossScaler | None = None
    applied: tuple[AppliedTreatment, ...] = ()
    host_profile: HostProfile | None = None
    collections: Collections | None = None
    replay: Replay | None = None
    hangs: tuple[Hang, ...] = ()
    provenance: Provenance | None = None
    earlier: EarlierRuns | None = None
    autopilot: Autopilot | None = None
    padding: Padding | None = None

    def __repr__(self) -> str:
        """Return one line; `str` gives the brief report and `to_json` all fields."""
        n = len(self.findings)
        findings = "1 finding" if n == 1 else f"{n} findings"
        code = f" ({self.verdict.code})" if self.verdict.code else ""
        text = f"{self.run.stage}, {self.run.status}, {findings}: {self.verdict.text}{code}"
        return f"Session({clean_line(text)})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return what rich's pretty printer shows."""
        codes = [finding.code for finding in self.findings]
        return [("stage", self.run.stage), ("status", self.run.status), ("findings", codes), ("verdict", self.verdict)]

    def trainer_flags(self, safety: Safety = "exact") -> dict[str, Any]:
        """Return the recommended ``Trainer`` arguments, at most as unsafe as ``safety``.

        Of arguments that contradict, the more severe finding's are returned, then those with the larger speedup.
        ``select(…).left_out`` lists the other recommendations.
        """
        return select(self, safety).trainer

    def loader_args(self, safety: Safety = "exact") -> dict[str, Any]:
        """Return the recommended arguments of the training ``DataLoader``; otherwise like ``trainer_flags``."""
        return select(self, safety).loader

    def left_out(self, safety: Safety = "exact") -> dict[str, str]:
        """Return why recommendations are in neither ``trainer_flags`` nor ``loader_args``, by recommendation."""
        return select(self, safety).left_out

    def to_json(self) -> bytes:
        """Return the session as indented JSON."""
        try:
            content = msgspec.json.encode(self)
        except UnicodeEncodeError:  # e.g. a file whose name is not UTF-8
            content = msgspec.json.encode(check_any(msgspec.to_builtins(self)))
        return msgspec.json.format(content, indent=1)

    def file_content(self) -> bytes:
        """Return what ``save`` writes: like ``to_json``, without figures that ``load`` would refuse."""
        try:
            document, dropped = repaired(msgspec.json.decode(self.to_json()), Session)
            document["missing"] = {**document.get("missing", {}), **dropped}
            return msgspec.convert(document, Session).to_json()
        except (msgspec.ValidationError, Refused) as error:
            raise SessionError(f"this session is not valid: {error}") from error

    def save(self, path: str | os.PathLike[str] | RemotePath) -> AnyPath:
        """Write the session; a crash leaves an existing file intact.

        Args:
            path: The file, or a folder for ``perf_session.json``; local, or a URL that fsspec supports. Parent folders
                are created. An existing session of another run is kept and renamed to ``perf_session.<its id>.json``.

        Returns:
            The file written.

        Raises:
            SessionError: The file cannot be written, another kind of file is there, or a required figure
                is out of its bounds (NaN and infinity among them). Others are left out; ``missing`` holds the reason.
        """
        content = self.file_content()
        target = any_path(path)
        try:
            if target.suffix != ".json" or is_dir(target):
                target = target / SESSION_FILE
            self._set_aside(target)
            write_whole(target, content)
        except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
            raise SessionError(f"cannot write the session to {target}: {error}; choose another out_dir") from error
        # Where two runs share a folder, the other one may have set an earlier session of this run aside.
        with contextlib.suppress(OSError, ValueError):
            target.with_name(f"{target.stem}.{self.run.id}.json").unlink()
        return target

    def _set_aside(self, target: AnyPath) -> None:
        if not exists(target):
            return
        try:
            other = load(target).run.id
        except SessionError as error:
            raise SessionError(
                f"{target} exists and is not a session that this version can read ({error}); "
                "move it away or choose another out_dir"
            ) from error
        if other != self.run.id:
            with contextlib.suppress(FileNotFoundError):  # the other run, still running, renamed it first
                target.replace(target.with_name(f"{target.stem}.{other}.json"))  # type: ignore[arg-type]


_MOST_NEARBY = 3


def load(path: str | os.PathLike[str] | RemotePath) -> Session:
    """Read a session; needs neither torch nor lightning.

    Args:
        path: A session file, or a folder that holds ``perf_session.json``; local, or a URL that fsspec supports.

    Returns:
        The session, upgraded to this version's schema.

    Raises:
        SessionError: No such file, not a session, cut short, or written by a newer version.
    """
    source = place = any_path(path)
    try:
        if is_dir(place):
            source = place / SESSION_FILE
        content = read_regular(source)
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        raise SessionError(
            f"cannot read a session from {source}: {getattr(error, 'strerror', None) or error}; "
            f"expected a {SESSION_FILE} written by PerfDoctor{_nearby(place)}"
        ) from error
    return from_json(content, str(source))


def _nearby(folder: AnyPath) -> str:
    """Return sessions near a folder that has none under the usual name: of other stages, or in subfolders."""
    found: list[Any] = []
    with contextlib.suppress(OSError):
        if is_dir(folder):
            found = sorted((*folder.glob("perf_session*.json"), *folder.glob(f"*/{SESSION_FILE}")))
    more = f" and {len(found) - _MOST_NEARBY} more" if len(found) > _MOST_NEARBY else ""
    return f"; there is {', '.join(map(str, found[:_MOST_NEARBY]))}{more}" if found else ""


def from_json(content: bytes | str, source: str) -> Session:
    """Return a session from its JSON, as ``load`` does; ``source`` names it in errors."""
    try:
        document = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SessionError(f"{source} is not complete JSON ({error}); expected a {SESSION_FILE}") from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1 or "run" not in document:
        is_trace = isinstance(document, dict) and "traceEvents" in document
        hint = "; it is a trace: lightning-perf analyze reads it" if is_trace else ""
        raise SessionError(
            f"{source} is not a PerfDoctor session: it has no schema_version and run; expected both{hint}"
        )
    if version > SCHEMA_VERSION:
        raise SessionError(
            f"{source} has schema_version {version}, this lightning-perf reads up to {SCHEMA_VERSION}; "
            "upgrade with: pip install -U lightning-perf"
        )
    try:
        return msgspec.convert(checked({**document, "schema_version": SCHEMA_VERSION}, Session), Session)
    except (msgspec.ValidationError, Refused) as error:
        raise SessionError(f"{source} is not a valid session: {error}") from error


# msgspec analyzes a type at its first use; two threads that do so at once crash the interpreter.
msgspec.json.Decoder(Session)
