"""All figures of a session, drawn with plotly: for the HTML report, the TensorBoard tab and notebooks.

Needs neither torch nor lightning; plotly is imported with the first figure.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from lightning_perf.records import Session

from . import findings, model, ranks, steps, trace
from .palette import Theme, template
from .parts import Figure
from .tables import bars_of

__all__ = ["FIGURES", "SHOWN_AS_TABLES", "NamedFigure", "Theme", "figure_json", "template", "why_absent"]


class NamedFigure(NamedTuple):
    """A figure of a session.

    Attributes:
        title: Shown above it.
        draw: ``draw(session, theme="light")``; returns None if there is nothing to show.
        why_absent: Why a session does not have it; empty if reports show the same values as a table with bars.
        missing: Key in ``Session.missing`` that may hold a better reason.
    """

    title: str
    draw: Callable[..., Figure | None]
    why_absent: str = ""
    missing: str = ""


FIGURES: dict[str, NamedFigure] = {
    "breakdown": NamedFigure("Time per phase", bars_of("phases")),
    "findings": NamedFigure("Expected speedup of each fix", findings.findings),
    "epochs": NamedFigure("Time per phase and epoch", steps.epochs, "no training epoch ended"),
    "timeline": NamedFigure(
        "Step time over the run", steps.timeline, "no step was measured in the steady state", "steady"
    ),
    "earlier_runs": NamedFigure(
        "Time per step over the runs", steps.earlier_runs, "no earlier run of this training is recorded"
    ),
    "startup": NamedFigure("Time to the end of the first step", bars_of("startup")),
    "trace_steps": NamedFigure(
        "Time per step by category", trace.trace_steps, "no profiler window was recorded", "windows"
    ),
    "operators": NamedFigure("Operators", bars_of("operators", "counted-operators")),
    "kernels": NamedFigure("Kernels", bars_of("kernels")),
    "memory_peak": NamedFigure("Memory at the peak", bars_of("holds")),
    "memory_phases": NamedFigure("Memory by phase of the step", bars_of("memory-phases")),
    "memory_modules": NamedFigure("Memory by module", bars_of("memory-modules")),
    "memory_growth": NamedFigure("Memory growth", bars_of("growth")),
    "memory_before_oom": NamedFigure("Memory before it ran out", steps.memory_before_oom, "memory did not run out"),
    "modules": NamedFigure("Time by module", bars_of("modules")),
    "roofline": NamedFigure(
        "Roofline", model.roofline, "no module or operator has both FLOPs and a time", "model_profile"
    ),
    "ranks": NamedFigure("Ranks", ranks.ranks, "the run had one rank, or only one reported", "ranks"),
    "loader_curve": NamedFigure("Throughput by number of workers", bars_of("curve")),
    "trials": NamedFigure("Measured speedups", findings.trials, "no treatment was tried, or none could be measured"),
}
"""By name, in the order in which a report shows them."""

SHOWN_AS_TABLES = tuple(name for name, each in FIGURES.items() if not each.why_absent)
"""Figures for notebooks: reports show the same values as tables with bars."""


def why_absent(name: str, session: Session) -> str:
    """Return why this session does not have a figure that is not among ``SHOWN_AS_TABLES``."""
    figure = FIGURES[name]
    return session.missing.get(figure.missing, figure.why_absent)


def figure_json(figure: Figure) -> dict[str, Any]:
    """Return the figure as JSON types: ``{"data": […], "layout": {…}}``; numbers that are not finite become None."""
    encoded = msgspec.json.encode(figure.to_plotly_json(), enc_hook=lambda value: value.tolist())  # numpy's
    document: dict[str, Any] = msgspec.json.decode(encoded)
    return document
