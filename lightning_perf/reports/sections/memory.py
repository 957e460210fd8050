"""The memory in use: its components, its course over a step, and its growth."""

from collections.abc import Iterator
from typing import NamedTuple

from lightning_perf.records import Breakdown, DeviceMemory, Growth, Headroom, ModuleMemory, Session
from lightning_perf.reports.cells import PAGE, TAB, Column, Heads, Rows, Value, number
from lightning_perf.reports.cells import size as size_cell
from lightning_perf.reports.document import AnyPart, Figure, Table, facts, table
from lightning_perf.reports.wording import count, line, share, size
from lightning_perf.rules.step_signals import is_batch_unread

_MAX_MODULES = 6
_MIN_SHARE = 0.005
MAX_TIMES = 100
"""The largest batch is not shown beyond this multiple of the present one: memory does not limit such batches."""


class MemoryRow(NamedTuple):
    """One component of the memory in use.

    Attributes:
        name: Name of the component, such as "gradients".
        share: Fraction of the sum of all components.
        note: How the size was obtained, if it was not counted; else empty.
    """

    name: str
    n_bytes: int
    share: float
    note: str


def memory_parts(session: Session) -> Iterator[AnyPart]:
    """Yield the peak by component and module, memory per phase, growth, and the largest batch that fits."""
    memory = session.memory
    yield _devices(session)
    if memory.oom is not None:
        yield Figure("memory_before_oom", "Memory before it ran out")
    if memory.breakdown is not None:
        yield from breakdown_parts(memory.breakdown)
    yield facts(phase_facts(session), "By phase")
    yield _phases(session)
    yield facts([growth_text(growth) for growth in memory.growth], "Growth")
    yield _growth(session)
    if not is_batch_unread(session):
        yield facts([headroom_fact(memory.headroom)], "Batch size")


def breakdown_parts(breakdown: Breakdown) -> Iterator[AnyPart]:
    """Yield the components of the memory in use, and the modules that hold most."""
    cells = [(row.name, Value(share(row.share, decimals=1), row.share), size_cell(row.n_bytes), row.note)
             for row in memory_rows(breakdown)]  # fmt: skip
    yield table(("component", "share", "size", "basis"), cells, key="holds", bars="size", bars_min_width=PAGE)
    yield facts(module_facts(breakdown), "By module")
    rows: Rows = [
        (name, *map(size_cell, (total, each.parameters_bytes, each.gradients_bytes, each.optimizer_bytes,
                                each.buffers_bytes, each.activations_bytes)))
        for name, total, each in _by_module(breakdown)
    ]  # fmt: skip
    heads: Heads = ("module", "total", "parameters", "gradients", "optimizer", "buffers", "activations")
    yield table(heads, rows, title="Memory by module", key="memory-modules", min_width=PAGE, bars="total")


def _devices(session: Session) -> Table:
    rows: Rows = [
        (each.device, size_cell(each.peak_allocated_bytes), size_cell(each.peak_reserved_bytes),
         size_cell(each.total_bytes), size_cell(each.inactive_split_bytes), number(each.alloc_retries))
        for each in session.memory.devices
    ]  # fmt: skip
    heads: Heads = (
        "device",
        "peak allocated",
        "peak reserved",
        "total",
        "inactive split",
        Column("allocation retries", TAB),
    )
    return table(heads, rows, title="Devices", key="devices", min_width=PAGE)


def _phases(session: Session) -> Table:
    """Return the memory after each phase: of the first device with readings, else of the host."""
    host, device = session.memory.host, _sampled_device(session)
    key, title = "memory-phases", f"Memory by phase of the step ({device.device if device is not None else 'host'})"
    if device is None:
        rows: Rows = [(f"after {each.phase}", size_cell(each.rss_bytes), number(each.n))
                      for each in (host.phases if host is not None else ())]  # fmt: skip
        heads: Heads = ("phase", "resident", "sampled steps")
        return table(heads, rows, title=title, key=key, min_width=PAGE, bars="resident")
    rows = [
        (f"after {each.phase}", size_cell(each.allocated_bytes), size_cell(each.reserved_bytes),
         size_cell(each.peak_bytes or None), number(each.n))
        for each in device.phases
    ]  # fmt: skip
    heads = ("phase", "allocated", "reserved", "peak raised here", "sampled steps")
    return table(heads, rows, title=title, key=key, min_width=PAGE, bars="allocated")


def _growth(session: Session) -> Table:
    rows: Rows = [
        (each.where, size_cell(1000 * each.bytes_per_step),
         f"{size(1000 * each.low_bytes_per_step)} to {size(1000 * each.high_bytes_per_step)}",
         "yes" if grows(each) else "no", number(each.n), f"{each.first_step:,} to {each.last_step:,}")
        for each in session.memory.growth
    ]  # fmt: skip
    heads: Heads = ("memory", "per 1,000 steps", "95 % CI", "steady growth", "readings", "steps")
    return table(heads, rows, title="Memory growth", key="growth", min_width=PAGE, bars="per 1,000 steps")


def memory_rows(breakdown: Breakdown) -> list[MemoryRow]:
    """Return the components, largest first, without those below half a percent."""
    parts = [
        ("parameters", breakdown.parameters_bytes, ""),
        ("gradients", breakdown.gradients_bytes, _unless_held(breakdown.gradients_basis)),
        ("optimizer states", breakdown.optimizer_bytes, _unless_held(breakdown.optimizer_basis)),
        ("buffers", breakdown.buffers_bytes, ""),
        ("copies in callbacks", breakdown.copies_bytes, ""),
        ("batch", breakdown.batch_bytes, ""),
        ("activations", breakdown.activations_bytes, _activations_note(breakdown)),
        ("rest of the peak", breakdown.rest_bytes, "temporary buffers and other tensors"),
        ("reserved, unused", breakdown.cache_bytes, "reserved beyond the peak"),
    ]
    held = [(name, n_bytes, note) for name, n_bytes, note in parts if n_bytes and n_bytes > 0]
    total = sum(n_bytes for _, n_bytes, _ in held)
    rows = [MemoryRow(n, b, b / total, note) for n, b, note in held if b >= _MIN_SHARE * total]
    return sorted(rows, key=lambda row: -row.n_bytes)


def memory_title(breakdown: Breakdown | None) -> str:
    """Return the heading of the section."""
    if breakdown is None or not memory_rows(breakdown):
        return "Memory"
    where = "host" if breakdown.device.startswith("cpu") else line(breakdown.device, 16)
    if breakdown.peak_bytes:
        cache = f", {size(breakdown.cache_bytes)} cached" if breakdown.cache_bytes else ""
        return f"Memory ({where}): peak {size(breakdown.peak_bytes)}{cache}"
    return f"Memory ({where}): {size(sum(row.n_bytes for row in memory_rows(breakdown)))} in tensors"


def module_facts(breakdown: Breakdown) -> list[str]:
    """Return the modules that hold most, activations included."""
    ordered = _by_module(breakdown)
    if len(ordered) < 2:
        return []
    shown = [f"{line(name, 40)} {size(total)}" for name, total, _ in ordered[:_MAX_MODULES]]
    rest = len(ordered) - _MAX_MODULES
    return [*shown, count(rest, "more module")] if rest > 0 else shown


def _by_module(breakdown: Breakdown) -> list[tuple[str, int, ModuleMemory]]:
    """Return name, size and parts of the modules that hold memory, largest first."""
    totals = [
        (each.name or "outside its modules", each.parameters_bytes + each.gradients_bytes + each.optimizer_bytes
         + each.buffers_bytes + (each.activations_bytes or 0), each)
        for each in breakdown.modules
    ]  # fmt: skip
    return sorted((each for each in totals if each[1]), key=lambda each: -each[1])


def phase_facts(session: Session) -> list[str]:
    """Return memory after each phase of the step: of the first device with readings, else of the host."""
    host, device = session.memory.host, _sampled_device(session)
    if device is None:
        return [f"after {p.phase} {size(p.rss_bytes)} resident" for p in (host.phases if host is not None else ())]
    texts = [f"after {p.phase} {size(p.allocated_bytes)}" for p in device.phases]
    return [*texts, f"peak in {device.peak_phase}"] if device.peak_phase else texts


def _sampled_device(session: Session) -> DeviceMemory | None:
    """Return the first device whose memory was sampled within steps; None without one."""
    return next((each for each in session.memory.devices if each.phases), None)


def headroom_fact(headroom: Headroom | None) -> str:
    """Return the largest batch size that should fit; empty if it is not known or too large to be of use."""
    if headroom is None or headroom.largest_batch > MAX_TIMES * max(1, headroom.n_samples):
        return ""
    largest = int(float(f"{headroom.largest_batch:.4g}"))
    return f"largest batch that fits: about {largest:,} (now {headroom.n_samples:,})"


def peaks_fact(session: Session) -> str:
    """Return the peaks of device and host memory; empty if none was read."""
    parts = []
    for device in session.memory.devices[:4]:
        of_total = f" of {size(device.total_bytes)}" if device.total_bytes else ""
        parts.append(
            f"{line(device.device, 16)} peak {size(device.peak_allocated_bytes)} allocated, "
            f"{size(device.peak_reserved_bytes)} reserved{of_total}"
        )
    if len(session.memory.devices) > 4:
        parts.append(count(len(session.memory.devices) - 4, "more device"))
    if session.memory.host_peak_rss_bytes is not None:
        parts.append(f"host peak {size(session.memory.host_peak_rss_bytes)}")
    return "; ".join(parts)


def growth_text(growth: Growth) -> str:
    """Return the growth per 1,000 steps, or that there is none."""
    where = line(growth.where, 16)
    if not grows(growth):
        return f"{where}: no steady growth in {count(growth.n, 'reading')}"
    slope, low, high = (
        size(1000 * each) for each in (growth.bytes_per_step, growth.low_bytes_per_step, growth.high_bytes_per_step)
    )
    same_unit = " " + high.rpartition(" ")[2]
    return f"{where} memory grows {slope} per 1,000 steps (95 % CI {low.removesuffix(same_unit)}–{high})"


def grows(growth: Growth) -> bool:
    """Return whether memory grew steadily."""
    return growth.is_steady and growth.low_bytes_per_step > 0


def _unless_held(basis: str) -> str:
    return "" if basis == "held" else line(basis, 120)


def _activations_note(breakdown: Breakdown) -> str:
    note = line(breakdown.activations_basis, 120)
    return f"{note}, batch of {breakdown.n_samples}" if breakdown.n_samples and breakdown.activations_bytes else note
