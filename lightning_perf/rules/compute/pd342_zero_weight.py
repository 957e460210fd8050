"""PD342: a step computes a term whose weight is 0."""

from lightning_perf.records import Finding
from lightning_perf.rules.findings import fix
from lightning_perf.rules.known_result_signals import Repeated, known_result_rule
from lightning_perf.rules.wording import number_of


@known_result_rule("PD342", "zero-weight", "zeroed")
def check(repeated: Repeated) -> Finding:
    found = repeated.found
    return repeated.saving_finding(
        summary=(
            f"{repeated.where} computes what is then multiplied by 0: {number_of(found.n_operators, 'operator')} and "
            "their backward pass change neither the loss nor a gradient."
        ),
        counted="operators whose results are multiplied by 0",
        prescriptions=fix(
            "skip the term while its weight is 0",
            "one line",
            "numerics",  # random numbers that it draws are no longer drawn
            code="if self.weight:\n    loss = loss + self.weight * self.penalty(x)",
        ),
        basis="operators of one step, timed and followed by what uses them",
        confidence="medium",
    )
