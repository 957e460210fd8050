"""For any session, every rule has an outcome, and gains and claims are within bounds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_perf.records import PHASES, SEVERITIES, Finding, StageTimes
from lightning_perf.rules.engine import all_rules, diagnose, preflight
from lightning_perf.rules.findings import MAX_RECOVERABLE_SHARE
from tests.fuzzing import FUZZ

from .session_builder import build_session

SHARE = st.floats(0.0, 1.0)
SECONDS = st.floats(0.0, 1e4) | st.sampled_from([0.0, 5e-324, 1e-300])
COUNT = st.integers(0, 500)
KINDS = ["callback", "progress_bar", "checkpoint_callback", "module_hook", "logger", "loop"]


def _maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


NAMED = st.fixed_dictionaries(
    {"name": st.sampled_from(["A", "zero_grad"]), "kind": st.sampled_from(KINDS), "hook": st.just("h"),
     "phase": st.sampled_from(PHASES), "total_s": SECONDS, "share": SHARE, "n_calls": COUNT}
)  # fmt: skip
DISTRIBUTION = st.fixed_dictionaries({"p50": SECONDS, "p95": SECONDS, "p99": SECONDS, "mean": SECONDS, "std": SECONDS})
FETCH = st.fixed_dictionaries(
    {"n": COUNT, "wait_s": DISTRIBUTION, "p90_over_p50": _maybe(st.floats(1, 100)), "waiting_fraction": SHARE,
     "burst_period": _maybe(st.integers(1, 9)), "burst_fraction": _maybe(SHARE),
     "first_s": st.lists(SECONDS, max_size=4), "in_process_batch_s": _maybe(SECONDS)}
)  # fmt: skip
DEVICE = st.fixed_dictionaries(
    {"n": COUNT, "starved_s": SECONDS, "starved_share": SHARE, "busy_s": SECONDS, "step_s": DISTRIBUTION,
     "backend": st.just("cuda")}
)  # fmt: skip
OUTLIERS = st.fixed_dictionaries(
    {"n": COUNT, "excess_s": SECONDS, "share": SHARE, "threshold_s": SECONDS,
     "excess_by_phase_s": st.dictionaries(st.sampled_from(PHASES), SECONDS, max_size=3)}
)  # fmt: skip
STAGE = st.fixed_dictionaries(
    {"n_steps": COUNT, "n_warmup_steps": COUNT, "span_s": SECONDS, "step_s": DISTRIBUTION, "samples_per_s": st.none(),
     "phases": st.dictionaries(
         st.sampled_from(PHASES), st.fixed_dictionaries({"total_s": SECONDS, "share": SHARE}), max_size=len(PHASES)),
     "named": st.lists(NAMED, max_size=5), "fetch": _maybe(FETCH), "device": _maybe(DEVICE),
     "outliers": _maybe(OUTLIERS), "is_steady": _maybe(st.booleans()),
     "timeline": st.lists(st.fixed_dictionaries(
         {"first_step": COUNT, "n_steps": COUNT, "start_s": SECONDS, "step_s": SECONDS, "max_step_s": SECONDS,
          "phases": st.dictionaries(st.sampled_from(PHASES), SECONDS, max_size=2)}), max_size=20)}
)  # fmt: skip
LOADER = st.fixed_dictionaries(
    {"stage": st.sampled_from(["train", "val"]), "index": st.just(0), "class_name": st.just("DataLoader"),
     "is_plain": st.booleans(), "is_iterable": _maybe(st.booleans()), "n_batches": _maybe(COUNT),
     "num_workers": _maybe(st.integers(0, 64)), "persistent_workers": _maybe(st.booleans()),
     "prefetch_factor": _maybe(st.integers(1, 8))}
)  # fmt: skip
OPTIMIZER = st.fixed_dictionaries(
    {"class_name": st.just("SGD"), "implementation": st.sampled_from(["fused", "foreach", "single-tensor", "unknown"]),
     "n_tensors": COUNT, "n_elements": COUNT, "supports_fused": _maybe(st.booleans()),
     "zero_grad_keeps_tensors": _maybe(st.booleans()), "steps_without_zero_grad": _maybe(COUNT),
     "n_steps_watched": COUNT}
)  # fmt: skip
SESSION = st.fixed_dictionaries(
    {
        "run": st.fixed_dictionaries(
            {"stage": st.sampled_from(["fit", "validate", "test", "predict"]), "wall_s": SECONDS,
             "status": st.sampled_from(["running", "finished"]), "time_to_first_step_s": _maybe(SECONDS)}),
        "machine": st.fixed_dictionaries(
            {"usable_cores": st.floats(1, 128), "local_world_size": st.integers(1, 16)}),
        "settings": st.fixed_dictionaries({
            "loaders": st.lists(LOADER, max_size=3),
            "model": _maybe(st.fixed_dictionaries(
                {"class_name": st.just("Net"), "optimizers": st.lists(OPTIMIZER, max_size=2),
                 "parameters": st.lists(st.fixed_dictionaries(
                     {"dtype": st.sampled_from(["float32", "float64"]), "n_elements": COUNT, "n_bytes": COUNT}),
                     max_size=2),
                 "matmul_parameter_fraction": _maybe(SHARE), "eval_outputs_have_graph": _maybe(st.booleans())})),
            "torch": st.fixed_dictionaries({"n_threads": _maybe(st.integers(0, 64))}),
            "trainer": st.fixed_dictionaries({
                "accelerator": st.sampled_from([None, "cpu", "cuda"]),
                "is_anomaly_detection_on": _maybe(st.booleans()),
                "log_every_n_steps": _maybe(st.integers(0, 100)), "val_check_interval": _maybe(SHARE | COUNT),
                "progress_bar_refresh_rate": _maybe(st.integers(0, 200))})}),
        "steady": _maybe(STAGE),
        "validation": _maybe(STAGE),
    }
)  # fmt: skip


OUTSIDE_THE_SPAN = ("PD311", "PD320")
"""Rules whose time is in steps outside the span, which therefore claim none of it."""


@settings(max_examples=100 * FUZZ, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(SESSION)
def test_outcomes_are_within_bounds_when_a_session_is_arbitrary(description):
    validation = description.pop("validation")
    stage = None if validation is None else msgspec.convert(validation, StageTimes)
    session = diagnose(msgspec.structs.replace(build_session(description), validation=stage))
    assert [(o.code, o.reason) for o in session.outcomes if o.status == "failed"] == []
    preflight(session)
    _check_order(session.findings)
    for finding in session.findings:
        assert all(seconds >= 0 for seconds in finding.claims.values())
        if finding.gain is None:
            continue
        span_s = session.steady.span_s
        assert 1.0 <= finding.gain.low <= finding.gain.high
        recoverable_s = min(sum(finding.claims.values()), MAX_RECOVERABLE_SHARE * span_s)
        if finding.code not in OUTSIDE_THE_SPAN:
            assert finding.gain.high <= span_s / (span_s - recoverable_s) * (1 + 1e-9)
        if finding.gain.method == "modeled":
            assert finding.severity in ("low", "info")


def _check_order(findings: Sequence[Finding]) -> None:
    """Check that findings are ordered by severity, except for causes right before symptoms that they explain."""
    rules = {rule.code: rule for rule in all_rules()}
    for finding, later in itertools.pairwise(findings):
        is_cause = any(
            other.code in rules[finding.code].explains or finding.code in rules[other.code].yields_to
            for other in findings
        )
        is_more_severe = SEVERITIES.index(later.severity) < SEVERITIES.index(finding.severity)
        assert is_cause or not is_more_severe, f"{finding.code} ({finding.severity}) before {later.code}"
