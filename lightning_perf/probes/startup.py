"""Split the time to the end of the first step into parts."""

from __future__ import annotations

from lightning_perf.records import PHASES, STEP_PHASES, StageTimes


def startup_parts(
    startup_ns: dict[str, int], sanity_ns: int, first_step_ns: tuple[int, ...] | None, steady: StageTimes | None
) -> dict[str, float]:
    """Return seconds by part of the time to the end of the first step: ``Run.startup``.

    Args:
        startup_ns: Nanoseconds before the first fetch, by phase.
        sanity_ns: The part of it in the sanity validation.
        first_step_ns: The first step's phases in the order of ``PHASES``; None if unknown.
        steady: The usual step; None while unknown: then the whole first step counts.
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
