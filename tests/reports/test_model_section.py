from __future__ import annotations

import msgspec

from lightning_perf.records import Ceilings, DatasheetPeak, Distribution, ModelProfile, ModuleProfile, OperatorProfile
from lightning_perf.reports.console import session_document, to_text
from lightning_perf.reports.document import has_content
from lightning_perf.reports.render.markdown import to_markdown
from lightning_perf.reports.sections import model as model_rows
from lightning_perf.stats.roofline import assessed
from tests.rules.session_builder import build_session


def profile() -> ModelProfile:
    step_s = Distribution(p50=0.1, p95=0.12, p99=0.13, mean=0.1, std=0.01)
    modules = (
        ModuleProfile(path="net.body", class_name="Encoder", n_parameters=5, forward_flops=10**9,
                      backward_flops=2 * 10**9, forward_bytes=10**6, backward_bytes=2 * 10**6, n_operators=4,
                      forward_s=0.01, backward_s=0.025),
        ModuleProfile(path="", class_name="", n_parameters=0, forward_flops=10**7, backward_flops=10**7,
                      forward_bytes=10, backward_bytes=10, n_operators=90, forward_s=0.02, backward_s=0.02),
    )  # fmt: skip
    product = OperatorProfile(name="aten::mm", dtype="float32", calls=6, flops=3 * 10**9, n_bytes=10**7, total_s=0.03)
    counted = ModelProfile(
        class_name="Net[bold]", device="cpu", n_parameters=5, n_trainable=5, parameters_bytes=20, n_samples=8,
        precision="fp32", forward_flops=1_010_000_000, backward_flops=2_010_000_000, forward_bytes=1_000_010,
        backward_bytes=2_000_010, uncounted=("mine::kernel",), modules=modules, operators=(product,),
    )  # fmt: skip
    ceilings = Ceilings(device="cpu", name="CPU", torch="2", matmul_flops_per_s={"fp32": 1e11, "bf16": 4e11},
                        copy_bytes_per_s=1e10, launch_s=1e-6)  # fmt: skip
    chip = DatasheetPeak(chip="X1", matmul_flops_per_s={"fp32": 2e11}, memory_bytes_per_s=None, source="its datasheet")
    return assessed(counted, ceilings, chip, step_s, 20)


def test_flops_are_written_with_their_unit() -> None:
    shown = [model_rows.flops(value) for value in (0, 999, 3_640_000_000, 989.4e12, None)]
    assert shown == ["0", "999", "3.64 G", "989 T", ""]
    assert [model_rows.flops_in(value) for value in (16, 3_630_000_000)] == ["16 FLOPs", "3.63 GFLOPs"]
    assert model_rows.flops_in(2e12, "FLOP/s") == "2 TFLOP/s"


def test_utilisation_always_shows_what_it_is_a_share_of() -> None:
    facts = model_rows.utilization_facts(profile().utilisation)
    assert facts == [
        "30.2 GFLOP/s in fp32",
        "30 % of the measured peak of 100 GFLOP/s",
        "15 % of the 200 GFLOP/s of the datasheet (X1: its datasheet)",
    ]
    assert model_rows.utilization_facts(None) == []


def test_module_table_has_a_row_for_each_module_with_its_bound() -> None:
    table = model_rows.module_table(profile())
    heads, numbers, rows, *_ = table.grid(100, str)
    assert {"module", "type", "FLOPs", "share", "bytes", "time", "FLOP/s", "bound"} <= set(heads)
    assert [row[0] for row in rows] == ["net.body", "outside modules"]
    assert [row[-1] for row in rows] == ["compute", "latency"]
    assert len(numbers) == len(heads)


def test_tables_keep_what_matters_when_there_is_little_room() -> None:
    for table in (model_rows.module_table(profile()), model_rows.operator_table(profile())):
        heads = set(table.grid(80, str).heads)
        assert not {"type", "dtype", "FLOP/s", "forward", "advice"} & heads
        assert {"FLOPs", "time", "bound"} <= heads


def test_operator_table_says_that_modules_were_timed_in_other_steps_when_they_were() -> None:
    timed = profile()
    untimed = msgspec.structs.replace(timed, modules=timed.modules[:0])
    assert "modules were timed in other steps" in model_rows.operator_table(timed).about
    assert "modules" not in model_rows.operator_table(untimed).about


def test_tables_leave_out_missing_measurements() -> None:
    plain = profile()
    bare = msgspec.structs.replace(
        plain,
        modules=tuple(msgspec.structs.replace(m, forward_s=None, backward_s=None, bound=None) for m in plain.modules),
        operators=(),
    )
    table = model_rows.module_table(bare)
    assert not {"time", "FLOP/s", "bound"} & set(table.heads)
    assert not has_content(model_rows.operator_table(bare))


def test_reports_show_the_compute_cost() -> None:
    session = msgspec.structs.replace(build_session(), model_profile=profile())
    console, markdown = to_text(session_document(session), width=100), to_markdown(session)
    for text in ("forward 1.01 GFLOPs", "backward 2.01 GFLOPs", "not counted: mine::kernel", "compute", "net.body"):
        assert text in console
        assert text in markdown
    assert "Compute cost of Net[bold] (cpu)" in console


def test_reports_say_nothing_when_no_arithmetic_was_counted() -> None:
    timed = ModelProfile(class_name="Net", device="cpu", n_parameters=1, n_trainable=1, parameters_bytes=4)
    session = msgspec.structs.replace(build_session(), model_profile=timed)
    assert "Compute cost" not in to_text(session_document(session), width=100)
    assert "Compute cost" not in to_markdown(session)
