"""PD507: clipping gradients takes a share of the step."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.signals import claims_of, is_cpu_run, named_by_kind, share_of, steady_of
from lightning_perf.rules.user_lines import lines_of
from lightning_perf.rules.wording import duration, percent

HOOK = "configure_gradient_clipping"
MIN_SHARE = 0.05  # RULES: clipping or norms of 5 % of the step or more.

DOCS = """\
## What it measures
The time in `configure_gradient_clipping`, where samples of the stack show an override of your own. What Lightning does
for `gradient_clip_val` is one call already.

## Why it costs
The norm of all gradients reads each of them, one operator or more per parameter, before the optimizer may step.

## Example
```python
def configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm):
    for parameter in self.parameters():
        torch.nn.utils.clip_grad_norm_(parameter, gradient_clip_val)
```

## Prescription
One call of `torch.nn.utils.clip_grad_norm_` for all parameters, with `foreach=True` on a device. Read the norm for a
log in some steps only, and from the value that the call returns.

## When it is wrong
On a device the host may wait there for the backward pass, which it would wait for elsewhere. Clipping that keeps a
training stable is needed in each step.

## Sources
Timed around Lightning's own call; the documentation of `torch.nn.utils.clip_grad_norm_` on `foreach`.
"""


def check(session: Session) -> Finding | None:
    """Compare the time of clipping with the threshold."""
    steady = steady_of(session)
    times = named_by_kind(steady, "loop").get("gradient_clipping", [])
    share = share_of(times)
    if share < MIN_SHARE:
        return None
    if session.host_profile is None:
        raise Skip(session.missing.get("host_profile", "the stack of the training thread was not sampled"))
    own = next((line for line in lines_of(session, "optimizer") if line.line.entry == HOOK), None)
    if own is None:
        return None
    each_s = sum(time.total_s for time in times) / max(1, sum(time.n_calls for time in times))
    foreach = "" if is_cpu_run(session) else ", foreach=True"
    return timed_finding(
        steady,
        summary=(
            f"{percent(share)} of training time is spent clipping gradients, {duration(each_s)} per call, in "
            f"{own.where}."
        ),
        evidence=(
            fact(
                "share of the time clipping gradients",
                share,
                "fraction",
                MIN_SHARE,
                sum(time.n_calls for time in times),
            ),
        ),
        prescriptions=(
            fix(
                "clip all gradients with one call, and use the norm that it returns",
                "minutes",
                "numerics",
                code=f"norm = torch.nn.utils.clip_grad_norm_(self.parameters(), max_norm{foreach})",
            ),
        ),
        claims=claims_of(times, steady.span_s),
        low_s=0.0,
        method="timed",
        basis="at most all of the clipping; nothing if it already is one call",
        confidence="medium",
    )


RULE = Rule(code="PD507", name="gradient-norm-cost", category="host", docs=DOCS, check=check)
