"""PD333: a step computes results that nothing uses."""

from lightning_perf.records import Finding
from lightning_perf.rules.findings import fix
from lightning_perf.rules.known_result_signals import Repeated, known_result_rule
from lightning_perf.rules.wording import number_of


@known_result_rule("PD333", "unused-results", "unused")
def check(repeated: Repeated) -> Finding:
    found = repeated.found
    return repeated.saving_finding(
        summary=(
            f"{repeated.where} computes what nothing uses: results of {number_of(found.n_operators, 'operator')} reach "
            "neither a loss nor a value that is read."
        ),
        counted="operators with unused results",
        prescriptions=fix(
            "do not compute it in training",
            "minutes",
            code="reconstruction = self.decoder(z) if not self.training else None",
        ),
        basis="operators of one step, timed and followed by what uses them",
        confidence="medium",
    )
