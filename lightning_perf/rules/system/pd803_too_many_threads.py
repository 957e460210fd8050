"""PD803: more compute threads than cores."""

import math

from lightning_perf.records import Session
from lightning_perf.rules.findings import fact, fix, optional_fact
from lightning_perf.rules.machine_signals import host_telemetry_of, telemetry_fact
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.rule import Skip
from lightning_perf.rules.signals import COMPUTE_PHASES, cores_per_rank
from lightning_perf.rules.thresholds import MIN_SWITCHES_PER_S, THREAD_QUEUEING_MIN
from lightning_perf.rules.user_lines import cpu_computing_share
from lightning_perf.rules.wording import number_of, percent


@replay_rule("PD803", "too-many-threads")
def check(session: Session) -> Diagnosis | None:
    host = host_telemetry_of(session)
    n_threads = session.settings.torch.n_threads or host.n_torch_threads
    if not n_threads:
        raise Skip("the number of threads is not known")
    n_processes = session.machine.local_world_size
    usable = session.machine.usable_cores
    queueing, switches = host.process_queueing_fraction or 0.0, host.involuntary_switches_per_s
    is_preempted = switches is not None and switches.mean >= MIN_SWITCHES_PER_S
    if n_threads * n_processes <= usable or not (queueing >= THREAD_QUEUEING_MIN or is_preempted):
        return None
    n_fitting = max(1, math.floor(cores_per_rank(session)))
    fewer = number_of(n_fitting, "thread")
    return Diagnosis(
        f"{number_of(n_processes, 'process', 'processes')} with {n_threads} compute threads "
        f"{'shares' if n_processes == 1 else 'share'} {number_of(usable, 'usable core')}"
        + (f", and the training thread queued for a core {percent(queueing)} of the time" if queueing else ""),
        (
            fact("compute threads on this node", n_threads * n_processes, "count", usable),
            optional_fact(
                "training thread queueing for a core, share of its time",
                host.process_queueing_fraction,
                "fraction",
                THREAD_QUEUEING_MIN,
            ),
            telemetry_fact("involuntary context switches per second", switches, "count", MIN_SWITCHES_PER_S),
            optional_fact("OMP_NUM_THREADS", host.n_openmp_threads, "count"),
            optional_fact("MKL_NUM_THREADS", host.n_mkl_threads, "count"),
        ),
        fix(
            f"use {fewer} per process (now {n_threads})",
            "one line",
            "numerics",
            treatment="threads",
            code=f"torch.set_num_threads({n_fitting})  # or, before the start: OMP_NUM_THREADS={n_fitting}",
            value=n_fitting,
        ),
        f"{fewer} run{'' if n_fitting > 1 else 's'} its operators",
        replayed_as=f"threads={n_fitting}",
        phases=COMPUTE_PHASES,
        at_stake=cpu_computing_share(session, *COMPUTE_PHASES),
    )
