"""PD331: several backward passes go through the same layers."""

from lightning_perf.records import Finding
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.known_result_signals import Repeated, known_result_rule
from lightning_perf.rules.wording import number_of


@known_result_rule("PD331", "repeated-backward", "backward")
def check(repeated: Repeated) -> Finding:
    found = repeated.found
    where = f" ({found.site})" if found.site else ""
    total = "sum([first_loss, second_loss])"
    call = f"self.manual_backward({total})" if repeated.session.run.has_trainer else f"{total}.backward()"
    return repeated.saving_finding(
        summary=(
            f"{found.n_passes} backward passes of a step{where} go through the same layers "
            "and add to the same gradients; one pass from the sum of the losses gives the same."
        ),
        counted="operators that passes go through again",
        more=(fact("backward passes through the same layers", found.n_passes, "count"),),
        prescriptions=fix(
            f"add the {number_of(found.n_passes, 'loss', 'losses')} and call backward once",
            "minutes",
            "numerics",
            code=f"{call}  # of all losses, without retain_graph=True",
        ),
        basis="operators of one step, timed by backward pass",
        confidence="medium",
    )
