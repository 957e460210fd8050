"""What was known when memory ran out: for the screen, and as text for a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from lightning_perf.records import OutOfMemory, Session

from . import summary, wording
from .page import Page

_WHERE = {
    "device": "the device's memory ran out",
    "host": "the host's memory ran out",
    "worker": "a DataLoader worker was killed, as the kernel does when the host's memory runs out",
    "shm": "the shared memory that DataLoader workers pass batches through ran out",
}
_CURVE_WIDTH = 60
_CURVE_HEIGHT = 8


def post_mortem(session: Session) -> PostMortem:
    """The post-mortem, to be given to ``emit`` or ``to_text``.

    Args:
        session: One whose ``memory.oom`` is set.
    """
    assert session.memory.oom is not None
    return PostMortem(session, session.memory.oom)


class PostMortem:
    """Draws it; adapts to the console's width and encoding."""

    def __init__(self, session: Session, oom: OutOfMemory) -> None:
        self._session = session
        self._oom = oom

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        session, oom, page = self._session, self._oom, Page(options)
        yield page.title(f"PerfDoctor post-mortem: {_WHERE[oom.where]}")
        yield page.text(wording.line(oom.error, 400))
        yield page.facts(self._circumstances())
        in_use = summary.memory_fact(session)
        if in_use:
            yield page.quiet(in_use)
        yield from page.memory(session)
        if oom.largest_tensors:
            yield page.title("The largest live tensors")
            yield page.table([
                (wording.size(t.n_bytes), f"{t.dtype} {_shape(t.shape)}", wording.line(t.name, 60) or "not named")
                for t in oom.largest_tensors
            ])  # fmt: skip
        if oom.history_sites:
            yield page.title("Held at the end, by the line that asked for it")
            yield page.table([
                (wording.size(s.n_bytes), wording.count(s.n, "block"), wording.line(s.where, 80))
                for s in oom.history_sites
            ])  # fmt: skip
        yield from self._curves(page)
        advice = [p.summary for f in session.findings if f.code == "PD408" for p in f.prescriptions]
        if advice:
            yield page.title("What to do")
            for each in advice:
                yield page.text(f"- {wording.line(each, 300)}")
        if oom.snapshot_file:
            yield page.quiet(f"history for torch's viewer: {wording.line(oom.snapshot_file, 80)}")
        if oom.post_mortem_file:
            yield page.quiet(f"this text: {wording.line(oom.post_mortem_file, 80)}, in the run's folder")

    def _circumstances(self) -> list[str]:
        oom = self._oom
        facts = [f"after {wording.count(oom.step, 'step')}"]
        if oom.phase:
            facts.append(f"in {wording.phase_name(oom.phase)}")
        if oom.code:
            facts.append(f"at {wording.line(oom.code, 80)}")
        if oom.requested_bytes is not None:
            facts.append(f"{wording.size(oom.requested_bytes)} asked for")
        for name, shape in list(oom.batch_shapes.items())[:4]:
            place = "" if name == "batch" else f" {wording.line(name, 30)}"
            facts.append(f"batch{place}: {_shape(shape)}")
        return facts

    def _curves(self, page: Page) -> Iterator[Text]:
        for title, points in (("Memory over the steps", self._oom.timeline),
                              ("Memory over the last allocations", self._oom.history)):  # fmt: skip
            if len(points) < 2:
                continue
            yield page.title(f"{title} {points[0][0]:,} to {points[-1][0]:,}")
            for row in curve(points, _CURVE_WIDTH, _CURVE_HEIGHT):
                yield page.text(row)


def curve(points: Sequence[tuple[int, int]], width: int, height: int) -> list[str]:
    """Points as a column chart of text: each column the highest value of its stretch, from 0 to the highest of all."""
    first, last = points[0][0], points[-1][0]
    columns = [0] * width
    for position, value in points:
        column = min(width - 1, int((position - first) / max(1, last - first) * width))
        columns[column] = max(columns[column], value)
    # A column between two readings stands as high as the one before it.
    for i in range(1, width):
        columns[i] = columns[i] or columns[i - 1]
    highest = max(columns) or 1
    rows = []
    for level in range(height, 0, -1):
        bar = "".join("█" if value >= highest * (level - 0.5) / height else " " for value in columns)
        label = wording.size(highest) if level == height else "0 B" if level == 1 else ""
        rows.append(f"{label:>10} {bar}".rstrip())
    return rows


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "scalar"
