"""PD339: a backward pass computes zeros, since it goes through a function whose derivative is zero."""

from lightning_perf.records import Finding
from lightning_perf.rules.findings import fix
from lightning_perf.rules.known_result_signals import Repeated, known_result_rule
from lightning_perf.rules.wording import number_of


@known_result_rule("PD339", "zero-gradients", "zeros")
def check(repeated: Repeated) -> Finding:
    found = repeated.found
    n = number_of(found.n_operators, "operator")
    return repeated.saving_finding(
        summary=(
            f"No gradient gets through {found.site or 'a function of the model'}, whose derivative is zero, as that of "
            f"sign() and round() is; backward goes on from there, and computes zeros for {n}."
        ),
        counted="operators whose gradients are zeros",
        prescriptions=fix(
            "detach() what goes into that function",
            "one line",
            "numerics",
            code="direction = gradient.detach().sign()",
        ),
        basis="operators of one step, timed, whose gradients are zeros",
        confidence="medium",
    )
