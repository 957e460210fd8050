"""PD904: much of the time belongs to no phase."""

from __future__ import annotations

from lightning_perf.records import Evidence, Finding, Prescription, Session
from lightning_perf.rules.rule import Rule
from lightning_perf.rules.signals import phase_s, share_of, steady_of
from lightning_perf.rules.user_lines import lines_of
from lightning_perf.rules.wording import percent

CODE = "PD904"
NAME = "unaccounted-time"
CATEGORY = "quality"

# The loop's own remainder is about 1 to 3 % of a short step; more than this hides something.
MAX_SHARE = 0.05

DOCS = """\
## What it measures
The share of the steady wall time in the phase `other`: what the loop did besides everything that has a name. Where
the stack was sampled there, the line of your code that takes most of it is named.

## Why it costs
A finding about phases says nothing of time that is in none. Shares of the others are upheld, but a cause may hide in
the rest.

## Example
```text
other 9 % of the time
```

## Prescription
Look with a profiler window, or with `Trainer(profiler="simple")`, at what runs between the hooks.

## When it is wrong
For steps well below a millisecond Lightning's loop itself takes this share.

## Sources
The bound of 3 % that this project sets itself for its demo, with room for short steps.
"""


def check(session: Session) -> Finding | None:
    """Compares the phase ``other`` with the bound."""
    steady = steady_of(session)
    # What ranks wait for one another there has a name.
    named = share_of(one for one in steady.named if one.phase == "other")
    share = phase_s(steady, "other") / steady.span_s - named
    if share <= MAX_SHARE:
        return None
    line = next(iter(lines_of(session, "other")), None)
    where = f" {line.where} spends {percent(line.seconds / steady.span_s)} of the time{line.doing}." if line else ""
    return Finding(
        code=CODE,
        name=NAME,
        category=CATEGORY,
        severity="info",
        summary=f"{percent(share)} of the time belongs to no phase.{where}",
        evidence=(
            Evidence(
                metric="share of the time in no phase",
                value=share,
                unit="fraction",
                threshold=MAX_SHARE,
                n=steady.n_steps,
            ),
        ),
        prescriptions=(
            Prescription(
                treatment="",
                summary=f"look at {line.where}" if line else "look at what runs between the hooks",
                safety="exact",
                effort="minutes",
                code="" if line else 'Trainer(..., profiler="simple")',
            ),
        ),
    )


RULE = Rule(code=CODE, name=NAME, category=CATEGORY, docs=DOCS, check=check)
