"""Hangs planted in real trainings, each described with its line and released once it is."""

from __future__ import annotations

import inspect
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lightning_perf import DoctorOptions, PerfDoctor, load
from lightning_perf.probes.hang import workers
from lightning_perf.probes.hang.watch import HangWatch
from lightning_perf.records import Hang
from lightning_perf.records.remote import AnyPath, any_path
from tests.forkserver import Forkserver

from .conftest import Make
from .models import Tiny, loader

pytestmark = [pytest.mark.timeout(300), pytest.mark.hangs]

HERE = Path(__file__).name
THREAD = "lightning-perf hang watch"
AT = 40
AFTER_S = 0.5


class Samples(Dataset[torch.Tensor]):
    """Samples whose forked worker waits for a lock that was taken before the fork."""

    def __init__(self, lock: Any = None) -> None:
        self.lock = lock

    def __len__(self) -> int:
        return AT + 5

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.lock is not None and index == AT:
            self.lock.acquire()  # worker
        return torch.ones(4)


class Model(LightningModule):
    def __init__(self, source: socket.socket | None = None) -> None:
        super().__init__()
        self.net = nn.Linear(4, 1)
        self.source = source

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.source is not None and batch_idx == AT:
            self.source.recv(1)  # socket
        return self.net(batch).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Locks(Callback):
    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == AT:
            self.lock.acquire()  # callback


def line_of(marker: str) -> int:
    source, first = inspect.getsourcelines(sys.modules[__name__])
    return next(first + i for i, text in enumerate(source, 1) if text.rstrip().endswith(f"  # {marker}"))


def described(
    make_trainer: Make, folder: AnyPath, release: Callable[[], Any], module: Any, *callbacks: Callback, **data: Any
) -> Hang:
    """Train until the planted hang is in its file, release it, and return its record."""
    doctor = PerfDoctor(
        schedule=None,
        out_dir=str(folder),
        probe_data=False,
        options=DoctorOptions(hang_after_s=AFTER_S, module_depth=0),
    )

    def wait() -> None:
        planted = re.compile(rf"after {AT}|after {AT + 1}")
        while not any(planted.search(path.read_bytes().decode()) for path in folder.glob("hang.txt")):
            time.sleep(0.01)
        release()

    threading.Thread(target=wait, daemon=True).start()
    make_trainer(doctor, *callbacks).fit(module, DataLoader(Samples(**data), batch_size=1, num_workers=len(data)))
    session = load(folder)
    assert session.run.status == "finished"
    assert session.probes_off == ()
    assert not [thread for thread in threading.enumerate() if thread.name == THREAD]
    return next(hang for hang in session.hangs if hang.n_steps >= AT)


def test_socket_is_named_when_a_training_step_waits_for_it(
    make_trainer: Make, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = socket.socketpair()
    hang = described(make_trainer, tmp_path / "out", lambda: ours.send(b"x"), Model(theirs))
    place = f"{HERE}:{line_of('socket')} in training_step"
    assert hang.where.endswith(place)
    assert (hang.phase, hang.code, hang.call) == ("forward", "self.source.recv(1)  # socket", "source.recv")
    assert hang.lasted_s is not None
    assert hang.lasted_s >= hang.quiet_s >= hang.limit_s >= AFTER_S
    shown = capfd.readouterr().out
    assert shown.count("nothing has moved") == 1  # the report at the end may have it as a finding, in other words
    assert f"in forward after {AT} steps" in shown
    text = (tmp_path / "out" / "hang.txt").read_text()
    assert re.search(rf'Thread training thread\n  File ".*{HERE}", line {line_of("socket")}, in training_step', text)


def test_lock_is_named_when_a_callback_waits_for_it(make_trainer: Make, tmp_path: Path) -> None:
    lock = threading.Lock()
    lock.acquire()
    hang = described(make_trainer, tmp_path / "out", lock.release, Model(), Locks(lock))
    assert hang.where.endswith(f"{HERE}:{line_of('callback')} in on_train_batch_end")
    assert (hang.phase, hang.call) == ("callbacks", "lock.acquire")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers write their stacks on Linux only")
def test_line_in_the_worker_is_named_when_a_worker_deadlocks(make_trainer: Make, tmp_path: Path) -> None:
    lock = torch.multiprocessing.get_context("fork").Lock()
    lock.acquire()
    hang = described(make_trainer, tmp_path / "out", lock.release, Model(), lock=lock)
    place = f"{HERE}:{line_of('worker')} in __getitem__"
    assert hang.phase == "data_wait"
    assert hang.where.endswith(place)
    assert [worker.state for worker in hang.workers if worker.where.endswith(place)] == ["sleeping"]
    assert workers._output is None


def test_file_is_at_the_url_while_the_training_hangs(make_trainer: Make, capfd: pytest.CaptureFixture[str]) -> None:
    ours, theirs = socket.socketpair()
    url = any_path(f"memory://hang-{time.monotonic_ns()}")
    described(make_trainer, url, lambda: ours.send(b"x"), Model(theirs))
    assert f"{url / 'hang.txt'}" in "".join(capfd.readouterr().out.split())


RANKS = """
import sys, threading, time
from pathlib import Path
import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, Dataset
from lightning_perf import DoctorOptions, PerfDoctor

OUT = Path(sys.argv[1])

class Samples(Dataset):
    def __len__(self):
        return 2 * 45
    def __getitem__(self, index):
        return torch.ones(4)

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.gate = threading.Event()
    def training_step(self, batch, batch_idx):
        if batch_idx == 40:
            if self.global_rank == 1:
                self.gate.wait()  # never enters
            dist.all_reduce(torch.ones(1))  # enters
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

def release(gate):
    files = [OUT / "hang.txt", OUT / "perf_ranks" / "hang.rank1.txt"]
    while not all(file.exists() and "after 40 steps" in file.read_text() for file in files):
        time.sleep(0.01)
    gate.set()

module = Model()
threading.Thread(target=release, args=(module.gate,), daemon=True).start()
options = DoctorOptions(hang_after_s=1, module_depth=0)
doctor = PerfDoctor(schedule=None, out_dir=OUT, probe_data=False, options=options)
trainer = Trainer(callbacks=[doctor], accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False,
                  enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(module, DataLoader(Samples(), batch_size=1))
"""


def test_line_of_each_rank_is_named_when_one_never_enters_a_collective(forkserver: Forkserver, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANKS)
    done = forkserver.run(script, str(tmp_path / "out"), n_ranks=2, limit_s=250)
    assert done.returncode == 0, done.stderr
    entering, waiting = (
        next(i for i, text in enumerate(RANKS.splitlines(), 1) if text.endswith(f"  # {marker}"))
        for marker in ("enters", "never enters")
    )
    hang = next(one for one in load(tmp_path / "out").hangs if one.n_steps == 40)
    assert hang.where.endswith(f"train.py:{entering} in training_step")
    assert hang.call == "dist.all_reduce"
    assert [(rank.rank, rank.n_steps, rank.phase) for rank in hang.ranks] == [(0, 40, "forward"), (1, 40, "forward")]
    assert hang.ranks[1].where.endswith(f"train.py:{waiting} in training_step")
    assert f"train.py:{waiting} in training_step" in done.stdout
    assert not (tmp_path / "out" / "hang_watch").exists()


def test_ranks_with_folders_of_their_own_exchange_no_files(tmp_path: Path) -> None:
    trainer = SimpleNamespace(world_size=2, global_rank=1)
    context: Any = SimpleNamespace(
        trainer=trainer, options=DoctorOptions(), folder=tmp_path, shared_folder=None, loop=None, show_hang=None
    )
    watch = HangWatch.open(context)
    assert watch is not None
    assert watch._files is None  # so only rank 0 shows a hang


@pytest.mark.parametrize("after_s", [None, 0])
def test_nothing_is_watched_when_switched_off(make_trainer: Make, after_s: Any) -> None:
    doctor = PerfDoctor(reports=(), options=DoctorOptions(hang_after_s=after_s))
    seen: list[str] = []

    class Looks(Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            seen.extend(thread.name for thread in threading.enumerate())

    make_trainer(doctor, Looks()).fit(Tiny(), loader(4))
    assert THREAD not in seen
    assert doctor.session is not None
    assert doctor.session.missing["hangs"] == f"hang_after_s={after_s}"


def test_validation_without_training_is_watched(make_trainer: Make) -> None:
    seen: list[str] = []

    class ListsThreads(Callback):
        def on_validation_batch_end(self, *_: Any) -> None:
            seen.extend(thread.name for thread in threading.enumerate())

    make_trainer(PerfDoctor(reports=()), ListsThreads()).validate(Tiny(), loader(4))
    assert THREAD in seen
    assert not [thread for thread in threading.enumerate() if thread.name == THREAD]


def test_thread_ends_when_the_callbacks_are_replaced(make_trainer: Make) -> None:
    class Replaces(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.callbacks = []

    make_trainer(PerfDoctor(reports=()), Replaces()).fit(Tiny(), loader(4))
    assert not [thread for thread in threading.enumerate() if thread.name == THREAD]
    assert workers._output is None
