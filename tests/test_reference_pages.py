"""The reference pages that the docs build generates."""

from __future__ import annotations

import importlib.util
import json
import re
from importlib import metadata
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from reports.sessions import SESSIONS
from typer.testing import CliRunner

from lightning_perf.cli.app import COMMANDS, app
from lightning_perf.records import Session
from lightning_perf.rules.engine import all_rules

DOCS = Path(__file__).parents[1] / "docs"


def generator(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_schema_page_has_a_section_for_each_record() -> None:
    pages = generator("generate_schema").pages()
    document = json.loads(pages["session-schema.json"])
    assert document == json.loads(json.dumps(generator("generate_schema").schema()))
    assert all(f"\n## {name}\n" in pages["session-schema.md"] for name in document["$defs"])


def test_docs_say_that_installation_changes_the_progress_bar_when_rich_is_required() -> None:
    page = (DOCS / "how-to" / "results.md").read_text(encoding="utf-8")
    requires_rich = any(re.match(r"rich\b", each) for each in metadata.requires("lightning-perf") or ())
    told = "It installs `rich`, and Lightning 2.6 uses `RichProgressBar`"
    assert (told in " ".join(page.split())) is requires_rich


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_on_the_page_is_in_the_help(command: str) -> None:
    page = generator("generate_cli").page()
    section = re.split(r"^## ", page, flags=re.MULTILINE)[1 + list(COMMANDS).index(command)]
    told = set(re.findall(r"--[a-z-]+", "\n".join(re.findall(r"^\| `(.*?)` \|", section, re.MULTILINE))))
    done = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "300", "NO_COLOR": "1"})
    assert done.exit_code == 0
    shown = done.output
    assert told == set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", shown.partition("Options:")[2])) - {"--help"}


def test_schema_describes_every_field_by_a_record_that_it_holds() -> None:
    document = generator("generate_schema").schema()
    definitions = document["$defs"]
    assert document["$ref"] == "#/$defs/Session"
    assert set(re.findall(r'"#/\$defs/(\w+)"', json.dumps(document))) <= set(definitions)
    assert set(definitions["Session"]["properties"]) == set(Session.__struct_fields__)
    assert {"Comparison", "Trial", "TraceRecord"} <= set(definitions)
    assert all(one["description"] for one in definitions.values())


@pytest.mark.parametrize("name", SESSIONS)
def test_schema_holds_for_sessions(name: str) -> None:
    document = generator("generate_schema").schema()
    session = json.loads(msgspec.json.encode(SESSIONS[name]()))
    if name == "hostile":  # holds a NaN, which no file may
        return
    assert list(mismatches(session, document, document["$defs"], "session")) == []


def mismatches(value, told, definitions, path):
    """Return where a value does not match a schema, for the keywords that these schemas use."""
    if "$ref" in told:
        told = definitions[told["$ref"].rpartition("/")[2]]
    if "anyOf" in told:
        if all(list(mismatches(value, one, definitions, path)) for one in told["anyOf"]):
            yield f"{path}: {value!r} is none of its kinds"
        return
    if "enum" in told and value not in told["enum"]:
        yield f"{path}: {value!r}"
    kinds = {
        "string": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict, "array": list,
        "null": type(None), None: object,
    }  # fmt: skip
    kind = told.get("type")
    if not isinstance(value, kinds[kind]) or (isinstance(value, bool) and kind in ("integer", "number")):
        yield f"{path}: {value!r} is no {kind}"
    elif kind == "array" and isinstance(told.get("items"), dict):
        for i, one in enumerate(value):
            yield from mismatches(one, told["items"], definitions, f"{path}[{i}]")
    elif kind == "object":
        properties, more = told.get("properties", {}), told.get("additionalProperties")
        for name in set(told.get("required", ())) - set(value):
            yield f"{path}.{name} is missing"
        for name, one in value.items():
            if name in properties:
                yield from mismatches(one, properties[name], definitions, f"{path}.{name}")
            elif isinstance(more, dict):
                yield from mismatches(one, more, definitions, f"{path}.{name}")


def test_each_rule_about_a_training_is_on_a_page_by_symptom() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "how-to").glob("*.md"))
    rules = [rule for rule in all_rules() if rule.category != "quality"]  # those are about the measurement
    assert [rule.code for rule in rules if f"(../rules/{rule.code}.md)" not in pages] == []


def test_no_page_of_the_build_is_also_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    assert [path for path in generator("build_hook").pages() if (DOCS / path).exists()] == []
