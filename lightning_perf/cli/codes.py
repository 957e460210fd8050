"""How a verb ends, as the shell is told. 0: fine."""

from __future__ import annotations

from typing import Final

FOUND: Final = 1
"""What it was asked to fail on, or to show, came out otherwise: a regression, another fault than the planted one."""

BAD_INPUT: Final = 2
"""The input is to blame, or a part of it: one line on standard error says why."""

INTERRUPTED: Final = 130
"""Ctrl-C, as shells have it."""
