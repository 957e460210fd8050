"""Clean untrusted text of characters that could repaint a terminal or disguise a line."""

import re

_ESCAPE_SEQUENCE = re.compile("\x1b\\[[0-?]*[ -/]*[@-~]")
# Control characters can repaint a terminal, bidi marks can make a line read as another one.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def clean(text: str) -> str:
    """Return the text without control characters, escape sequences and bidi marks; tabs and line ends stay."""
    if text.isprintable():
        return text
    return _UNSAFE.sub("", _ESCAPE_SEQUENCE.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def clean_line(text: str, limit: int = 400) -> str:
    """Return the text as one line of at most ``limit`` characters, cleaned."""
    return " ".join(clean(text[: 4 * limit]).split())[:limit]
