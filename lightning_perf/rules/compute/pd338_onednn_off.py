"""PD338: oneDNN, which computes convolutions and other layers on a CPU, is switched off."""

from lightning_perf.records import Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.rule import Skip, required
from lightning_perf.rules.signals import CODE_PHASES, is_cpu_run, steady_of


@replay_rule("PD338", "onednn-off", explains=("PD301",))
def check(session: Session) -> Diagnosis | None:
    steady = steady_of(session)
    if not is_cpu_run(session):
        raise Skip("oneDNN computes on a CPU")
    if required(session.settings.torch.is_onednn_on, "whether oneDNN is on is not known"):
        return None
    return Diagnosis(
        "oneDNN is switched off",
        (fact("torch.backends.mkldnn.enabled", False),),
        fix("switch oneDNN on", "one line", "numerics", code="torch.backends.mkldnn.enabled = True  # the default"),
        "with oneDNN, these operators run",
        replayed_as="onednn",
        at_stake=sum(steady.phases[name].share for name in CODE_PHASES if name in steady.phases),
    )
