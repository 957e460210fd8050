"""PD327: each step computes the same tensors again."""

from lightning_perf.records import Finding
from lightning_perf.rules.findings import fix
from lightning_perf.rules.known_result_signals import Repeated, known_result_rule
from lightning_perf.rules.wording import number_of


@known_result_rule("PD327", "constant-recomputed", "constant")
def check(repeated: Repeated) -> Finding:
    found = repeated.found
    return repeated.saving_finding(
        summary=(
            f"{repeated.where} computes the same in each step: results of {number_of(found.n_operators, 'operator')} "
            "depend neither on the batch nor on a parameter that is trained."
        ),
        counted="operators with constant results",
        prescriptions=fix(
            "compute it once, in __init__ or in the first step, and keep it as a buffer",
            "minutes",
            code='self.register_buffer("table", make_table(), persistent=False)',
        ),
        basis="operators of one step, timed and followed by what they depend on",
    )
