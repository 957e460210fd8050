"""PD336: distributions check their arguments in each step."""

from lightning_perf.records import Finding
from lightning_perf.rules.findings import fix
from lightning_perf.rules.known_result_signals import Repeated, known_result_rule
from lightning_perf.rules.wording import number_of


@known_result_rule("PD336", "distribution-checks", "checks", yields_to=("PD330", "PD335"))
def check(repeated: Repeated) -> Finding:
    found = repeated.found
    return repeated.saving_finding(
        summary=(
            f"{repeated.where} checks the arguments of distributions in each step, "
            f"with {number_of(found.n_operators, 'operator')}."
        ),
        counted="operators that check arguments",
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
