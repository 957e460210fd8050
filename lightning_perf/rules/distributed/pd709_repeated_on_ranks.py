"""PD709: ranks train on the same samples."""

from collections import Counter

import msgspec

from lightning_perf.records import STEP_PHASES, Finding, Prescription, Session
from lightning_perf.rules.findings import fact, fix, make_finding, timed_finding
from lightning_perf.rules.rank_signals import ranks_of
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import loaders_of, phase_s, steady_of

_DATA_PARALLEL = ("DDPStrategy", "FSDPStrategy", "DeepSpeedStrategy")
_PART_OF_RANK = """def __iter__(self):  # self.rank, self.n_ranks = trainer.global_rank, trainer.world_size
    worker = torch.utils.data.get_worker_info()
    n_workers, own = (worker.num_workers, worker.id) if worker else (1, 0)
    yield from itertools.islice(self.samples(), self.rank * n_workers + own, None, self.n_ranks * n_workers)"""


@rule("PD709", "repeated-on-ranks")
def check(session: Session) -> Finding | None:
    ranks = ranks_of(session)
    trainer = session.settings.trainer
    if trainer.strategy not in _DATA_PARALLEL:
        raise Skip(f"with {trainer.strategy}, ranks may need the same samples")
    known = Counter(one.first_batches for one in ranks.summaries if one.first_batches is not None)
    if known.total() < 2:
        raise Skip("the first batches of fewer than two ranks were compared")
    n = max(known.values())
    if n < 2:
        return None
    steady = steady_of(session)
    loader = loaders_of(session, "train")[0]
    summary = f"{n} of {len(ranks.summaries)} ranks train on the same samples: their first batches are equal"
    evidence = (fact("ranks with the same first batches", n, "count"), fact("ranks", len(ranks.summaries), "count"))
    is_length_set = trainer.limit_train_batches not in (None, 1.0) or (trainer.max_steps or -1) > 0
    if n < len(ranks.summaries) or is_length_set or (loader.is_iterable and loader.n_batches is not None):
        # The number of batches is fixed, or how many of them repeat is not known.
        return make_finding("medium", f"{summary}.", evidence, _advice(session), "medium")
    part = 1 - 1 / n
    finding = timed_finding(
        steady,
        summary=f"{summary}, so an epoch takes {n} times as long as if each rank had its own part.",
        evidence=evidence,
        prescriptions=_advice(session),
        claims={name: part * phase_s(steady, name) for name in STEP_PHASES},
        basis=f"an epoch has one in {n} of the batches, if ranks repeat all samples",
        confidence="medium",
    )
    return msgspec.structs.replace(finding, severity="medium")  # that samples repeat is certain, the speedup is not


def _advice(session: Session) -> Prescription:
    loader = loaders_of(session, "train")[0]
    if loader.is_iterable:  # it takes no sampler
        return fix("let each rank yield its own part of the samples", "minutes", "semantics", code=_PART_OF_RANK)
    if "DistributedSampler" in (loader.sampler_class or ""):  # Lightning's, or one of the user's
        return fix(
            "seed what draws samples at random by the rank; the loader has a DistributedSampler already: give one of "
            "yours the rank",
            "minutes",
            "semantics",
            code="generator = torch.Generator().manual_seed(seed + torch.distributed.get_rank())",
        )
    return fix(
        "let each rank have its own part of the samples, by a DistributedSampler or a sampler of yours",
        "minutes",
        "semantics",
        trainer_flags={"use_distributed_sampler": True},
        code="Trainer(..., use_distributed_sampler=True)",
    )
