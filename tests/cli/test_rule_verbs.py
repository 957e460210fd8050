from __future__ import annotations

import json

import pytest

from lightning_perf.cli import rules as rules_verb
from lightning_perf.rules.engine import all_rules
from tests.cli.command_line import call

RULES = tuple(rule for rule in all_rules() if rule.code in ("PD101", "PD502"))
DOCS = RULES[0].docs


@pytest.fixture(autouse=True)
def _two_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_verb, "all_rules", lambda: RULES)


@pytest.mark.parametrize("wanted", ["PD101", "pd101", "starved-by-loader", "Starved-By-Loader"])
def test_explain_prints_the_docs_of_the_rule(
    wanted: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "explain", wanted) == 0
    assert capsys.readouterr().out == f"# PD101 starved-by-loader\n\n{DOCS}"


def test_explain_prints_json_when_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "explain", "PD101", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "code": "PD101", "name": "starved-by-loader", "category": "data", "docs": DOCS,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [
        ("PD1", "did you mean PD101 starved-by-loader?"),
        ("PD011", "PD101 starved-by-loader"),
        ("loging-every-step", "PD502 logging-every-step"),
        ("zzzz", "all of them"),
    ],
)
def test_explain_names_close_rules_when_the_code_is_unknown(
    wanted: str, hint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "explain", wanted) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"lightning-perf: there is no rule '{wanted}'; ")
    assert hint in error
    assert "lightning-perf rules" in error


def test_rules_lists_code_category_and_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "rules") == 0
    assert capsys.readouterr().out == "PD101  data  starved-by-loader\nPD502  host  logging-every-step\n"


def test_rules_prints_json_when_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "rules", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [rule["code"] for rule in listed] == ["PD101", "PD502"]
    assert listed[0]["name"] == "starved-by-loader"


def test_verbs_are_functions_that_the_command_line_names() -> None:
    assert callable(rules_verb.explain)
    assert callable(rules_verb.rules)
