"""What was known when memory ran out."""

from collections.abc import Iterator, Sequence

from lightning_perf.records import OutOfMemory, Session
from lightning_perf.reports.cells import number as number_cell
from lightning_perf.reports.cells import size as size_cell
from lightning_perf.reports.document import (
    AnyPart,
    Code,
    Document,
    Section,
    Verdict,
    facts,
    listing,
    note,
    section,
    table,
)
from lightning_perf.reports.wording import count, line, phase_name, size

from .memory import memory_parts, memory_title, peaks_fact
from .verdict import step_word

WHERE = {
    "device": "the device ran out of memory",
    "host": "the host ran out of memory",
    "worker": "a DataLoader worker was killed, as the kernel does when the host runs out of memory",
    "shm": "the shared memory for batches of DataLoader workers ran out",
}
_CURVE_WIDTH = 60
_CURVE_HEIGHT = 8


def post_mortem_document(session: Session) -> Document:
    """Return the post-mortem of a session whose ``memory.oom`` is set."""
    oom = session.memory.oom
    assert oom is not None
    advice = [p.summary for f in session.findings if f.code == "PD408" for p in f.prescriptions]
    files = (("allocation history for torch.cuda._memory_viz", oom.snapshot_file), ("this text", oom.post_mortem_file))
    return Document(
        Verdict(f"post-mortem: {WHERE[oom.where]}", "memory", "high"),
        (),
        (
            section("oom", "What happened", _what_happened(session, oom)),
            section("advice", "What to do", [listing(advice)]),
            section("memory", memory_title(session.memory.breakdown), memory_parts(session)),
            section("tensors", "Largest live tensors", [table(("tensor", "size", "type"), [
                (line(t.name, 60) or "unnamed", size_cell(t.n_bytes), f"{t.dtype} {_shape(t.shape)}")
                for t in oom.largest_tensors
            ])]),
            section("lines", "Memory held, by allocating line", [table(("line", "size", "blocks"), [
                (line(s.where, 80), size_cell(s.n_bytes), number_cell(s.n)) for s in oom.history_sites
            ])]),
            *_curves(oom),
            section("files", "Files", [listing(f"{name}: {line(file, 80)}" for name, file in files if file)]),
        ),
    )  # fmt: skip


def _what_happened(session: Session, oom: OutOfMemory) -> Iterator[AnyPart]:
    yield note(line(oom.error, 400), "strong")
    yield facts([f"after {count(oom.step, step_word(session))}", *circumstances(oom)])
    yield facts([peaks_fact(session)])


def circumstances(oom: OutOfMemory) -> list[str]:
    """Return where memory ran out, how much was requested, and the batch."""
    texts = [f"in {phase_name(oom.phase)}"] if oom.phase else []
    if oom.requested_bytes is not None:
        texts.append(f"{size(oom.requested_bytes)} requested")
    for name, shape in list(oom.batch_shapes.items())[:4]:
        texts.append(f"batch{'' if name == 'batch' else ' ' + line(name, 30)}: {_shape(shape)}")
    if oom.code:
        texts.append(f"at {line(oom.code, 80)}")
    return texts


def _curves(oom: OutOfMemory) -> Iterator[Section]:
    for key, title, points in (("timeline", "Memory at steps", oom.timeline),
                               ("history", "Memory at allocations", oom.history)):  # fmt: skip
        if len(points) > 1:
            rows = curve(points, _CURVE_WIDTH, _CURVE_HEIGHT)
            yield Section(key, f"{title} {points[0][0]:,} to {points[-1][0]:,}", (Code(tuple(rows), language=""),))


def curve(points: Sequence[tuple[int, int]], width: int, height: int) -> list[str]:
    """Return points as a column chart of text; each column is the maximum of its range."""
    first, last = points[0][0], points[-1][0]
    columns = [0] * width
    for position, value in points:
        column = min(width - 1, int((position - first) / max(1, last - first) * width))
        columns[column] = max(columns[column], value)
    # A column between two readings repeats the one before it.
    for i in range(1, width):
        columns[i] = columns[i] or columns[i - 1]
    highest = max(columns) or 1
    rows = []
    for level in range(height, 0, -1):
        bar = "".join("█" if value >= highest * (level - 0.5) / height else " " for value in columns)
        label = size(highest) if level == height else "0 B" if level == 1 else ""
        rows.append(f"{label:>10} {bar}".rstrip())
    return rows


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
