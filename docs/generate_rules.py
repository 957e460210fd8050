"""Write docs/rules/ from the rules: an index and one page per rule.

python docs/generate_rules.py
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from lightning_perf.rules.engine import all_rules
from lightning_perf.rules.rule import Rule

FOLDER = Path(__file__).parent / "rules"
NOTE = "<!-- Made by docs/generate_rules.py from the Markdown file beside the rule; change it there. -->\n"


def pages() -> dict[str, str]:
    """Return all pages by file name."""
    return {"index.md": _index(all_rules())} | {f"{rule.code}.md": _page(rule) for rule in all_rules()}


def _index(rules: tuple[Rule, ...]) -> str:
    lines = [
        NOTE,
        "# Rules",
        "",
        "Each rule has a result for every session: a finding, passed, or skipped with the reason. "
        'Choose by code or prefix: `PerfDoctor(select=["PD1"], ignore=["PD105"])`; the longest match decides.',
        "",
        "A rule marked *preflight* is also checked before the first step, from settings alone. "
        "Every constant that rules use is in the [table of thresholds](../reference/thresholds.md).",
    ]
    for category, members in groupby(rules, key=lambda rule: rule.category):
        lines += ["", f"## {category}", "", "| code | name | what it measures | |", "|---|---|---|---|"]
        for rule in members:
            mark = "preflight" if rule.preflight else ""
            lines.append(f"| [{rule.code}]({rule.code}.md) | {rule.name} | {_first_sentence(rule)} | {mark} |")
    return "\n".join(lines) + "\n"


def _page(rule: Rule) -> str:
    return f"{NOTE}\n# {rule.code} {rule.name}\n\nCategory: {rule.category}\n\n{rule.docs.rstrip()}\n"


def _first_sentence(rule: Rule) -> str:
    paragraph = rule.docs.split("## What it measures\n", 1)[1].split("\n\n", 1)[0]
    return paragraph.replace("\n", " ").split(". ", 1)[0].rstrip(".") + "."


def main() -> None:
    """Write changed pages and remove pages of rules that no longer exist."""
    FOLDER.mkdir(exist_ok=True)
    wanted = pages()
    for path in FOLDER.glob("*.md"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
