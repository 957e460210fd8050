"""PD321: torch is restricted to deterministic algorithms, and others are faster."""

from lightning_perf.records import Session
from lightning_perf.rules.findings import fact, trainer_fix
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.rule import required
from lightning_perf.rules.signals import is_cpu_run, steady_of


@replay_rule("PD321", "deterministic-algorithms")
def check(session: Session) -> Diagnosis | None:
    steady_of(session)
    is_on = required(session.settings.torch.is_deterministic, "whether deterministic algorithms are on is not known")
    if not is_on:
        return None
    return Diagnosis(
        "torch uses deterministic algorithms only",
        (fact("deterministic algorithms", True),),
        trainer_fix(
            "set deterministic=False unless runs must be repeated exactly",
            "numerics",
            "deterministic-off",
            "and no torch.use_deterministic_algorithms(True)",
            deterministic=False,
        ),
        "with all algorithms allowed, these operators run",
        unmeasured="info" if is_cpu_run(session) else "low",  # few operators have another algorithm on a CPU
    )
