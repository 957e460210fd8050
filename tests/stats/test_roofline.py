import msgspec
import pytest

from lightning_perf.records import Ceilings, DatasheetPeak, Distribution, ModelProfile, ModuleProfile, OperatorProfile
from lightning_perf.stats.roofline import (
    advice,
    assessed,
    bound_of,
    intensity,
    lower_bounds,
    lower_bounds_of_step,
    lower_precision_speedup,
    ridge,
    work_of,
)

CEILINGS = Ceilings(
    device="cpu",
    name="CPU",
    torch="2",
    matmul_flops_per_s={"fp32": 1e11, "bf16": 4e11},
    copy_bytes_per_s=1e10,
    launch_s=1e-6,
)


def times(seconds: float) -> Distribution:
    return Distribution(p50=seconds, p95=seconds, p99=seconds, mean=seconds, std=0.0)


def profile(**changes: object) -> ModelProfile:
    figures: dict[str, object] = {
        "class_name": "Net", "device": "cpu", "n_parameters": 1, "n_trainable": 1, "parameters_bytes": 4,
        "precision": "fp32", "forward_flops": 10**9, "backward_flops": 2 * 10**9,
    }  # fmt: skip
    return ModelProfile(**{**figures, **changes})  # type: ignore[arg-type]


def module(**changes: object) -> ModuleProfile:
    figures: dict[str, object] = {"path": "a", "class_name": "Net", "n_parameters": 1, "forward_flops": 10**9,
                                  "backward_flops": 2 * 10**9, "forward_bytes": 10**6, "backward_bytes": 10**6,
                                  "n_operators": 300}  # fmt: skip
    return ModuleProfile(**{**figures, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("flops", "n_bytes", "n_operators", "seconds", "bound"),
    [
        (10**9, 10**6, 1, 0.012, "compute"),  # 10 ms of arithmetic, 0.1 ms of memory
        (10**6, 10**8, 1, 0.012, "bandwidth"),
        (10**3, 10**3, 1000, 0.0012, "launch"),
        (10**6, 10**5, 1_000, 0.5, "latency"),
        (10**6, 10**5, 10, 0.27, None),  # 27 ms per operator: no latency is that long
        (10**9, 10**6, 1, 0.01 / 0.6 * 0.999, "compute"),
        (10**9, 10**6, 20, 0.01 / 0.6 * 1.001, "latency"),
    ],
)
def test_bound_is_the_ceiling_that_explains_the_time(
    flops: int, n_bytes: int, n_operators: int, seconds: float, bound: str | None
) -> None:
    assert bound_of(lower_bounds(flops, n_bytes, n_operators, CEILINGS, "fp32"), seconds, n_operators) == bound


def test_bound_is_none_when_time_or_ceilings_are_missing() -> None:
    assert bound_of(lower_bounds(10**9, 10, 1, CEILINGS, "fp32"), None, 1) is None
    assert bound_of(lower_bounds(10**9, 10, 1, CEILINGS, "fp64"), 0.01, 1) is None


def test_ridge_is_where_arithmetic_takes_as_long_as_memory() -> None:
    assert ridge(CEILINGS, "fp32") == 10.0
    assert ridge(CEILINGS, "fp16") is None
    assert intensity(100, 10) == 10.0
    assert intensity(100, 0) is None


def test_speed_up_is_none_when_the_precision_is_low_already_or_gains_little() -> None:
    assert lower_precision_speedup(CEILINGS, "fp32") == ("bf16", 4.0)
    assert lower_precision_speedup(CEILINGS, "bf16") is None
    slow = Ceilings(device="cpu", name="CPU", torch="2", matmul_flops_per_s={"fp32": 1e11, "bf16": 1.4e11})
    assert lower_precision_speedup(slow, "fp32") is None
    odd = Ceilings(device="cpu", name="CPU", torch="2", matmul_flops_per_s={"fp16": 1e9, "bf16": 1e11})
    assert lower_precision_speedup(odd, "fp16") is None  # one 16-bit precision is not advised for the other


def test_advice_names_the_precision_when_arithmetic_decides() -> None:
    assert advice("compute", "fp32", CEILINGS).startswith("use bf16: matrix multiplication is 4.0x faster")
    assert "reduce operations" in advice("compute", "bf16", CEILINGS)
    assert advice(None, "fp32", CEILINGS) == ""


def test_utilisation_has_both_denominators_and_leaves_recomputation_out() -> None:
    chip = DatasheetPeak(chip="X", matmul_flops_per_s={"fp32": 2e11}, memory_bytes_per_s=None, source="its datasheet")
    used = assessed(profile(recomputed_flops=10**9), CEILINGS, chip, times(0.1), 20).utilisation
    assert used.flops_per_s == pytest.approx(2e10)
    assert used.measured_fraction == pytest.approx(0.2)
    assert used.measured_flops_per_s == 1e11
    assert used.datasheet_fraction == pytest.approx(0.1)
    assert used.datasheet == "X: its datasheet"


def test_ceilings_are_left_out_when_the_model_outran_them() -> None:
    fast = assessed(profile(), CEILINGS, None, times(3e9 / 1e11 / 5.01))
    assert fast.ceilings is None
    assert fast.utilisation is None
    assert fast.bound is None
    assert "100 GFLOP/s and the model reached 5.01 times that" in fast.missing["ceilings"]
    assert assessed(profile(), CEILINGS, None, times(3e9 / 1e11 / 4.99)).ceilings == CEILINGS


def test_utilisation_is_missing_when_the_device_is_unknown_or_nothing_was_timed() -> None:
    assert assessed(profile(), None, None, times(0.1)).utilisation is None
    assert assessed(profile(), CEILINGS, None).utilisation is None
    assert assessed(profile(precision="fp64"), CEILINGS, None, times(0.1)).utilisation is None


def test_modules_and_operators_get_their_bounds() -> None:
    linear = module(backward_flops=0, backward_bytes=0, n_operators=1, forward_s=0.011)
    operator = OperatorProfile(name="aten::mm", dtype="float32", calls=1, flops=10**3, n_bytes=10**8, total_s=0.011)
    found = assessed(profile(modules=(linear,), operators=(operator,)), CEILINGS, None, times(0.012))
    assert found.modules[0].bound == "compute"
    assert found.modules[0].advice
    assert found.operators[0].bound == "bandwidth"
    assert found.bound == "compute"


@pytest.mark.parametrize(("precision", "bound"), [("fp32", "compute"), ("tf32", "bandwidth")])
def test_operators_of_32_bit_are_compared_with_the_rate_of_tf32_where_it_is_on(precision: str, bound: str) -> None:
    ceilings = msgspec.structs.replace(CEILINGS, matmul_flops_per_s={"fp32": 1e11, "tf32": 8e11})
    operator = OperatorProfile(name="aten::mm", dtype="float32", calls=1, flops=10**9, n_bytes=6 * 10**7, total_s=0.007)
    found = assessed(profile(precision=precision, operators=(operator,)), ceilings, None, times(0.012))
    assert found.operators[0].bound == bound


@pytest.mark.parametrize(("n_operators", "bound"), [(1_000, "latency"), (37, None)])  # 1 ms or 27 ms per operator
def test_step_is_bound_by_latency_when_its_modules_explain_little_of_it(n_operators: int, bound: str | None) -> None:
    linear = module(backward_flops=0, backward_bytes=0, n_operators=n_operators)
    assert assessed(profile(modules=(linear,)), CEILINGS, None, times(1.0)).bound == bound


@pytest.mark.parametrize(
    ("seconds", "n_bytes", "bound"), [(0.045, 10**9, "compute"), (0.06, 10**9, None), (0.045, 10, "compute")]
)
def test_only_a_compute_bound_is_known_when_a_compiled_model_is_counted_uncompiled(
    seconds: float, n_bytes: int, bound: str | None
) -> None:
    counted = profile(basis="uncompiled", forward_bytes=n_bytes, modules=(module(forward_bytes=n_bytes),))
    assert assessed(counted, CEILINGS, None, times(seconds)).bound == bound


def test_bound_of_the_step_leaves_the_optimizer_out_when_modules_were_timed() -> None:
    linear = module(backward_flops=0, backward_bytes=0, n_operators=1, forward_s=0.011)
    assert assessed(profile(modules=(linear,)), CEILINGS, None, times(0.05)).bound == "compute"


def test_work_without_products_needs_no_ceiling_for_them() -> None:
    operators = (
        OperatorProfile(name="aten::add", dtype="float64", calls=1, flops=0, n_bytes=10**8, total_s=0.011),
        OperatorProfile(name="aten::mm", dtype="float64", calls=1, flops=10**9, n_bytes=10**8, total_s=0.011),
    )
    modules = (module(forward_flops=0, backward_flops=0, forward_bytes=10**8, forward_s=0.011),)
    counted = profile(precision="", forward_flops=0, backward_flops=0, operators=operators, modules=modules)
    found = assessed(counted, CEILINGS, None, times(0.012))
    assert [operator.bound for operator in found.operators] == ["bandwidth", None]
    assert found.bound == found.modules[0].bound == "bandwidth"


def test_least_of_a_step_adds_all_modules_up_by_ceiling() -> None:
    counted = profile(forward_bytes=10**7, backward_bytes=10**7, modules=(module(), module(path="b", n_operators=700)))
    assert lower_bounds_of_step(counted, CEILINGS) == pytest.approx((0.03, 0.002, 0.001))


def test_work_is_that_of_both_passes_and_none_where_nothing_was_counted() -> None:
    assert work_of(profile(forward_flops=7, backward_flops=7, forward_bytes=3, backward_bytes=3)) == (14, 6)
    assert work_of(profile(forward_flops=7, backward_flops=None, forward_bytes=None, backward_bytes=3)) == (7, 3)


def test_bound_stays_unknown_without_the_memorys_rate() -> None:
    ceilings = Ceilings(device="cpu", name="CPU", torch="2", matmul_flops_per_s={"fp32": 1e11}, launch_s=1e-6)
    assert bound_of(lower_bounds(10**9, 10, 1, ceilings, "fp32"), 0.011, 1) is None
    assert assessed(profile(modules=(module(),)), ceilings, None, times(0.03)).bound is None


def test_utilisation_is_of_the_forward_pass_where_no_step_was_timed() -> None:
    assert assessed(profile(forward_s=times(0.1)), CEILINGS, None).utilisation.flops_per_s == pytest.approx(1e10)


def test_bound_holds_up_to_the_explained_share_itself() -> None:
    assert bound_of(lower_bounds(6 * 10**8, 10, 1, CEILINGS, "fp32"), 0.01, 1) == "compute"
    explained = module(forward_flops=6 * 10**8, backward_flops=0)
    assert assessed(profile(modules=(explained,)), CEILINGS, None, times(0.01)).bound == "compute"
