"""The code that a user pastes."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest
import yaml

from lightning_perf.records import LoaderSettings, Settings, TrainerSettings
from lightning_perf.rules.engine import diagnose
from lightning_perf.treatments.prescription import prescription
from lightning_perf.treatments.specs import all_treatments, parse, parse_all, with_default
from tests.rules.case_files import load_cases
from tests.rules.session_builder import build_session

from .test_specs import SESSION

CASES = sorted((Path(__file__).parents[1] / "rules" / "cases").glob("*.yml"))


def test_flags_and_arguments_are_merged_when_there_are_several() -> None:
    written = prescription(parse_all("precision-bf16,log-every-n=10,loader-workers=4,loader-persistent"))

    assert written.trainer_flags == {"precision": "bf16-mixed", "log_every_n_steps": 10}
    assert written.loader_args == {"num_workers": 4, "persistent_workers": True}
    assert written.code.splitlines() == [
        'Trainer(..., precision="bf16-mixed", log_every_n_steps=10)',
        "DataLoader(..., num_workers=4, persistent_workers=True)",
    ]
    assert yaml.safe_load(written.yaml) == {"trainer": {"precision": "bf16-mixed", "log_every_n_steps": 10}}
    assert "#   num_workers: 4" in written.yaml


def test_one_strategy_is_written_when_several_treatments_change_it() -> None:
    written = prescription(parse_all("ddp-static-graph,ddp-bucket-view"))

    assert "Trainer(..., strategy=DDPStrategy(static_graph=True, gradient_as_bucket_view=True))" in written.code
    assert yaml.safe_load(written.yaml)["trainer"]["strategy"] == {
        "class_path": "lightning.pytorch.strategies.DDPStrategy",
        "init_args": {"static_graph": True, "gradient_as_bucket_view": True},
    }


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ("ddp-bucket-view", {"find_unused_parameters": True, "gradient_as_bucket_view": True}),
        ("ddp-bucket-view,ddp-find-unused-off", {"find_unused_parameters": False, "gradient_as_bucket_view": True}),
    ],
)
def test_strategy_is_written_with_the_arguments_that_the_user_set(texts: str, expected: dict[str, bool]) -> None:
    settings = Settings(trainer=TrainerSettings(strategy="DDPStrategy", find_unused_parameters=True))
    written = prescription(parse_all(texts), msgspec.structs.replace(SESSION, settings=settings))
    assert yaml.safe_load(written.yaml)["trainer"]["strategy"]["init_args"] == expected


def test_strategy_is_written_with_its_policy_when_fsdp_checkpoints() -> None:
    code = prescription(parse_all("fsdp-checkpointing")).code
    assert "from lightning.pytorch.strategies import FSDPStrategy\n" in code
    assert "Trainer(..., strategy=FSDPStrategy(activation_checkpointing_policy={Block}))" in code


def test_one_line_sets_all_flags_when_fsdp_also_checkpoints() -> None:
    written = prescription(parse_all("fsdp,fsdp-checkpointing,precision-bf16"))
    policy = "FSDPStrategy(activation_checkpointing_policy={Block})"
    assert written.code.count("Trainer(") == 1
    assert f'Trainer(..., strategy={policy}, precision="bf16-mixed")' in written.code
    assert yaml.safe_load(written.yaml) == {"trainer": {"strategy": "fsdp", "precision": "bf16-mixed"}}


def test_classes_are_of_the_package_of_the_trainer() -> None:
    trainer = TrainerSettings(package="pytorch_lightning")
    session = msgspec.structs.replace(SESSION, settings=Settings(trainer=trainer))
    for text in ("ddp-static-graph", "progress-refresh", "async-checkpoint", "fsdp-checkpointing"):
        written = prescription(parse_all(text), session)
        assert "from pytorch_lightning." in written.code
        assert "lightning.pytorch" not in written.code + written.yaml


def test_compiled_autograd_is_written_with_its_name_in_older_torch() -> None:
    code = prescription(parse_all("compile=autograd")).code
    assert "compiled_autograd._enable(torch.compile()):  # torch before 2.6: enable\n    loss.backward()" in code


@pytest.mark.parametrize(
    "treatment", [one for one in all_treatments() if not one.is_measurement], ids=lambda treatment: treatment.id
)
def test_code_is_python_and_yaml_is_yaml_when_any_treatment_is_written(treatment: object) -> None:
    session = session_of(
        LoaderSettings(stage="train", index=0, class_name="", is_plain=True, batch_size=8), accumulate=1
    )
    written = prescription([parse(treatment.id)], session)
    assert written.code
    ast.parse(written.code)
    yaml.safe_load(written.yaml)
    msgspec.json.encode((written.trainer_flags, written.loader_args))


def session_of(loader: LoaderSettings, accumulate: int, is_automatic: bool = True) -> object:
    trainer = TrainerSettings(accumulate_grad_batches=accumulate, is_automatic_optimization=is_automatic)
    settings = Settings(trainer=trainer, loaders=(loader,))
    return msgspec.structs.replace(SESSION, settings=settings)


@pytest.mark.parametrize(
    ("value", "accumulate", "batch_size", "kept"),
    [("x2", 4, 16, 2), ("16", 4, 16, 2), ("x4", 2, 32, None), ("4", 1, 4, 2), ("x2", 1, 16, None), ("12", 3, 12, 2)],
)
def test_batch_size_keeps_the_samples_of_a_step_when_accumulation_allows(
    value: str, accumulate: int, batch_size: int, kept: int | None
) -> None:
    loader = LoaderSettings(stage="train", index=0, class_name="", is_plain=True, batch_size=8)
    written = prescription([parse(f"batch-size={value}")], session_of(loader, accumulate))

    assert written.loader_args == {"batch_size": batch_size}
    assert written.trainer_flags.get("accumulate_grad_batches") == kept


def test_accumulation_is_not_written_for_manual_optimization_which_lightning_refuses() -> None:
    loader = LoaderSettings(stage="train", index=0, class_name="", is_plain=True, batch_size=8)
    written = prescription([parse("batch-size=4")], session_of(loader, 1, is_automatic=False))
    assert (written.trainer_flags, written.loader_args) == ({}, {"batch_size": 4})


@pytest.mark.parametrize("text", ["accumulate=8,batch-size=x2", "batch-size=x2,accumulate=8"])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_batch_size_lowers_the_accumulation_that_another_treatment_sets(text: str, accumulate: int) -> None:
    loader = LoaderSettings(stage="train", index=0, class_name="", is_plain=True, batch_size=8)
    written = prescription(parse_all(text), session_of(loader, accumulate))

    assert written.loader_args == {"batch_size": 16}
    assert written.trainer_flags == {"accumulate_grad_batches": 4}


@pytest.mark.parametrize("text", ["loader-workers=0,dataset-cache", "dataset-cache,loader-workers=0"])
def test_workers_do_not_persist_when_there_are_none_beside_a_cache(text: str) -> None:
    loader = LoaderSettings(stage="train", index=0, class_name="", is_plain=True, batch_size=8, num_workers=2)
    written = prescription(parse_all(text), session_of(loader, 1))

    assert written.loader_args == {"num_workers": 0, "persistent_workers": False}


def test_nothing_is_written_when_there_is_nothing() -> None:
    assert prescription([]) == ({}, {}, "", "")


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_treatment_code_matches_the_recommendation(path: Path) -> None:
    for case in load_cases(path):
        session = diagnose(build_session(case.get("session")))
        for finding in session.findings:
            alone = msgspec.structs.replace(session, findings=(finding,))
            for said in finding.prescriptions:
                if not said.treatment:
                    continue
                spec = with_default(parse(said.treatment), alone)
                written = prescription([parse(spec.text)])  # as a trial writes it, from the arm's id alone
                flags = {name: value for name, value in said.trainer_flags.items() if name != "strategy"}
                assert written.loader_args.items() >= said.loader_args.items(), spec.text
                assert written.trainer_flags.items() >= flags.items(), spec.text
