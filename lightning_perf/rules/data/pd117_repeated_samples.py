"""PD117: several workers yield the same samples."""

import msgspec

from lightning_perf.records import STEP_PHASES, Finding, Session
from lightning_perf.rules.findings import fact, fix, make_finding, timed_finding
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.signals import loaders_of, phase_s, steady_of

_FIX = fix(
    "let each worker yield its own part of the samples",
    "minutes",
    "semantics",
    code=(
        "def __iter__(self):\n"
        "    worker = torch.utils.data.get_worker_info()\n"
        "    first, step = (worker.id, worker.num_workers) if worker else (0, 1)\n"
        "    yield from itertools.islice(self.samples(), first, None, step)"
    ),
)


@rule("PD117", "repeated-samples")
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    loader = loaders_of(session, "train")[0]
    n = required(loader.n_equal_workers, "no batches of several workers with one IterableDataset were compared")
    if n < 2:
        return None
    summary = (
        f"{n} of {loader.num_workers} workers yield the same samples: their first batches are equal. Each has a copy "
        f"of the {loader.dataset_class or 'IterableDataset'}, and may yield all of it"
    )
    evidence = (fact("workers with the same first batch", n, "count"), fact("workers", loader.num_workers, "count"))
    trainer = session.settings.trainer
    has_length = loader.n_batches is not None or trainer.limit_train_batches not in (None, 1.0)
    if n < (loader.num_workers or 0) or has_length or (trainer.max_steps or -1) > 0:
        # The number of batches is fixed, or how many of them repeat is not known.
        return make_finding("medium", f"{summary}.", evidence, _FIX, "medium")
    part = 1 - 1 / n
    finding = timed_finding(
        steady,
        summary=f"{summary}: an epoch then has each sample {n} times, and takes {n} times as long.",
        evidence=evidence,
        prescriptions=_FIX,
        claims={name: part * phase_s(steady, name) for name in STEP_PHASES},
        basis=f"an epoch has one in {n} of the batches, if workers repeat all samples",
        confidence="medium",
    )
    return msgspec.structs.replace(finding, severity="medium")  # that samples repeat is certain, the speedup is not
