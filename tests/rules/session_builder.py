"""Build a session from a compact description; unspecified parts are those of ``healthy.yml``.

Keys of a description: ``step_ms``, ``n_steps`` (with ``n_first_steps`` more in the span), ``shares`` (of the span, by
phase; the rest is forward and backward),
``loader`` and ``val_loader`` (merged into a plain DataLoader), ``loaders`` (instead of both), ``epoch_boundaries_ms``,
``timeline_ms`` (only backward varies unless ``is_uniform``; ``loop_ms`` sets the phase ``other``), ``validation``
(``step_ms``, ``n_steps``, ``shares``), ``trace`` (a recorded window of three steps of 100 ms in which a GPU is busy for
80 ms; a value of None removes a part), ``cpu_trace`` (one on a CPU). Every other key is a field of Session and is
merged into it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from lightning_perf.records import STEP_PHASES, Session, TraceRecord

from .case_files import load

HEALTHY: dict[str, Any] = load(Path(__file__).with_name("healthy.yml"))
FORWARD_PART = 0.4


def build_trace(description: dict[str, Any], is_cpu: bool = False) -> TraceRecord:
    """Return the trace of a description; ``n_steps: 0`` removes its steps."""
    rest, document = copy.deepcopy(description), copy.deepcopy(HEALTHY["trace"])
    if is_cpu:
        document = _merged(document, HEALTHY["cpu_trace"])
    if rest.pop("n_steps", None) == 0:
        step = HEALTHY["trace"]["steps"][0]
        document |= {"steps": [], "whole": {**step, "name": "trace", "duration_s": 0.3, "device_busy_s": 0.24}}
    document = _merged(document, rest)
    document.setdefault("critical_path", _critical_path(document))
    return msgspec.convert(document, TraceRecord)


def _critical_path(trace: dict[str, Any]) -> dict[str, Any]:
    """Return the critical path that follows from the other fields of a trace; its kernels run in sequence."""

    def seconds(part: str, field: str) -> float:
        return float((trace.get(part) or {}).get(field) or 0.0)

    by_phase = (trace.get("idle") or {}).get("host_wait_by_phase_s", {})
    kinds = {kind: time["total_s"] for kind, time in ((trace.get("kernels") or {}).get("kinds") or {}).items()}
    late = sum(by_phase.values()) - by_phase.get("data_loading", 0.0)
    sync, allocator = seconds("syncs", "idle_after_s"), seconds("allocator", "exposed_s")
    pageable = seconds("copies", "h2d_pageable_exposed_s")
    causes = {
        "compute": seconds("device", "compute_s"),
        "communication": seconds("communication", "exposed_s"),
        "pageable_copy": pageable,
        "transfer": max(0.0, seconds("copies", "h2d_exposed_s") - pageable),
        "device_to_host": seconds("copies", "d2h_exposed_s"),
        "loader": seconds("loader", "exposed_s"),
        "allocator": allocator,
        "sync": sync,
        "launch": max(0.0, late - sync - allocator),
    }
    return {"causes": causes, "kinds": {kind: s for kind, s in kinds.items() if kind != "communication"}}


def build_session(description: dict[str, Any] | None = None) -> Session:
    """Return the session of a description."""
    rest = copy.deepcopy(description or {})
    document = copy.deepcopy(HEALTHY["session"])
    is_cpu = "cpu_trace" in rest
    trace = rest.pop("cpu_trace" if is_cpu else "trace", None)
    step_ms = rest.pop("step_ms", 20.0 if trace is None else 100.0)
    n_steps, n_first_steps = rest.pop("n_steps", 1000), rest.pop("n_first_steps", 0)
    steady = _stage(step_ms, n_steps, rest.pop("shares", {}), HEALTHY["shares"], n_first_steps)
    steady["timeline"] = _timeline(
        rest.pop("timeline_ms", [20.0] * 40), rest.pop("is_uniform", False), rest.pop("loop_ms", ())
    )
    document["steady"] = steady
    validation = rest.pop("validation", {})
    if validation is not None:
        validation = (
            _stage(
                validation.pop("step_ms", 8.0),
                validation.pop("n_steps", 150),
                validation.pop("shares", {}),
                {},
                validation.pop("n_first_steps", 0),
            )
            | validation
        )
    document["validation"] = validation
    if trace is not None:
        window = {"first_step": 10, "n_steps": 3, "status": "recorded", "reason": "by schedule", "cost_s": 0.5}
        rest["windows"] = [{**window, "trace": msgspec.to_builtins(build_trace(trace, is_cpu))}]
    loader, val_loader = rest.pop("loader", {}), rest.pop("val_loader", {})
    document["settings"]["loaders"] = rest.pop(
        "loaders", [{**HEALTHY["loader"], **loader}, {**HEALTHY["loader"], "stage": "val", **val_loader}]
    )
    ranks = rest.pop("rank_parts_ms", None)
    if ranks is not None:
        document["ranks"] = _ranks(ranks, rest.pop("rank_facts", {}), steady["step_s"]["mean"])
        rest["run"] = {"world_size": len(ranks), **rest.get("run", {})}
    document["epochs"] = _epochs(rest.pop("epoch_boundaries_ms", [70.0, 70.0, None]), steady)
    return msgspec.convert(_merged(document, rest), Session)


def _ranks(parts_ms: list[list[float]], facts: dict[int, dict[str, Any]], step_s: float) -> dict[str, Any]:
    """Return ranks from their data, compute and host time per step; the rest of the step is waiting for other ranks."""
    summaries = []
    for rank, (data, compute, host) in enumerate(parts_ms):
        own_s = (data + compute + host) / 1e3
        summaries.append(
            {
                "rank": rank,
                "node": "a",
                "n_steps": 1000,
                "step_s": step_s,
                "own_s": own_s,
                "own_p50_s": own_s,
                "waiting_s": max(0.0, step_s - own_s),
                "waiting_n": 20,
                "parts_s": {"data": data / 1e3, "compute": compute / 1e3, "host": host / 1e3},
                "n_batches": 100,
                "n_samples": 3200,
                "n_unused": 0,
                **facts.get(rank, {}),
            }
        )
    return {
        "step_mean_s": step_s,
        "step_max_s": step_s,
        "data_wait_share_mean": 0.0,
        "data_wait_share_max": 0.0,
        "world_size": len(parts_ms),
        "summaries": summaries,
    }


def _stage(
    step_ms: float, n_steps: int, shares: dict[str, float], defaults: dict[str, float], n_first_steps: int
) -> dict[str, Any]:
    shares = {**defaults, **shares}
    left = max(0.0, 1.0 - sum(shares.values()))
    shares.setdefault("forward", FORWARD_PART * left)
    shares.setdefault("backward", max(0.0, 1.0 - sum(shares.values())))
    step_share = sum(share for name, share in shares.items() if name in STEP_PHASES)
    step_s = step_ms / 1e3
    span_s = (n_steps + n_first_steps) * step_s / step_share
    wait_s = shares.get("data_wait", 0.0) * span_s / max(1, n_steps + n_first_steps)
    return {
        "n_steps": n_steps,
        "n_first_steps": n_first_steps,
        "n_warmup_steps": 10,
        "span_s": span_s,
        "step_s": _distribution(step_s),
        "samples_per_s": None,
        "phases": {name: {"total_s": share * span_s, "share": share} for name, share in shares.items() if share},
        "fetch": {
            "n": n_steps,
            "wait_s": _distribution(wait_s),
            "p90_over_p50": 1.1,
            "waiting_fraction": 0.0,
            "first_s": [0.003, 0.003],
        },
        "outliers": {"n": 0, "excess_s": 0.0, "share": 0.0, "threshold_s": 3 * step_s, "excess_by_phase_s": {}},
        "is_steady": True,
    }


def _distribution(value: float) -> dict[str, float]:
    return {"p50": value, "p95": 1.2 * value, "p99": 1.5 * value, "mean": value, "std": 0.1 * value}


def _timeline(steps_ms: list[float], is_uniform: bool, loop_ms: Sequence[float]) -> list[dict[str, Any]]:
    return [
        {
            "first_step": 25 * i,
            "n_steps": 25,
            "start_s": 0.5 * i,
            "step_s": ms / 1e3,
            "max_step_s": 1.2 * ms / 1e3,
            "phases": {
                "backward": (ms - (forward_ms := 0.4 * (ms if is_uniform else 20.0))) / 1e3,
                "forward": forward_ms / 1e3,
                **({"other": loop_ms[i] / 1e3} if loop_ms else {}),
            },
        }
        for i, ms in enumerate(steps_ms)
    ]


def _epochs(boundaries_ms: list[float | None], steady: dict[str, Any]) -> list[dict[str, Any]]:
    n = max(1, len(boundaries_ms))
    return [
        {
            "index": i,
            "n_steps": steady["n_steps"] // n,
            "wall_s": steady["span_s"] / n,
            "phases": {name: phase["total_s"] / n for name, phase in steady["phases"].items()},
            "boundary_s": None if ms is None else ms / 1e3,
        }
        for i, ms in enumerate(boundaries_ms)
    ]


def _merged(base: Any, over: Any) -> Any:
    if not (isinstance(base, dict) and isinstance(over, dict)):
        return over
    return {**base, **{key: _merged(base.get(key), value) for key, value in over.items()}}
