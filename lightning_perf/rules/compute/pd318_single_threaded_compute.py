"""PD318: CPU training uses fewer threads than cores."""

import math

from lightning_perf.records import Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.rule import Skip
from lightning_perf.rules.signals import COMPUTE_PHASES, cores_per_rank, is_cpu_run, steady_of
from lightning_perf.rules.thresholds import THREADS_MIN_SHARE, THREADS_MIN_STEP_S
from lightning_perf.rules.user_lines import computing_s
from lightning_perf.rules.wording import percent


@replay_rule("PD318", "single-threaded-compute")
def check(session: Session) -> Diagnosis | None:
    steady = steady_of(session)
    if not is_cpu_run(session):
        return None
    n_threads = session.settings.torch.n_threads
    if not n_threads:
        raise Skip("torch's number of threads is not known")
    n_workers = max((each.num_workers or 0 for each in session.settings.loaders if each.stage == "train"), default=0)
    cores = cores_per_rank(session)
    n_wanted = math.floor(cores) - n_workers
    is_certain = True
    if session.machine.n_physical_cores is not None:
        # Hyper-threads share the arithmetic units of a physical core: only a replay shows whether they gain, and not
        # whether they would beside loader workers.
        n_physical = math.floor(min(cores, session.machine.n_physical_cores / session.machine.local_world_size))
        is_certain = n_threads < n_physical - n_workers
        n_wanted = n_physical - n_workers if is_certain or n_workers else n_wanted
    compute_s = sum(computing_s(session, steady, name) for name in COMPUTE_PHASES)
    each_s = compute_s / steady.n_span_steps
    if n_threads >= n_wanted or compute_s < THREADS_MIN_SHARE * steady.span_s or each_s < THREADS_MIN_STEP_S:
        return None
    omp = session.settings.torch.omp_num_threads
    return Diagnosis(
        f"{percent(compute_s / steady.span_s)} of training time is compute on {n_threads} of {n_wanted} "
        + ("cores" if is_certain else "hyper-threads")
        + (f" (OMP_NUM_THREADS={omp})" if omp else ""),
        (
            fact("torch threads", n_threads, "count", n_wanted),
            fact(
                "share of the time in compute", compute_s / steady.span_s, "fraction", THREADS_MIN_SHARE, steady.n_steps
            ),
            fact("compute time per step", each_s, "s", THREADS_MIN_STEP_S, steady.n_steps),
        ),
        fix(
            f"use {n_wanted} threads (now {n_threads})",
            "one line",
            "numerics",
            treatment="threads",
            code=f"torch.set_num_threads({n_wanted})",
            value=n_wanted,
        ),
        f"{n_wanted} threads run its operators",
        replayed_as=f"threads={n_wanted}",
        phases=COMPUTE_PHASES,
        most_saved=1 - n_threads / n_wanted,
        unmeasured="low" if is_certain else None,
    )
