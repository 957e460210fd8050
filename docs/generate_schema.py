"""Make reference/session-schema.json and .md from the records."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import msgspec

from lightning_perf import records
from lightning_perf.records import SCHEMA_VERSION, Comparison, Session

INTRODUCTION = f"""\
# The session file

`perf_session.json` holds all measurements and findings of one run. This page lists its records field by field,
as of `schema_version` {SCHEMA_VERSION}; [session-schema.json](session-schema.json) is the same as JSON Schema
(2020-12).

- An older file is read and upgraded by newer versions of lightning-perf; a newer one is refused with a message.
  Ignore unknown fields: a version may add some without a new `schema_version`.
- Names end with their unit: `_s` seconds, `_us` microseconds, `_bytes`, `_fraction` and `share` in 0…1, `_w`
  watts, `_j` joules. A missing measurement is `null`, never 0, and `missing` says why.
- In Python, `lightning_perf.load(path)` reads it into these records; it needs neither torch nor lightning.

```python
from lightning_perf import load

session = load("lightning_logs/version_0")
print(session.verdict.text, session.steady.step_s.p50)
```

`lightning-perf compare --json` prints a [Comparison](#comparison), `lightning-perf trial --json` a [Trial](#trial),
`lightning-perf analyze --json` a list of [TraceRecord](#tracerecord).
"""

_SECTION = re.compile(r"^Attributes:\n((?:    .*\n|\n)*)", re.MULTILINE)
_FIELD = re.compile(r"^    (\w+): (.*(?:\n        .*)*)", re.MULTILINE)


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a session; its definitions include a comparison."""
    (session, _), definitions = msgspec.json.schema_components([Session, Comparison], ref_template="#/$defs/{name}")
    for name, one in definitions.items():
        summary, fields = described(getattr(records, name))
        one["description"] = summary
        for field, text in fields.items():
            if field in one.get("properties", {}):
                one["properties"][field]["description"] = text
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "lightning-perf session"}
    return {**head, **session, "$defs": dict(sorted(definitions.items()))}


def described(record: type) -> tuple[str, dict[str, str]]:
    """Return the text of a record's docstring, and the description of each field."""
    text = inspect.cleandoc(record.__doc__ or "") + "\n"
    section = _SECTION.search(text)
    fields = {} if section is None else {name: _joined(told) for name, told in _FIELD.findall(section[1])}
    summary = text if section is None else text[: section.start()]
    return "\n\n".join(_joined(part) for part in summary.strip().split("\n\n")), fields


def page(document: dict[str, Any]) -> str:
    """Return the schema as tables: the session first, then the records inside it."""
    definitions = document["$defs"]
    order = ["Session", *(name for name in definitions if name != "Session")]
    lines = [INTRODUCTION]
    for name in order:
        one = definitions[name]
        lines.append(f"## {name}\n\n{_prose(one['description'])}\n")
        lines.append("| field | type | |\n|:--|:--|:--|")
        required = set(one.get("required", ()))
        for field, told in one.get("properties", {}).items():
            optional = "" if field in required else " *(optional)*"
            lines.append(f"| `{field}` | {_type(told)}{optional} | {_prose(told.get('description', '')).strip()} |")
        lines.append("")
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """Return both files by name."""
    document = schema()
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    return {"session-schema.json": text, "session-schema.md": page(document)}


def _joined(text: str) -> str:
    return " ".join(text.split())


def _prose(text: str) -> str:
    """Return text of a docstring as Markdown; a bar would end a table's cell."""
    return text.replace("``", "`").replace("|", "\\|")


def _type(told: dict[str, Any]) -> str:
    if "$ref" in told:
        name = told["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in told:
        return " or ".join(dict.fromkeys(_type(one) for one in told["anyOf"]))
    if "enum" in told:
        return " or ".join(f"`{json.dumps(one)}`" for one in told["enum"])
    kind = told.get("type", "anything")
    if kind == "array":
        return "list of " + (_type(told["items"]) if told.get("items") else "anything")
    if kind == "object":
        values = told.get("additionalProperties")
        return "object" + (f" of {_type(values)}" if values else "")
    return str(kind)
