"""Every example runs and says what it promises."""

import importlib.util
import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run_main(name):
    specification = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.main()


def test_first_diagnosis_names_the_loader(capsys):
    session = run_main("01_first_diagnosis")

    assert session.verdict.code == "PD101"
    assert re.search(r"Verdict: .* of each step waits for data", capsys.readouterr().out)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_example_is_run_by_a_test(path):
    assert f'"{path.stem}"' in Path(__file__).read_text()
