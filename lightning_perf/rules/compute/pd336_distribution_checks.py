"""PD336: distributions check their arguments in each step."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.known_result_signals import repeated_of, saving_finding
from lightning_perf.rules.rule import rule
from lightning_perf.rules.wording import number_of


@rule("PD336", "distribution-checks", yields_to=("PD330",))
def check(session: Session) -> Finding | None:
    repeated = repeated_of(session, "checks")
    if repeated is None:
        return None
    found = repeated.found
    return saving_finding(
        repeated,
        summary=(
            f"{repeated.where} checks the arguments of distributions in each step, "
            f"with {number_of(found.n_operators, 'operator')}."
        ),
        evidence=(
            fact("operators that check arguments", found.n_operators, "count"),
            fact("their part of forward's operators", found.forward_part, "fraction"),
        ),
        prescriptions=fix(
            "switch the checks off once the model trains",
            "one line",
            code=(
                "torch.distributions.Distribution.set_default_validate_args(False)\n"
                "Normal(mean, std, validate_args=False)  # or for one, if it makes no others inside"
            ),
        ),
        basis="operators of one step, timed below the checks of torch.distributions",
    )
