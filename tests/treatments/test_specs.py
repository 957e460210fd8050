"""Treatments as users name them."""

from __future__ import annotations

import msgspec
import pytest

from lightning_perf.errors import ConfigError
from lightning_perf.records import Machine, Run, Session, Settings, TrainerSettings
from lightning_perf.treatments.specs import all_treatments, check_together, parse, parse_all, with_default

SESSION = Session(
    run=Run(id="a", stage="fit", status="finished", started_at="", wall_s=1.0), machine=Machine(os="", python="")
)


def with_trainer(**settings: object) -> Session:
    return msgspec.structs.replace(SESSION, settings=Settings(trainer=TrainerSettings(**settings)))


def test_parse_gives_treatment_and_value_when_both_are_named() -> None:
    spec = parse(" loader-workers = 4 ")
    assert (spec.treatment.id, spec.value, spec.text) == ("loader-workers", (4, None, False), "loader-workers=4")


def test_parse_leaves_the_value_open_when_none_is_given() -> None:
    assert parse("loader-workers").value is None


@pytest.mark.parametrize("treatment", all_treatments(), ids=lambda treatment: treatment.id)
def test_default_can_be_read_back_when_written_as_text(treatment: object) -> None:
    spec = with_default(parse(treatment.id), SESSION)
    assert parse(spec.text).value == spec.value


@pytest.mark.parametrize(
    "text",
    [
        "loader-workers=many", "loader-workers=-1", "loader-workers=1.5", "loader-workers=", "loader-workers=0x2",
        "loader-workers=2x0", "loader-workers=2-pined", "loader-prefetch=0",
        "precision-bf16=true", "matmul-precision-high=highest", "compile=fast", "accumulate=1", "accumulate=x",
        "batch-size=0", "batch-size=x1", "batch-size=x", "batch-size=1.5", "log-every-n=0", "progress-refresh=0",
        "prog-bar-off=yes", "val-less-often=0", "val-less-often=1.5", "val-less-often=b", "expandable-segments=tpu",
        "threads=0", "limit-val-batches=1.5",
    ],
)  # fmt: skip
def test_parse_refuses_when_the_value_is_none_of_the_treatments(text: str) -> None:
    with pytest.raises(ConfigError, match=text.partition("=")[0]):
        parse(text)


def test_parse_names_close_ids_when_there_is_no_such_treatment() -> None:
    with pytest.raises(ConfigError, match="loader-workers"):
        parse("loader-worker=4")
    with pytest.raises(ConfigError, match="expected one of"):
        parse("zzzz")


@pytest.mark.parametrize(
    "text",
    ["prog-bar-off=bar,progress-refresh=5", "loader-prefetch=4,loader-workers=0", "loader-workers=0,loader-persistent"],
)
def test_values_are_refused_together_when_lightning_or_torch_refuses_them(text: str) -> None:
    with pytest.raises(ConfigError, match="exclude one another"):
        parse_all(text)
    assert len(parse_all(text.replace("=bar", "=metrics").replace("=0", "=2"))) == 2


def test_parse_all_reads_text_with_commas_and_lists_alike() -> None:
    assert parse_all("precision-bf16, loader-workers=2,") == parse_all(["precision-bf16", "loader-workers=2"])
    assert parse_all("") == ()


@pytest.mark.parametrize(
    "text",
    [
        "precision-bf16,precision-fp16",
        "precision-bf16,precision-bf16-true",
        "compile,compile-regions",
        "checkpointing-batch=x2,batch-size=x2",
        "fsdp,ddp-static-graph",
        "loader-workers=1,loader-workers=2",
    ],
)
def test_parse_all_refuses_when_treatments_exclude_one_another(text: str) -> None:
    with pytest.raises(ConfigError, match=text.partition(",")[0].partition("=")[0]):
        parse_all(text)


@pytest.mark.parametrize("treatment", all_treatments(), ids=lambda treatment: treatment.id)
def test_conflicts_name_treatments_that_exist(treatment: object) -> None:
    assert treatment.conflicts <= {other.id for other in all_treatments()} - {treatment.id}


def test_check_together_refuses_when_mixed_precision_fused_and_clipping_meet() -> None:
    specs = parse_all("precision-fp16,fused-optimizer")
    check_together(specs, with_trainer(gradient_clip_val=None))
    with pytest.raises(ConfigError, match="clips"):
        check_together(specs, with_trainer(gradient_clip_val=1.0))
    with pytest.raises(ConfigError, match="clips"):
        check_together(parse_all("fused-optimizer"), with_trainer(gradient_clip_val=1.0, precision="16-mixed"))
    with pytest.raises(ConfigError, match="clips"):
        check_together(parse_all("fused-optimizer"), with_trainer(gradient_clip_val=1.0, precision="bf16-mixed"))
    with pytest.raises(ConfigError, match="clips"):
        check_together(parse_all("precision-bf16,fused-optimizer"), with_trainer(gradient_clip_val=1.0))
    check_together(parse_all("fused-optimizer"), with_trainer(gradient_clip_val=1.0, precision="32-true"))
    for precision in ("precision-bf16-true", "precision-32"):  # no loss scale
        check_together(
            parse_all(f"{precision},fused-optimizer"), with_trainer(gradient_clip_val=1.0, precision="bf16-mixed")
        )
    check_together(parse_all("fused-optimizer"), with_trainer(gradient_clip_val=0.0, precision="bf16-mixed"))
