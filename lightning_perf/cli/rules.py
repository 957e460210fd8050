"""``lightning-perf rules``: the list of rules."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from lightning_perf.rules.engine import all_rules

from .output import write_stdout


def rules(as_json: Annotated[bool, typer.Option("--json", help="For programs: a list of objects.")] = False) -> None:
    """Lists all rules; `lightning-perf explain CODE` tells more of one."""
    listed = all_rules()
    if as_json:
        fields = [{"code": rule.code, "name": rule.name, "category": rule.category} for rule in listed]
        write_stdout(json.dumps(fields, indent=1))
        return
    width = max((len(rule.category) for rule in listed), default=0)
    write_stdout("\n".join(f"{rule.code}  {rule.category:<{width}}  {rule.name}" for rule in listed))
