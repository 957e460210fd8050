"""PD508: Python's garbage collector takes a share of the time."""

from __future__ import annotations

from lightning_perf.records import AskedCollection, Collections, Finding, Prescription, Session
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.signals import steady_of
from lightning_perf.rules.wording import called, duration, number_of, percent, place, site_of

MIN_SHARE = 0.02  # The least that is worth a finding (severity.LOW_SHARE).
# Of the time. Garbage that nobody collects any more is left to Python's own collections, most of which are of young
# objects only.
LEFT_SHARE = 0.01

DOCS = """\
## What it measures
The time in Python's garbage collector, by generation, from `gc.callbacks`: collections that Python starts by itself,
and those that a line of code asks for with `gc.collect()`.

## Why it costs
A collection of generation 2 visits every container that is alive, and the host does nothing else meanwhile.

## Example
```python
def training_step(self, batch, batch_idx):
    gc.collect()
```

## Prescription
Remove the call, or collect once per epoch. Against automatic collections: `gc.freeze()` once the dataset and the model
are in memory, so that what is alive then is never visited again, and higher thresholds.

## When it is wrong
A training that makes many reference cycles that hold tensors needs collections to free them.

## Sources
The documentation of Python's `gc` module.
"""


def check(session: Session) -> Finding | None:
    """Compare what collections take with the threshold."""
    steady = steady_of(session)
    found = session.collections
    if found is None:
        if steady.gc_s is None:
            raise Skip("collections were not measured")
        return None
    total_s = sum(each.total_s for each in found.generations)
    if found.span_s <= 0:
        return None
    scale = steady.span_s / found.span_s
    asked = [each for each in found.asked if each.is_users]
    asked_s = sum(each.total_s for each in asked)
    is_asked = asked_s > sum(found.automatic_by_phase_s.values())
    full = next((each for each in found.generations if each.generation == 2), None)
    full_s = full.automatic_s if full is not None else 0.0
    claims: dict[str, float] = {}
    for phase, seconds in [(a.phase, a.total_s) for a in asked] if is_asked else found.automatic_by_phase_s.items():
        claims[phase] = claims.get(phase, 0.0) + seconds * scale
    if sum(claims.values()) < MIN_SHARE * steady.span_s:
        return None
    return timed_finding(
        steady,
        summary=(
            f"{percent(total_s / found.span_s)} of training time is spent in garbage collection. {_cause(found, asked)}"
        ),
        evidence=(
            fact(
                "share of the time in garbage collections",
                total_s / found.span_s,
                "fraction",
                MIN_SHARE,
                sum(each.n for each in found.generations),
            ),
            *(fact(f"generation {each.generation}", each.total_s, "s", n=each.n) for each in found.generations),
            *(
                (fact("objects visited by a full collection", found.n_objects, "count"),)
                if found.n_objects is not None
                else ()
            ),
        ),
        prescriptions=(_prescription(found, asked[0] if is_asked else None),),
        claims=claims,
        low_s=scale * asked_s - LEFT_SHARE * steady.span_s if is_asked else scale * full_s,
        method="timed",
        basis=(
            "all of the collections asked for, but for what Python collects by itself then"
            if is_asked
            else "from full collections to all automatic collections"
        ),
    )


def _cause(found: Collections, asked: list[AskedCollection]) -> str:
    if asked and asked[0].total_s > sum(found.automatic_by_phase_s.values()):
        one = asked[0]
        where = place(one.function, site_of(one.file, one.line))
        return f"{where} called gc.collect() {called(one.n)}, {duration(one.total_s / one.n)} each."
    worst = max(found.generations, key=lambda each: each.automatic_s)
    alive = f" {found.n_objects:,} objects are alive." if found.n_objects is not None else ""
    what = f"{number_of(worst.n, 'automatic collection')} of generation {worst.generation}"
    return f"{what} took {duration(worst.total_s / worst.n)}{' each' if worst.n > 1 else ''}.{alive}"


def _prescription(found: Collections, asked: AskedCollection | None) -> Prescription:
    if asked is not None:
        return fix(f"remove gc.collect() from {asked.file}:{asked.line}, or call it once per epoch", "one line")
    raised = 100 * found.thresholds[0] if found.thresholds and found.thresholds[0] else 70_000
    return fix(
        "call gc.freeze() before training and raise the collector's thresholds",
        "one line",
        code=f"def on_train_start(self):\n    gc.collect()\n    gc.freeze()\n    gc.set_threshold({raised}, 50, 100)",
    )


RULE = Rule(code="PD508", name="garbage-collector-pauses", category="host", docs=DOCS, check=check)
