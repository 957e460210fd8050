"""PD339: a backward pass computes gradients that are zeros."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.known_result_signals import repeated_of, saving_finding
from lightning_perf.rules.rule import rule


@rule("PD339", "zero-gradients")
def check(session: Session) -> Finding | None:
    repeated = repeated_of(session, "zeros")
    if repeated is None:
        return None
    found = repeated.found
    of = f" of {found.site}" if found.site else ""
    return saving_finding(
        repeated,
        summary=(
            f"The backward pass{of} computes zeros: no gradient gets through, but {found.n_operators} operators "
            "behind it are passed all the same."
        ),
        evidence=(
            fact("operators whose gradients are all zeros, in two steps", found.n_operators, "count"),
            fact("their part of backward's operators", found.backward_part, "fraction"),
        ),
        prescriptions=(
            fix(
                "detach() what goes in there if its derivative is zero, as that of sign() or round()",
                "one line",
                "numerics",
                code="direction = gradient.detach().sign()",
            ),
            fix(
                "leave a term out of the loss while its weight is 0",
                "minutes",
                "numerics",
                code="if self.weight > 0:\n    loss = loss + self.weight * self.auxiliary_loss(x)",
            ),
        ),
        basis="operators of one step, timed, whose gradients are all zeros",
        least_s=min(repeated.least_s, repeated.claims["backward"]),
        confidence="medium",
    )
