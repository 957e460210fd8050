"""``lightning-perf rules`` and ``lightning-perf explain``: the list of rules, and the documentation of one."""

import difflib
import json
import sys
from typing import Annotated

import typer

from lightning_perf.errors import ConfigError
from lightning_perf.rules.engine import all_rules
from lightning_perf.rules.rule import Rule

from .output import write_stdout

_MAX_SUGGESTED = 3


def rules(as_json: Annotated[bool, typer.Option("--json", help="For programs: a list of objects.")] = False) -> None:
    """List all rules; `lightning-perf explain CODE` explains one."""
    listed = all_rules()
    if as_json:
        fields = [{"code": rule.code, "name": rule.name, "category": rule.category} for rule in listed]
        write_stdout(json.dumps(fields, indent=1))
        return
    width = max((len(rule.category) for rule in listed), default=0)
    write_stdout("\n".join(f"{rule.code}  {rule.category:<{width}}  {rule.name}" for rule in listed))


def explain(
    code: Annotated[str, typer.Argument(metavar="CODE", help="A rule's code or name: PD101, starved-by-loader.")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs: code, name, category and docs.")] = False,
) -> None:
    """Explain a rule: what it measures, why it matters, what to do, and when it is wrong."""
    rule = _find(code)
    if as_json:
        fields = {"code": rule.code, "name": rule.name, "category": rule.category, "docs": rule.docs}
        write_stdout(json.dumps(fields, indent=1))
        return
    text = f"# {rule.code} {rule.name}\n\n{rule.docs.strip()}\n"
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        console = Console()
        console.print(Markdown(text), width=min(console.width, 100))
    else:
        write_stdout(text)


def _find(wanted: str) -> Rule:
    known = {name.casefold(): rule for rule in all_rules() for name in (rule.code, rule.name)}
    folded = wanted.casefold()
    if folded in known:
        return known[folded]
    begun = [name for name in known if wanted and name.startswith(folded)][:_MAX_SUGGESTED]
    close = begun or difflib.get_close_matches(folded, known, n=_MAX_SUGGESTED, cutoff=0.5)
    names = ", ".join(dict.fromkeys(f"{known[name].code} {known[name].name}" for name in close))
    hint = f"did you mean {names}? All of them:" if names else "all of them:"
    raise ConfigError(f"there is no rule {wanted!r}; {hint} lightning-perf rules")
