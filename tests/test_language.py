"""Texts and names use plain, standard terms; wordings that readers had to decode do not come back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PLAIN = {
    # Names: slang of this code base.
    "StepLook": "OperatorTracer",
    r"(?:import |probes\.|, )looks": "sampled_steps",
    "close_step": "instrumented_step",
    "census": "heap_diff",
    "Tally": "StepAggregator",
    "NoSpan": "NULL_SPAN",
    "stand_ins": "tensor_patches",
    "silence_hooks": "disable_hooks",
    "feeding(_of)?": "loader_step_model",
    r"(?:import |trials\.)(?:keeper|guests)": "process_supervisor, inject_callbacks",
    "passing_through": "iterate_loader",
    "climb(s|ing)?": "ladder_search",
    # Terms.
    "speed-ups?": "speedup",
    "prescrib(e|es|ed|ing)": "recommend",
    "prescriptions?": "recommendation",
    "processor time": "CPU time",
    "matrix products?": "matrix multiplication",
    "in (16|32) bits?": "in bf16, in fp32",
    "folding": "aggregation",
    "data is waited for": "data wait",
    "close(r)? looks?": "sampled step",
    "looked at": "sampled, observed, read",
    "(µs|us|ms|s|seconds|MiB|GiB|KiB|times|bytes) a (step|batch|sample|rank|second|run)": "per step",
    # Personification and inverted order.
    "(is|are|was|were|be|been) told": "is reported, notified",
    "told (of|that|apart|by|from)": "reported, distinguished",
    "tells (of|what|how|whether|which|nothing|apart)": "reports, states",
    "nobody (tells|told|looks|asks|asked)": "no one sends it",
    "(stands|stood) (at|in|beside|there|here|behind|among)": "is",
    "hangs? (itself|themselves) (in|into|on)": "registers",
    "(that|what) (is|are) to be": "name who must do it",
    "(what|which) (it|that|this|they) comes? to": "the total",
    "takes? (it|them|everything) out again": "restores",
    "knows? nothing of": "without",
    "nothing else (to do|meanwhile)|does nothing else": "otherwise idle",
    "what became of": "result",
    "is dear|are dear|dearer|dearest": "expensive",
    "(?<!sam-)mend(s|ed|ing)?": "fix",
    "the doctor": "PerfDoctor",
    "made-up|anew|afresh": "synthetic, new, again",
    "healthy training is told": "reports nothing",
    "the lecture|case study|the catalogue": "a source with a URL",
    # Spelling.
    "(synchron|util|optim|initial|normal|serial|recogn|general|minim|maxim)is(e|es|ed|er|ing|ation)": "-ize",
    "analys(e|ed|ing)|behaviours?|neighbours?|colours?|artefacts?|favours?": "American spelling",
}
"""Pattern of a wording → the plain one."""

FIELDS = ("prescriptions", "prescription", "Prescription", "utilisation", "Utilisation", "census", "synchronising")
"""Names of fields, records and rules in saved sessions, which stay."""

GENERATED = ("tests/golden/", "docs/rules/", "docs/benchmarks/mutation.md", "CHANGELOG.md", "tests/test_language.py")
"""Written from the package's texts, quoted, or history."""

FOLDERS = ("lightning_perf", "tests", "benchmarks", "docs", "examples", ".ci", ".github")
SUFFIXES = (".py", ".md", ".yml", ".yaml", ".toml", ".txt", "run", "Makefile")


def _pattern(*wordings: str) -> str:
    """Match whole words, parts of snake_case names, and wordings broken over two lines."""
    return r"(?<![A-Za-z])(?:" + "|".join(wordings).replace(" ", r"\s+(?:#\s*)?") + r")(?![A-Za-z])"


ANY = re.compile(_pattern(*PLAIN), re.IGNORECASE)


def found_in(text: str) -> list[str]:
    """Return the wordings in a text that should be plain."""
    return [match.group() for match in ANY.finditer(text) if match.group() not in FIELDS]


def plain_for(wording: str) -> str:
    """Return the plain term for a wording."""
    return next(plain for old, plain in PLAIN.items() if re.fullmatch(_pattern(old), wording, re.IGNORECASE))


def _files() -> list[Path]:
    inside = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    paths = [path for path in (*ROOT.iterdir(), *inside) if path.is_file() and path.name.endswith(SUFFIXES)]
    return [path for path in paths if not str(path.relative_to(ROOT)).startswith(GENERATED)]


def test_texts_use_plain_wordings() -> None:
    findings = []
    for path in sorted(_files()):
        text = path.read_text(encoding="utf-8")
        for match in ANY.finditer(text):
            if match.group() not in FIELDS:
                place = f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}"
                findings.append(f"{place}: {match.group()!r}: {plain_for(match.group())}")
    assert findings == []


@pytest.mark.parametrize(
    ("text", "wordings"),
    [
        ("The speed-up that is to be told of", ["speed-up", "that is to be", "told of"]),
        ("def test_step_is_looked_at(): ...", []),
        ("class StepLook:", ["StepLook"]),
        ("It takes 3 ms a\n    # step.", ["ms a\n    # step"]),
        ('"prescriptions": []', []),
        ("Return the index of the next step this probe needs.", []),
    ],
)
def test_wordings_are_found_in_texts_and_names(text: str, wordings: list[str]) -> None:
    assert found_in(text) == wordings
