"""PD508: Python's garbage collector takes a share of the time."""

from lightning_perf.records import AskedCollection, Collections, Finding, Prescription, Session
from lightning_perf.rules.findings import fact, fix, optional_fact, removal_finding
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.signals import steady_of
from lightning_perf.rules.thresholds import (
    GC_OWN_OBJECTS,
    GC_RAISED_FULL,
    GC_RAISED_MIDDLE,
    GC_RAISED_YOUNG,
    LOW_SHARE,
    MEDIUM_SHARE,
)
from lightning_perf.rules.user_lines import RARER_COLLECTIONS, left_with_raised_thresholds
from lightning_perf.rules.wording import called, duration, number_of, percent, place_of


# A loader without workers makes objects while training waits for data, which starts most collections then.
@rule("PD508", "garbage-collector-pauses", yields_to=("PD107", "PD108", "PD110"), is_host_time=True)
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    found = session.collections
    if found is None:
        required(steady.gc_s, "collections were not measured")
        return None
    total_s = sum(each.total_s for each in found.generations)
    if found.span_s <= 0 or not found.generations:
        return None
    scale = steady.span_s / found.span_s
    asked = [each for each in found.asked if each.is_users]
    is_asked = sum(each.total_s for each in asked) > sum(found.automatic_by_phase_s.values())
    worst = asked[0] if is_asked else None
    timed: dict[str, float] = {}
    for phase, seconds in [(a.phase, a.total_s) for a in asked] if is_asked else found.automatic_by_phase_s.items():
        timed[phase] = timed.get(phase, 0.0) + seconds * scale
    # How often a single full collection comes is not known: a longer run may hold no other.
    single_s = (
        0.0 if is_asked else sum(one.automatic_s for one in found.generations if one.generation == 2 and one.n == 1)
    )
    saved_s = sum(timed.values())
    is_rate = saved_s - single_s * scale >= LOW_SHARE * steady.span_s
    least_share = LOW_SHARE if is_rate else MEDIUM_SHARE
    if saved_s < least_share * steady.span_s:
        return None
    cause, advice = _cause_and_advice(found, worst)
    return removal_finding(
        steady,
        summary=f"{percent(total_s / found.span_s)} of training time is spent in garbage collection. {cause}",
        evidence=(
            fact(
                "share of the time in garbage collections",
                total_s / found.span_s,
                "fraction",
                least_share,
                sum(each.n for each in found.generations),
            ),
            *(fact(f"generation {each.generation}", each.total_s, "s", n=each.n) for each in found.generations),
            optional_fact("objects visited by a full collection", found.n_objects, "count"),
        ),
        prescriptions=advice,
        timed=timed,
        left=_left_without_calls(found, asked) if is_asked else left_with_raised_thresholds(found),
        left_least=0.0,
    )


def _left_without_calls(found: Collections, asked: list[AskedCollection]) -> float:
    """Return the part of the calls' time that is left at most once the calls are gone.

    Without PerfDoctor, whose objects each call visits as well, there is less to save. Python's own collections remain:
    between two calls, generation 0 grew by less than its threshold after the last automatic collection: each call that
    goes away adds at most one collection of it.
    """
    n_calls = sum(each.n for each in asked)
    asked_s = sum(each.total_s for each in asked)
    by_generation = {each.generation: each for each in found.generations}
    youngest, middle, oldest = (*found.thresholds, 0, 0, 0)[:3]
    if not (youngest and middle and oldest) or 2 not in by_generation:
        return 1.0  # the collector is off or has other generations, so how often it would run is unknown
    full_s = by_generation[2].total_s / by_generation[2].n

    def collection_s(generation: int, n_objects: int) -> float:
        if generation in by_generation:
            return by_generation[generation].total_s / by_generation[generation].n
        return full_s * min(1.0, n_objects / found.n_objects) if found.n_objects else full_s

    n_young = n_calls + (by_generation[0].n if 0 in by_generation else 0)
    left_s = n_young * (
        collection_s(0, youngest) + collection_s(1, youngest * middle) / middle + full_s / (middle * oldest)
    )
    own = GC_OWN_OBJECTS / found.n_objects if found.n_objects else 0.0
    return min(1.0, own + left_s / asked_s)


def _cause_and_advice(found: Collections, asked: AskedCollection | None) -> tuple[str, Prescription]:
    if asked is not None:
        cause = f"{place_of(asked)} called gc.collect() {called(asked.n)}, {duration(asked.total_s / asked.n)} each."
        return cause, fix(f"remove gc.collect() from {asked.file}:{asked.line}, or call it once per epoch", "one line")
    worst = max(found.generations, key=lambda each: each.automatic_s)
    alive = f" {found.n_objects:,} objects are alive." if found.n_objects is not None else ""
    kind = "automatic collection" if worst.automatic_s == worst.total_s else "collection"  # some were asked for
    what = f"{number_of(worst.n, kind)} of generation {worst.generation}"
    cause = f"{what} took {duration(worst.total_s / worst.n)}{' each' if worst.n > 1 else ''}.{alive}"
    raised = GC_RAISED_YOUNG * (found.thresholds[0] if found.thresholds and found.thresholds[0] else 700)
    return cause, fix(
        RARER_COLLECTIONS,
        "one line",
        treatment="gc-freeze",
        value=int(raised),
        code=(
            "gc.collect()  # before the first step, e.g. in on_train_start\ngc.freeze()\n"
            f"gc.set_threshold({raised}, {GC_RAISED_MIDDLE}, {GC_RAISED_FULL})"
        ),
    )
