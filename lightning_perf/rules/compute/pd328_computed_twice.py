"""PD328: a step computes the same results twice."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.known_result_signals import repeated_of, saving_finding
from lightning_perf.rules.rule import rule
from lightning_perf.rules.wording import number_of


@rule("PD328", "computed-twice")
def check(session: Session) -> Finding | None:
    repeated = repeated_of(session, "twice")
    if repeated is None:
        return None
    found = repeated.found
    before = f"{found.first_site} has" if found.first_site else "the same step has"
    return saving_finding(
        repeated,
        summary=(
            f"{repeated.where} computes what {before} computed already: "
            f"{number_of(found.n_operators, 'operator')} of a step get the same inputs as earlier ones."
        ),
        evidence=(
            fact("operators with known results", found.n_operators, "count"),
            fact("their part of forward's operators", found.forward_part, "fraction"),
            fact("their part of backward's operators", found.backward_part, "fraction"),
        ),
        prescriptions=fix(
            "keep the first result and use it again",
            "minutes",
            "numerics",
            code="logits = self(x)  # once; then e.g. accuracy(logits.detach(), y)",
        ),
        basis="operators of one step, timed and compared by their inputs",
    )
