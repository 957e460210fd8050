"""A whole trial on synthetic runs: what is run, kept, resumed and rejected."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lightning_perf.errors import TrialError
from lightning_perf.records import Trial, load
from lightning_perf.trials import trial as trials
from lightning_perf.trials.job import DOCTOR_FOLDER, OUTPUTS, Job, Result
from lightning_perf.trials.rounds import PlannedRun
from lightning_perf.trials.runner import CommandError, Ended
from lightning_perf.trials.trial import Options, run_trial
from tests.rules.session_builder import build_session

COMMAND = ("python", "train.py")
STEP_S = {
    "loader-workers=4": 0.5,
    "log-every-n=7": 1.0,
    "log-every-n=8": 1.3,
    "compile=default": 0.5,
    "batch-size=x2": 0.5,
}
JITTER = (1.0, 1.002, 0.999, 1.001, 0.998, 1.0)


class Machine:
    """Fake ``run_supervised``: a baseline of 50 ms per step, of which each treatment leaves its share."""

    def __init__(self) -> None:
        self.made: list[Job] = []
        self.limits: list[tuple[float | None, int | None]] = []
        self.stops_at: int | None = None
        self.failing: dict[str, str] = {}
        self.pilot: dict[str, Any] = {}
        self.session: dict[str, Any] = {}

    def __call__(
        self,
        command: Sequence[str],
        job: Job,
        time_limit_s: float | None = None,
        memory_limit_bytes: int | None = None,
        environment: dict[str, str] | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> Ended:
        if self.stops_at is not None and len(self.made) >= self.stops_at:
            raise KeyboardInterrupt
        self.made.append(job)
        self.limits.append((time_limit_s, memory_limit_bytes))
        checkpoint = Path(job.folder) / OUTPUTS / "checkpoints" / "last.ckpt"
        checkpoint.parent.mkdir(parents=True)
        checkpoint.touch()
        is_pilot = job.with_doctor
        if is_pilot:
            build_session(self.session).save(Path(job.folder) / DOCTOR_FOLDER)
        reason = next((self.failing[spec] for spec in job.specs if spec in self.failing), "")
        if reason:
            return ended(None, code=1, log=reason)
        mean_s = 0.05
        for spec in job.specs:
            mean_s *= STEP_S.get(spec, 1.0)
        turn = len(self.made)
        blocks = tuple(mean_s * JITTER[(turn + i) % len(JITTER)] for i in range(8))
        whole = tuple(2 * block for block in blocks)
        result = Result(
            status="ok",
            block_means_s=blocks,
            wall_block_means_s=whole,
            block_steps=20,
            n_steps=job.steps or 200,
            n_batches=job.steps or 200,
            steady_from=3,
            samples_per_step=8.0,
            losses=tuple(1.0 / (i + 1) for i in range(50)),
            train_s=10.0,
            epochs=5,
            compile_s=3.0 if "compile=default" in job.specs else 0.0,
        )
        return ended(msgspec.structs.replace(result, **(self.pilot if is_pilot else {})))


def ended(result: Result | None, code: int = 0, log: str = "") -> Ended:
    events = frozenset({"python", "lightning", "trainer", "fit"})
    return Ended(code=code, reason="", wall_s=12.0, result=result, events=events, log=log)


class Silent:
    """A watcher that notes which arms ran."""

    def __init__(self) -> None:
        self.arms: list[str] = []

    def diagnosing(self) -> None: ...

    def planned(self, session: Any, state: Any) -> None: ...

    def running(self, run: PlannedRun, about: int, trial: Any) -> None:
        assert about > 0

    def ran(self, run: Any, trial: Any) -> None:
        self.arms.append(run.arm)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(trials, "run_supervised", made)
    return made


@pytest.fixture
def go(tmp_path: Path) -> Callable[..., Trial]:
    def run(*tries: str, **options: Any) -> Trial:
        return run_trial(Options(command=COMMAND, tries=tries, **options), tmp_path / "out", Silent())

    return run


def test_ladder_keeps_improvements_and_prints_code_to_paste(machine: Machine, go: Any, tmp_path: Path) -> None:
    trial = go("log-every-n=7", "loader-workers=4", "log-every-n=8")
    verdicts = {arm.id: arm.verdict for arm in trial.arms}
    assert trial.status == "finished"
    assert verdicts["loader-workers=4"] == "improved"
    assert verdicts["log-every-n=8"] == "regressed"
    assert verdicts["log-every-n=7"] == "no_change"
    assert trial.best == "loader-workers=4"
    assert trial.loader_args["num_workers"] == 4
    assert "num_workers=4" in trial.code
    assert load(tmp_path / "out").trials == (trial,)
    assert msgspec.json.decode((tmp_path / "out" / "trial.json").read_bytes())["best"] == "loader-workers=4"


def test_code_to_paste_holds_the_batch_size_and_the_accumulation_after_it(machine: Machine, go: Any) -> None:
    machine.session = {"loader": {"batch_size": 32}, "settings": {"trainer": {"accumulate_grad_batches": 4}}}
    trial = go("batch-size=x2", semantics=True)
    assert trial.best == "batch-size=x2"
    assert (trial.loader_args, trial.trainer_flags) == ({"batch_size": 64}, {"accumulate_grad_batches": 2})
    assert "batch_size=64" in trial.code


def test_compiling_is_left_out_when_the_training_is_too_short_for_it(machine: Machine, go: Any) -> None:
    machine.pilot = {"planned_steps": 20}  # of 0.05 s each
    trial = go("compile=default")
    assert (trial.planned_steps, trial.best) == (20, "baseline")
    assert "compiling takes 3.0 s: 0.29x over the 20 planned steps" in trial.ladder[-1].reason


def test_every_run_has_the_same_steps_and_seed_and_no_perf_doctor(machine: Machine, go: Any) -> None:
    trial = go("loader-workers=4")
    pilot, *runs = machine.made
    assert pilot.with_doctor
    assert pilot.steps is None
    assert {job.steps for job in runs} == {trial.steps}
    assert {job.seed for job in machine.made} == {trial.seed}
    assert not any(job.with_doctor for job in runs)
    assert len({job.folder for job in machine.made}) == len(machine.made)
    assert all(limit is not None and memory for limit, memory in machine.limits)


def test_checkpoints_and_logs_of_the_runs_are_not_kept(machine: Machine, go: Any, tmp_path: Path) -> None:
    machine.failing = {"log-every-n=7": "no"}
    go("loader-workers=4", "log-every-n=7")
    assert not list(tmp_path.rglob(OUTPUTS))


def test_failed_arm_is_reported_with_its_reason_and_the_others_finish(machine: Machine, go: Any) -> None:
    machine.failing = {"log-every-n=7": "RuntimeError: no such kernel"}
    trial = go("log-every-n=7", "loader-workers=4")
    failed = next(arm for arm in trial.arms if arm.id == "log-every-n=7")
    assert failed.verdict == "failed"
    assert "no such kernel" in failed.reason
    assert trial.best == "loader-workers=4"


def test_interrupted_trial_reports_and_goes_on_where_it_stopped(machine: Machine, go: Any, tmp_path: Path) -> None:
    machine.stops_at = 4
    first = go("loader-workers=4", "log-every-n=7")
    assert first.status == "interrupted"
    assert len(first.runs) == 3
    assert load(tmp_path / "out").trials == (first,)

    machine.stops_at = None
    second = go("loader-workers=4", "log-every-n=7")
    assert second.status == "finished"
    assert second.id == first.id
    assert second.runs[:3] == first.runs
    assert [run.position for run in second.runs] == list(range(len(second.runs)))
    assert sum(job.with_doctor for job in machine.made) == 1


def test_trial_killed_between_two_runs_goes_on(machine: Machine, go: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    counter = itertools.count()

    def dies(*args: Any, **kwargs: Any) -> Ended:
        if next(counter) == 5:
            raise Killed
        return machine(*args, **kwargs)

    monkeypatch.setattr(trials, "run_supervised", dies)
    with pytest.raises(Killed):
        go("loader-workers=4")
    assert go("loader-workers=4").status == "finished"
    assert sum(job.with_doctor for job in machine.made) == 1


def test_folder_of_another_or_a_finished_trial_is_refused(machine: Machine, go: Any) -> None:
    go("loader-workers=4")
    with pytest.raises(TrialError, match="finished"):
        go("loader-workers=4")
    with pytest.raises(TrialError, match="other options"):
        go("log-every-n=7")


def test_whole_epochs_are_measured_when_a_treatment_acts_between_them(machine: Machine, go: Any) -> None:
    trial = go("async-checkpoint", repeats=1)
    assert trial.basis == "wall"
    assert trial.runs[0].block_means_s[0] > 0.09


def test_treatment_between_epochs_is_not_tried_when_runs_hold_too_few(machine: Machine, go: Any) -> None:
    machine.pilot = {"epochs": 0}
    trial = go("async-checkpoint", "log-every-n=7")
    assert "--steps" in trial.not_tried["async-checkpoint"]
    assert trial.basis == "steps"


def test_diagnosis_may_take_twice_what_a_run_may(machine: Machine, go: Any) -> None:
    go("loader-workers=4", time_limit_s=30.0)
    assert [limit for limit, _ in machine.limits[:2]] == [60.0, 30.0]


def test_nothing_runs_when_there_is_nothing_to_try(machine: Machine, go: Any) -> None:
    trial = go()
    assert [job.with_doctor for job in machine.made] == [True]  # the diagnosis alone
    assert (trial.status, trial.runs, trial.arms, trial.ladder, trial.best) == ("finished", (), (), (), "baseline")
    assert (trial.trainer_flags, trial.loader_args, trial.code, trial.yaml) == ({}, {}, "", "")


@pytest.mark.parametrize(
    ("pilot", "options", "told"),
    [
        ({"status": "failed", "reason": "the loss became nan at batch 3"}, {}, "nan at batch 3"),
        (
            {"block_means_s": (), "is_whole": True, "n_steps": 12, "missing": {"block_means_s": "too few"}},
            {},
            "after 12 optimizer steps",
        ),
        ({}, {"steps": 10}, "--steps 10"),
    ],
)
def test_baseline_that_gives_nothing_to_measure_is_one_error(
    machine: Machine, go: Any, pilot: dict[str, Any], options: dict[str, Any], told: str
) -> None:
    machine.pilot = pilot
    with pytest.raises(TrialError, match=told):
        go("loader-workers=4", **options)


def test_error_carries_the_output_when_the_command_fails(
    machine: Machine, go: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "run_supervised", lambda *a, **k: ended(None, code=3, log="one\nValueError: no data"))
    with pytest.raises(CommandError, match="exited with 3: ValueError: no data") as raised:
        go()
    assert raised.value.log == "one\nValueError: no data"


@pytest.mark.parametrize("name", ["tensorboard", "perf_session.json", "model.py"])
def test_folder_of_others_is_refused_and_left_as_it_is(machine: Machine, go: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    with pytest.raises(TrialError, match=f"has {name}, which is not from a trial"):
        go("log-every-n=7")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]


def test_folder_of_a_diagnosis_that_broke_off_is_used_again(machine: Machine, go: Any, tmp_path: Path) -> None:
    (tmp_path / "out" / "diagnosis").mkdir(parents=True)
    assert go("loader-workers=4").status == "finished"
