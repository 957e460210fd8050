"""PD334: layers that compute the same rows several times."""

from lightning_perf.records import Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.rule import required
from lightning_perf.rules.signals import is_cpu_run, share_of_step, steady_of
from lightning_perf.rules.step_signals import model_profile_of
from lightning_perf.rules.thresholds import LOW_SHARE

_CODE = (
    "encoded = self.encoder(x)\n"
    "encoded = encoded.repeat_interleave(n, dim=0)  # instead of self.encoder(x.repeat_interleave(n, dim=0))"
)

_PICK = (
    "distinct, place = ids.unique(return_inverse=True)  # of the items that are looked up\n"
    "encoded = self.encoder(self.items[distinct])[place]  # instead of self.encoder(self.items[ids])"
)

_SPLIT = (
    "left, right = self.left(x), self.right(x)  # instead of one layer of torch.cat([a, b], -1) with copies of x\n"
    "pairs = left[:, :, None] + right[:, None]  # or left[source] + right[target] in a graph"
)


@replay_rule("PD334", "repeated-rows")
def check(session: Session) -> Diagnosis | None:
    steady, profile = steady_of(session), model_profile_of(session)
    found = required(profile.repeated_rows if is_cpu_run(session) else None, "no repeated rows were seen on a CPU")
    share = share_of_step(steady, found.total_s)
    if share < LOW_SHARE:
        return None
    shape = " × ".join(f"{size:,}" for size in found.shape)
    if found.are_joined:
        symptom = (
            f"{found.site or 'The model'} multiplies rows that are concatenated from copies of fewer ones, to a result "
            f"of {shape}: before they are copied, they have {found.n_copies:,} times fewer elements"
        )
        what, code = "split the layer into one for each part, and add up what they return", _SPLIT
    elif found.is_regular:
        symptom = (
            f"{found.site or 'The model'} computes each row {found.n_copies:,} times: the rows that it gets are "
            f"copies, and so are those of its result of {shape}"
        )
        what, code = "compute each row once, and repeat the result", _CODE
    else:
        symptom = (
            f"{found.site or 'An embedding'} looks up each item at least {found.n_copies:,} times on average, and the "
            f"layers behind it compute each of them again, such as a result of {shape}"
        )
        what, code = "compute each distinct item once, and pick its result for each copy", _PICK
    return Diagnosis(
        symptom,
        (
            fact(
                "elements ÷ elements before they are copied" if found.are_joined else "copies of each row",
                found.n_copies,
                "count",
            ),
            fact("such operators in a step", found.n_operators, "count"),
            fact("their time in a step", found.total_s, "s"),
        ),
        fix(what, "minutes", "numerics", code=code),
        "with each row once, these operators run",
        replayed_as="without-repeats",
        at_stake=min(1.0, share),
        other_phases=(),
    )
