"""What the real traces teach, line by line."""

import pytest

from lightning_perf.traces.timeline import Timeline

from .shared import needs_shared_traces, record, trace

pytestmark = needs_shared_traces
WORKERS_0, WORKERS_4 = "resnet50-workers0.json.gz", "resnet50-workers4.json.gz"


def mean_step_s(file: str) -> float:
    steps = record(file).steps
    return sum(step.duration_s for step in steps) / len(steps)


def test_steps_follow_the_device_when_the_host_runs_ahead() -> None:
    file = "resnet-checkpoint-fsdp-mi300.json.gz"
    steps = Timeline(trace(file)).steps
    assert steps.host_ends[-1] / 1e6 == pytest.approx(49, abs=0.5)
    assert steps.ends[-1] / 1e6 == pytest.approx(87, abs=0.5)
    result = record(file)
    # What the device still did for the steps before the first begins before it, and is not charged to it.
    assert steps.starts[0] > steps.host_starts[0] + 20e6
    assert all(step.busy_fraction is not None and step.busy_fraction > 0.99 for step in result.steps)
    # A step has the kernels that it launched, wherever on the device's clock they ran.
    assert [step.n_kernels for step in result.steps] == [746, 746, 746]
    assert result.communication.n_per_step >= 4


def test_totals_and_tails_show_stalls_when_the_median_hides_them() -> None:
    loader = record("param-resnet-2080ti.json.gz").loader
    assert loader.total_s == pytest.approx(8.205, rel=0.02)
    assert loader.p95_s > 0.6
    assert loader.max_s > 0.7
    assert 0.4 <= loader.stalled_fraction <= 0.6
    assert loader.exposed_s > 0.7 * loader.total_s


def test_loader_time_behind_kernels_is_not_charged_when_the_device_works_meanwhile() -> None:
    steps = record(WORKERS_0).steps
    raw = sum(step.loader_s for step in steps) / sum(step.host_s or 0 for step in steps)
    charged = sum(step.categories["data_loading"] for step in steps) / sum(step.duration_s for step in steps)
    assert raw == pytest.approx(0.396, abs=0.002)
    assert charged == pytest.approx(0.334, abs=0.0005)


def test_synchronizations_are_charged_with_idle_time_only_when_they_are_many() -> None:
    for file in ("sam-fp32-syncs-a100.json.gz", "sam-mended-a100.json.gz", "copy-pinned-a100.json.gz"):
        result = record(file)
        assert result.syncs.idle_after_s is not None
        waited = result.syncs.wait_s + result.syncs.blocking_copy_wait_s
        assert result.syncs.idle_after_s <= min(waited, result.device.idle_s) + 1e-9
    pinned = record("copy-pinned-a100.json.gz").syncs
    # The host waits 306 ms for copies that keep the device busy all the while: next to nothing is lost.
    assert pinned.wait_s == pytest.approx(0.306, rel=0.02)
    assert (pinned.idle_after_s or 0) < 0.001


def test_waits_inside_copies_are_found_when_no_synchronizing_call_was_made() -> None:
    result = record("sam-fp32-syncs-a100.json.gz").syncs
    assert result.blocking_copy_wait_s > result.wait_s
    assert result.sites[0].call == "cudaMemcpyAsync"
    assert result.sites[0].site == "aten::nonzero"


def test_start_up_is_separate_when_a_trace_has_no_steps() -> None:
    alexnet = record("alexnet-critical-path-a100.json.gz")
    assert alexnet.startup.total_s > 0.85 * alexnet.span_s
    assert alexnet.critical_path.causes["startup"] == pytest.approx(alexnet.startup.total_s, rel=1e-3)
    assert alexnet.startup.calls[0].name == "cudaDeviceGetStreamPriorityRange"
    param = record("param-resnet-2080ti.json.gz")
    assert "cudaFree" in {call.name for call in param.startup.calls}
    assert record(WORKERS_0).startup is None


def test_predicted_step_takes_the_longer_of_host_and_device_when_a_cause_goes() -> None:
    for file in ("sam-fp32-syncs-a100.json.gz", WORKERS_0, "v100-ddp-unbucketed.json.gz", "owlv2-h100.json.gz"):
        result = record(file)
        n = max(len(result.steps), 1)
        device_s = sum(step.device_busy_s or 0 for step in result.windows) / n
        for each in result.what_if:
            assert 0 <= each.low_s <= each.high_s <= each.step_s + 1e-12
            assert each.low_s >= each.step_s - each.claim_s / n - 1e-9
            if each.cause in ("loader", "sync", "launch", "allocator"):
                assert each.low_s >= min(device_s, each.step_s) - 1e-9, each.cause
    sync = next(each for each in record("sam-fp32-syncs-a100.json.gz").what_if if each.cause == "sync")
    assert sync.low_s > 1.4  # the host alone needs that long: no tenfold gain is promised
    assert sync.high_s == sync.step_s


def test_profiler_version_is_inferred_from_categories_when_none_is_given() -> None:
    assert record("resnet50-workers0-legacy.json.gz").era == "kineto-2021"
    assert record(WORKERS_0).era == "kineto-2021"
    assert record("owlv2-h100.json.gz").era == "kineto-2022"


def test_fixed_step_is_in_the_interval_predicted_from_the_starved_one() -> None:
    loader = next(each for each in record(WORKERS_0).what_if if each.cause == "loader")
    assert loader.step_s == pytest.approx(mean_step_s(WORKERS_0))
    measured = sorted(step.duration_s for step in record(WORKERS_4).steps)
    median = (measured[2] + measured[3]) / 2
    assert loader.low_s <= median <= loader.high_s
    assert loader.low_s <= mean_step_s(WORKERS_4) <= loader.high_s
    assert loader.low_s < 0.9 * loader.step_s
    assert loader.high_s == loader.step_s  # a trace does not show what a fix leaves: nothing is certain


def test_only_the_first_of_the_pair_is_starved() -> None:
    shares = []
    for file in (WORKERS_0, WORKERS_4):
        result = record(file)
        shares.append(result.loader.exposed_s / result.span_s)
    assert shares[0] > 0.2
    assert shares[1] < 0.05


def test_many_collectives_are_counted_when_gradients_are_not_bucketed() -> None:
    communication = record("v100-ddp-unbucketed.json.gz").communication
    assert communication.n_per_step == 404
    assert communication.overlap_fraction == 0


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("cupti-ranges-no-kernels.json.gz", "GPU but no kernels"),
        ("mtia-inference.json.gz", "unknown device (ARTEMIS)"),
        ("cpu-only-rank34.json.gz", "CPU run"),
    ],
)
def test_a_missing_device_side_is_named_when_there_are_no_kernels(file: str, words: str) -> None:
    result = record(file)
    assert words in result.missing["device"]
    assert (result.verdict is None) == ("CPU" in words)
    assert result.verdict is None or (result.verdict.category, result.verdict.code) == ("unknown", None)
    assert result.device is None
    assert result.kernels is None
    assert result.idle is None
    assert not [each for each in result.what_if if each.cause in ("sync", "launch", "transfer")]


def test_rank_and_world_size_are_read_when_the_trace_has_them() -> None:
    ranks = {file: (record(file).rank, record(file).world_size) for file in (
        "a100-8-ranks-mix.json.gz", "sampled-rank-1-of-128.json.gz", "cpu-only-rank34.json.gz", WORKERS_0
    )}  # fmt: skip
    assert list(ranks.values()) == [(3, 8), (1, 128), (34, 300), (None, None)]


def test_device_is_named_when_several_are_listed() -> None:
    assert record("v100-ddp-unbucketed.json.gz").device_name == "Tesla V100-SXM2-32GB"
    assert record("gpu-only-mi210.json.gz").device_name == "AMD Instinct MI210"
    device = record("qwen-h100.json.gz").device
    assert (device.kind, device.capability, device.memory_bytes) == ("cuda", "9.0", 85018279936)
    assert (record("ddp-resnet18-mi300.json.gz").device or device).kind == "rocm"


def test_phases_are_found_when_they_are_not_annotated() -> None:
    for file in (WORKERS_0, "resnet50-workers0-legacy.json.gz", "v100-compute.json.gz", "a100-ddp-host-bound.json.gz"):
        phases = {phase.name: phase for phase in record(file).phases}
        kernels = sum(phase.n_kernels for phase in phases.values())
        assert phases["backward"].device_s > phases["forward"].device_s > phases["optimizer"].device_s > 0
        assert phases["other"].n_kernels < 0.02 * kernels


def test_kernels_are_charged_to_operators_when_ids_differ_between_versions() -> None:
    for file in (WORKERS_0, "v100-ddp-unbucketed.json.gz", "sam-fp32-syncs-a100.json.gz", "qwen-h100.json.gz"):
        timeline = Timeline(trace(file))
        assert ((timeline.operator_of_work >= 0) | (timeline.launches.runtime_rows < 0)).mean() > 0.97
        result = record(file)
        attributed = sum(operator.device_self_s for operator in result.operators)
        work = result.device
        assert attributed == pytest.approx(work.busy_s, rel=0.05)


def test_waits_are_placed_in_the_users_code_when_stacks_were_recorded() -> None:
    old = record(WORKERS_0).syncs
    assert (old.sites[0].site, old.sites[0].function) == ("resnet50_profiler_api.py:44", "<module>")
    new = record("qwen-h100.json.gz").syncs
    assert any(site.site.startswith("transformers/") and site.function for site in new.sites)
