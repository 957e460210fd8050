"""What reports say of memory, worked out once: what it holds, by phase, what would still fit."""

from __future__ import annotations

from typing import NamedTuple

from lightning_perf.records import Breakdown, Growth, Headroom, Session

from .wording import count, line, share, size

_MAX_MODULES = 6
_PART_SHARE = 0.005


class MemoryRow(NamedTuple):
    """One part of the memory in use.

    Attributes:
        name: As shown.
        n_bytes: Its size.
        share: Of all parts together.
        note: How it is known, where it was not counted; empty otherwise.
    """

    name: str
    n_bytes: int
    share: float
    note: str


def memory_rows(breakdown: Breakdown) -> list[MemoryRow]:
    """The parts, largest first; those under half a percent are left out."""
    parts = [
        ("parameters", breakdown.parameters_bytes, ""),
        ("gradients", breakdown.gradients_bytes, _unless_held(breakdown.gradients_basis)),
        ("optimizer states", breakdown.optimizer_bytes, _unless_held(breakdown.optimizer_basis)),
        ("buffers", breakdown.buffers_bytes, ""),
        ("copies in callbacks", breakdown.copies_bytes, ""),
        ("batch", breakdown.batch_bytes, ""),
        ("activations", breakdown.activations_bytes, _activations_note(breakdown)),
        ("the rest of the peak", breakdown.rest_bytes, "temporary buffers and what nobody named"),
        ("allocator cache", breakdown.cache_bytes, "reserved beyond the peak"),
    ]
    total = sum(n_bytes or 0 for _, n_bytes, _ in parts)
    rows = [MemoryRow(n, b, b / total, note) for n, b, note in parts if b and b >= _PART_SHARE * total]
    return sorted(rows, key=lambda row: -row.n_bytes)


def memory_title(breakdown: Breakdown) -> str:
    """What the rows are about."""
    where = "the host" if breakdown.device.startswith("cpu") else line(breakdown.device, 16)
    if breakdown.peak_bytes:
        cache = f" and {size(breakdown.cache_bytes)} of cache" if breakdown.cache_bytes else ""
        return f"What memory holds on {where}: {size(breakdown.peak_bytes)} at the peak{cache}"
    return f"What memory holds on {where}: {size(sum(row.n_bytes for row in memory_rows(breakdown)))} in tensors"


def module_facts(breakdown: Breakdown) -> list[str]:
    """The modules that hold most, activations included."""
    totals = [
        (m.name or "outside its modules", m.parameters_bytes + m.gradients_bytes + m.optimizer_bytes + m.buffers_bytes
         + (m.activations_bytes or 0)) for m in breakdown.modules
    ]  # fmt: skip
    ordered = sorted((t for t in totals if t[1]), key=lambda t: -t[1])
    if len(ordered) < 2:
        return []
    shown = [f"{line(name, 40)} {size(n_bytes)}" for name, n_bytes in ordered[:_MAX_MODULES]]
    rest = len(ordered) - _MAX_MODULES
    return [*shown, count(rest, "more module")] if rest > 0 else shown


def phase_facts(session: Session) -> list[str]:
    """Memory after each phase of the step: the first device's, else the host's."""
    memory = session.memory
    if memory.devices:
        device = memory.devices[0]
        facts = [f"after {p.phase} {size(p.allocated_bytes)}" for p in device.phases]
        if facts and device.peak_phase:
            facts.append(f"the peak rises in {device.peak_phase}")
        return facts
    phases = memory.host.phases if memory.host is not None else ()
    return [f"after {p.phase} {size(p.rss_bytes)} resident" for p in phases]


def growth_facts(session: Session) -> list[str]:
    """The trend of each place that was watched long enough: bytes every thousand steps, or that it does not climb."""
    return [_trend(growth) for growth in session.memory.growth]


def headroom_fact(headroom: Headroom | None) -> str:
    """The largest batch that should fit; empty where it is not known."""
    if headroom is None:
        return ""
    return (
        f"the largest batch that should fit is {headroom.largest_batch:,} (now {headroom.n_samples:,}): "
        f"{size(headroom.fixed_bytes)} + {size(headroom.per_sample_bytes)} a sample, "
        f"of {size(headroom.capacity_bytes)} less {share(headroom.margin_fraction)}; from {line(headroom.basis, 60)}"
    )


def _trend(growth: Growth) -> str:
    where, readings = line(growth.where, 16), count(growth.n, "reading")
    if not growth.is_steady or growth.low_bytes_per_step <= 0:
        return f"{where}: no steady growth in {readings}"
    slope, low, high = (
        size(1000 * each) for each in (growth.bytes_per_step, growth.low_bytes_per_step, growth.high_bytes_per_step)
    )
    return f"{where}: {slope} more every 1,000 steps ({low} to {high}, {readings})"


def _unless_held(basis: str) -> str:
    return "" if basis == "held" else line(basis, 120)


def _activations_note(breakdown: Breakdown) -> str:
    note = line(breakdown.activations_basis, 120)
    return f"{note}, batch of {breakdown.n_samples}" if breakdown.n_samples and breakdown.activations_bytes else note
