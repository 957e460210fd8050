"""Where the time to the end of the first step goes."""

from __future__ import annotations

from lightning_perf.records import PHASES, STEP_PHASES, StageTimes


def startup_parts(
    startup_ns: dict[str, int], sanity_ns: int, first_step_ns: tuple[int, ...] | None, steady: StageTimes | None
) -> dict[str, float]:
    """Where the time to the end of the first step went: ``Run.startup``.

    Args:
        startup_ns: Nanoseconds before the first fetch, by phase.
        sanity_ns: Of these, the sanity validation's.
        first_step_ns: The first step's phases in the order of ``PHASES``; None where they are not known.
        steady: What is usual; None while that is not known, and the first step then counts whole.

    Returns:
        Seconds by part, without the parts that took no time.
    """
    parts = {name: ns / 1e9 for name, ns in startup_ns.items()}
    parts["other"] = parts.pop("startup", 0.0) - sanity_ns / 1e9 + parts.pop("other", 0.0)
    parts["sanity_validation"] = sanity_ns / 1e9
    if first_step_ns is not None:
        phases_s = {name: ns / 1e9 for name, ns in zip(PHASES, first_step_ns, strict=True)}
        wait_s = phases_s["data_wait"]
        rest_s = sum(phases_s[name] for name in STEP_PHASES) - wait_s
        fetch = None if steady is None else steady.phases.get("data_wait")
        usual_wait_s = (fetch.p50_s or 0.0) if fetch is not None else 0.0
        usual_s = 0.0 if steady is None else steady.step_s.p50
        parts["loader_start"] = wait_s - usual_wait_s
        parts["first_step"] = rest_s - max(0.0, usual_s - usual_wait_s)
    return {name: value for name, value in parts.items() if value > 0}
