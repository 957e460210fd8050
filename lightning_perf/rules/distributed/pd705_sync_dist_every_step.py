"""PD705: metrics are reduced over all ranks at every step."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.signals import claims_of, phase_s, share_of, steady_of
from lightning_perf.rules.wording import percent

# As for other parts of the step that a flag takes away: what logging may take before it is spoken of.
MIN_SHARE = 0.02
# Where one rank is slow, the others then wait for it in backward.
LOW_FRACTION = 0.5

DOCS = """\
## What it measures
Whether a metric logged on each step is reduced over the ranks (`self.log(..., on_step=True, sync_dist=True)`), and the
time that the reductions take.

## Why it costs
Each such metric is a collective of its own in every step: a round trip between all ranks for one number, at which
every rank waits for the slowest.

## Example
```python
self.log("loss", loss, on_step=True, sync_dist=True)
```

## Prescription
`self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)`: one reduction an epoch. On steps, log each
rank's own value.

## When it is wrong
Where the step's own waiting for a slow rank merely moves into the metric's reduction: PD701 then speaks as well, and
the time comes back only with that.

## Sources
Lightning's documentation of `sync_dist`, which warns of its cost on steps; Lightning's issue 17988.
"""


def check(session: Session) -> Finding | None:
    """What collecting metrics takes where they are reduced on each step."""
    if session.run.world_size < 2:
        raise Skip("the run has one rank")
    is_on = session.settings.trainer.sync_dist_on_step
    if is_on is None:
        raise Skip(session.missing.get("settings.trainer.sync_dist_on_step", "no step logged a metric"))
    if not is_on:
        return None
    steady = steady_of(session)
    reducing = [one for one in steady.named if one.name == "sync_dist"]
    # Names are counted between epochs too, where all metrics are reduced: no more than logging takes of the steps.
    share = min(share_of(reducing), phase_s(steady, "logging") / steady.span_s)
    if share < MIN_SHARE:
        return None
    return timed_finding(
        steady,
        summary=(
            f"Metrics are reduced over all ranks at every step (sync_dist=True with on_step=True), which takes "
            f"{percent(share)} of the time."
        ),
        evidence=(
            fact(
                "share of the time in which metrics are reduced",
                share,
                "fraction",
                MIN_SHARE,
                sum(one.n_calls for one in reducing),
            ),
            fact("sync_dist on each step", True),
        ),
        prescriptions=(
            fix(
                "reduce it once an epoch: on_step=False, on_epoch=True; on steps log without sync_dist",
                "one line",
                code='self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)',
            ),
        ),
        claims=claims_of(reducing, steady.span_s),
        low_s=LOW_FRACTION * share * steady.span_s,
        method="timed",
        basis="half to all of that time; waiting for a slow rank may come back elsewhere",
    )


RULE = Rule(
    code="PD705", name="sync-dist-every-step", category="distributed", docs=DOCS, check=check, explains=("PD502",)
)
