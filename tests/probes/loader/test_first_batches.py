"""Workers that yield the same samples are found by the first batch of each."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from lightning_perf import PerfDoctor
from lightning_perf.probes.clock import NEVER
from lightning_perf.probes.loader.first_batches import FirstBatchesProbe
from lightning_perf.records import LoaderSettings, Settings, TrainerSettings


class Rows(IterableDataset):
    def __init__(self, is_sharded: bool) -> None:
        self.is_sharded = is_sharded

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker and self.is_sharded else (0, 1)
        return iter(torch.arange(64.0).view(16, 4)[first::step])


class Sum(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-3)


@pytest.mark.parametrize(("is_sharded", "n_equal"), [(False, 2), (True, 1)])
def test_workers_are_compared_in_a_training(tmp_path, is_sharded, n_equal):
    doctor = PerfDoctor(out_dir=tmp_path)
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, callbacks=[doctor], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Sum(), DataLoader(Rows(is_sharded), batch_size=2, num_workers=2))
    assert doctor.session.settings.loaders[0].n_equal_workers == n_equal


def probe_with(*batches, n_workers=3, is_iterable=True, n_loaders=1, world_size=1):
    loader = LoaderSettings(
        stage="train", index=0, class_name="DataLoader", is_plain=True, is_iterable=is_iterable, num_workers=n_workers
    )
    run = SimpleNamespace(
        settings=Settings(loaders=(loader,) * n_loaders, trainer=TrainerSettings(world_size=world_size))
    )
    probe = FirstBatchesProbe(run)
    probe.loops_ready(run)
    for batch in batches:
        if probe.next_step == NEVER:
            break
        probe.step_begins(batch)
    return probe, probe.part(SimpleNamespace(settings=run.settings))


def n_equal_of(*batches, **options):
    _, part = probe_with(*batches, torch.arange(3.0), **options)  # the last is the first worker's second
    return part["settings"].loaders[0].n_equal_workers if part else None


TRAIN = LoaderSettings(stage="train", index=0, class_name="DataLoader", is_plain=True)
a, b = torch.arange(8.0), torch.arange(8.0) + 1


@pytest.mark.parametrize(
    ("batches", "n_equal"),
    [
        ((a, a.clone(), a.clone()), 3),
        (((a, b), (a, a), (a, b)), 2),
        ((a, b, b), 1),
        ((a, a, (a, a)), 2),
        ((torch.ones(4), torch.ones(4), torch.ones(4)), None),  # may be chance
        (({"n": 1}, {"n": 1}, {"n": 1}), None),
        ((a, a), None),  # the run ended early
    ],
)
def test_equal_batches_are_counted(batches, n_equal):
    assert n_equal_of(*batches) == n_equal


@pytest.mark.parametrize("n_workers", [3, 40])
def test_samples_that_are_all_the_same_are_not_repeated_ones(n_workers):
    assert probe_with(*[a] * (n_workers + 1), n_workers=n_workers)[1] == {}


def test_only_some_of_many_workers_are_compared():
    probe, part = probe_with(*[a] * 16, n_workers=40)
    assert (probe.next_step, part) == (40, {})
    probe.step_begins(b)
    assert probe.part(SimpleNamespace(settings=Settings(loaders=(TRAIN,))))["settings"].loaders[0].n_equal_workers == 16


def test_batches_are_kept_as_they_were():
    batch = a.clone()
    probe, _ = probe_with(batch)
    batch.zero_()
    assert torch.equal(probe._firsts[0][0], a)


def test_batches_of_two_epochs_are_not_compared():
    probe, _ = probe_with(a, b)
    probe.epoch_ends()
    assert probe.next_step == NEVER
    assert probe.part(SimpleNamespace(settings=Settings())) == {}


def test_batches_that_begin_alike_are_distinguished():
    prompt = torch.arange(4000.0)
    others = [torch.cat((prompt, torch.full((1000,), float(k)))) for k in range(3)]
    assert n_equal_of(*others) == 1


def test_images_in_another_layout_are_compared():
    images = torch.rand(4, 3, 8, 8).to(memory_format=torch.channels_last)
    assert n_equal_of(images, images.clone(), images.clone()) == 3
    assert n_equal_of(images, images.flip(0), images.flip(0)) == 1


@pytest.mark.parametrize("options", [{"n_workers": 1}, {"n_workers": None}, {"is_iterable": False}, {"n_loaders": 2}])
def test_nothing_is_kept_of_other_loaders(options):
    probe, part = probe_with(a, a, a, **options)
    assert (probe.next_step, probe._firsts, part) == (NEVER, [], {})


def digest_of(*batches):
    return probe_with(*batches, is_iterable=False, world_size=2)[0].digest()


def test_ranks_with_equal_batches_have_equal_digests():
    assert digest_of(a, b) == digest_of(a.clone(), b.clone())
    assert digest_of(a, b) != digest_of(a, b + 1)
    assert digest_of(a, b) != digest_of(a.double(), b.double())


DTYPES = (torch.bfloat16, torch.float16, torch.complex64, torch.bool, torch.uint8, torch.int64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_digests_exist_for_every_dtype(dtype):
    first = torch.tensor([[0, 1], [1, 1]])
    assert digest_of((first.to(dtype), a), (first.T.flip(0).to(dtype), b)) is not None


@pytest.mark.parametrize(
    "batches",
    [
        (a,),
        (a, a.clone()),  # all samples may be the same
        (torch.ones(4), torch.zeros(4)),
        (torch.arange(4), torch.arange(4, 8)),  # perhaps indices of what the step draws
        ({"n": 1}, {"n": 2}),
    ],
)
def test_there_is_no_digest_where_other_ranks_may_have_the_same_batches(batches):
    assert digest_of(*batches) is None


def test_one_rank_makes_no_digest():
    assert probe_with(a, b, is_iterable=False)[0].next_step == NEVER
