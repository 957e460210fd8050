"""PD333: a step computes results that nothing uses."""

from lightning_perf.records import Finding
from lightning_perf.rules.findings import fix
from lightning_perf.rules.known_result_signals import Repeated, known_result_rule
from lightning_perf.rules.wording import number_of, site_of


@known_result_rule("PD333", "unused-results", "unused")
def check(repeated: Repeated) -> Finding | None:
    found, calls = repeated.found, repeated.session.sync_calls
    attentions = calls.attentions if calls is not None else ()
    if any(each.via and site_of(each.file, each.line) == found.site for each in attentions):
        return None  # the mean of attention weights, which PD309's need_weights=False leaves out
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
