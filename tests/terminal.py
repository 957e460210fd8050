"""A terminal that shows what programs leave on it."""

from __future__ import annotations

import io
import re

_SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")


class Screen:
    """A terminal of a given width that keeps all lines, and understands what progress bars send.

    Args:
        width: Columns.

    Attributes:
        wrapped: Lines that were longer than the terminal is wide.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.wrapped: list[str] = []
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0

    @property
    def lines(self) -> list[str]:
        """What is shown, without trailing blanks."""
        return ["".join(row).rstrip() for row in self._rows]

    def feed(self, text: str) -> None:
        """Show text, as a terminal would.

        Raises:
            ValueError: It has a control character that this terminal does not understand.
        """
        at = 0
        while at < len(text):
            sequence = _SEQUENCE.match(text, at)
            if sequence:
                self._control(*sequence.groups())
                at = sequence.end()
            else:
                self._character(text[at])
                at += 1

    def _control(self, argument: str, kind: str) -> None:
        count = int(argument) if argument.isdecimal() else 1
        if kind == "A":
            self._row = max(0, self._row - count)
        elif kind == "K":
            row = self._rows[self._row]
            del row[0 if argument == "2" else self._column :]
        elif kind not in "mhl":  # colors, and whether the cursor is visible
            raise ValueError(f"unknown sequence: ESC [ {argument} {kind}")

    def _character(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._row += 1
            if self._row == len(self._rows):
                self._rows.append([])
        elif character < " ":
            raise ValueError(f"unknown control character: {character!r}")
        else:
            if self._column == self.width:
                self.wrapped.append(self.lines[self._row])
                self._character("\r")
                self._character("\n")
            row = self._rows[self._row]
            row.extend(" " * (self._column + 1 - len(row)))
            row[self._column] = character
            self._column += 1


class TerminalFile(io.StringIO):
    """What is written on a terminal of 80 columns, and what stays on it."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        screen = Screen(80)
        screen.feed(self.getvalue().replace("\n", "\r\n"))  # as a terminal's driver does
        return screen.lines
