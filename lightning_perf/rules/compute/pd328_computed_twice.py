"""PD328: a step computes the same results twice."""

from lightning_perf.records import Finding, Prescription
from lightning_perf.rules.findings import fix
from lightning_perf.rules.known_result_signals import Repeated, known_result_rule
from lightning_perf.rules.wording import number_of

_KEEP = fix(
    "keep the first result and use it again",
    "minutes",
    "numerics",
    code="logits = self(x)  # once; then e.g. accuracy(logits.detach(), y)",
)
_ONE_PASS = fix(
    "take the derivatives by all inputs in one call of torch.autograd.grad, and keep them",
    "minutes",
    code="du_dx, du_dy = torch.autograd.grad(u.sum(), (x, y), create_graph=True)",
)


_CACHED = fix(
    "compute parametrized weights once per step, within torch.nn.utils.parametrize.cached()",
    "minutes",
    "numerics",
    code=(
        "with torch.nn.utils.parametrize.cached():  # around the loop, or the call of the model\n    output = self(x)"
    ),
)


@known_result_rule("PD328", "computed-twice", "twice")
def check(repeated: Repeated) -> Finding:
    found = repeated.found
    before = f"{found.first_site} has" if found.first_site else "the same step has"
    inside = f", in {found.inner_site}" if found.inner_site else ""
    through = f" {found.n_passes} backward passes go through the same layers." if found.n_passes else ""
    return repeated.saving_finding(
        summary=(
            f"{repeated.where} computes what {before} computed already{inside}: "
            f"{number_of(found.n_operators, 'operator')} of a step get the same inputs as earlier ones.{through}"
        ),
        counted="operators with known results",
        prescriptions=_prescriptions(repeated),
        basis="operators of one step, timed and compared by their inputs",
    )


def _prescriptions(repeated: Repeated) -> tuple[Prescription, ...]:
    if repeated.found.n_passes:
        return (_ONE_PASS,)
    model = repeated.session.settings.model
    # torch names such classes so. The weight is computed at each access, e.g. for each item of a sequence.
    is_parametrized = model is not None and any(name.startswith("Parametrized") for name in model.layers)
    return (_CACHED, _KEEP) if is_parametrized and not repeated.found.first_site else (_KEEP,)
