"""PD312: a compiled function falls back to Python in the middle."""

from __future__ import annotations

from lightning_perf.records import Evidence, Finding, Prescription, Session
from lightning_perf.rules.host_signals import where
from lightning_perf.rules.rule import Rule, Skip

CODE = "PD312"
NAME = "graph-breaks"
CATEGORY = "compute"

DOCS = """\
## What it measures
The places where `torch.compile` had to end a region, with its reason, as dynamo itself writes them down. Each call of
the function passes them. What they cost cannot be told without mending them.

## Why it costs
Operators on both sides of a break cannot be fused, the break itself runs in Python, and a CUDA graph ends there. Often
what breaks the region also makes the host wait for the device.

## Example
```python
def forward(self, x):
    x = self.encoder(x)
    if x.max() > 10:        # asks for a value while compiling: the region ends
        x = x.clamp(max=10)
    return self.head(x)
```

## Prescription
Use tensors instead of Python values (`torch.where`, `torch.cond`), take printing and logging out of compiled
functions, and compile with `fullgraph=True` to be told of each break at once.

## When it is wrong
A break between two large regions costs next to nothing. A function that is called once, or not in the step, is no
matter either: what compiled before the run is not told.

## Sources
torch's pages on graph breaks and their registry; the checklist's compile anti-patterns.
"""


def check(session: Session) -> Finding | None:
    """Reads the places; no gain can be promised."""
    watch = session.compiler
    if watch is None:
        raise Skip(session.missing.get("compiler", "nothing was compiled"))
    if not watch.graph_breaks:
        return None
    first = watch.graph_breaks[0]
    more = len(watch.graph_breaks) - 1
    others = f"; {more} more {'place' if more == 1 else 'places'}" if more else ""
    return Finding(
        code=CODE,
        name=NAME,
        category=CATEGORY,
        severity="low",  # of unknown cost: nothing is fused across it, which few steps feel for more
        summary=(
            f"A compiled function falls back to Python at {where(first.file, first.line, first.function)}{others}. "
            f"The reason: {first.reason or 'torch does not tell'}."
        ),
        evidence=tuple(
            Evidence(metric=f"graph break at {where(b.file, b.line, b.function)}", value=b.reason or "no reason told")
            for b in watch.graph_breaks[:5]
        ),
        prescriptions=(
            Prescription(
                treatment="",
                summary=f"keep {where(first.file, first.line, first.function)} out of the compiled function",
                safety="exact",
                effort="minutes",
                code="torch.compile(model, fullgraph=True)  # raises at each break, with the line",
            ),
        ),
        confidence="medium",
    )


RULE = Rule(code=CODE, name=NAME, category=CATEGORY, docs=DOCS, check=check)
