"""Every figure once, drawn from a session with plotly: for the HTML report, the TensorBoard tab and notebooks.

Needs neither torch nor lightning; plotly is imported with the first figure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from lightning_perf.records import Session

from . import findings, loader, memory, model, pair, ranks, steps, trace
from .palette import Theme, template
from .parts import plain

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = [
    "FIGURES",
    "PAIR_FIGURES",
    "NamedFigure",
    "NamedPairFigure",
    "Theme",
    "figure_json",
    "template",
    "why_absent",
]


class NamedFigure(NamedTuple):
    """A figure of a session, or of two.

    Attributes:
        title: To stand above it.
        draw: ``draw(session, theme="light")``, of two ``draw(base, new, theme="light")``: the figure, or None where
            the session holds nothing for it.
    """

    title: str
    draw: Callable[..., go.Figure | None]


FIGURES: dict[str, NamedFigure] = {
    "breakdown": NamedFigure("Time per phase", steps.breakdown),
    "findings": NamedFigure("Expected speedup of each fix", findings.findings),
    "epochs": NamedFigure("Time per phase and epoch", steps.epochs),
    "timeline": NamedFigure("Step time over the run", steps.timeline),
    "startup": NamedFigure("Time to the end of the first step", steps.startup),
    "trace_steps": NamedFigure("Time per step by category", trace.trace_steps),
    "operators": NamedFigure("Operators", trace.operators),
    "kernels": NamedFigure("Kernels", trace.kernels),
    "memory_peak": NamedFigure("Memory at the peak", memory.memory_peak),
    "memory_phases": NamedFigure("Memory by phase of the step", memory.memory_phases),
    "memory_modules": NamedFigure("Memory by module", memory.memory_modules),
    "memory_growth": NamedFigure("Memory growth", memory.memory_growth),
    "memory_before_oom": NamedFigure("Memory before it ran out", memory.memory_before_oom),
    "modules": NamedFigure("Time by module", model.modules),
    "roofline": NamedFigure("Roofline", model.roofline),
    "ranks": NamedFigure("Ranks", ranks.ranks),
    "loader_curve": NamedFigure("Throughput by number of workers", loader.loader_curve),
    "trials": NamedFigure("Measured speedups", findings.trials),
}
"""By name, in the order in which a report shows them."""

PAIR_FIGURES: dict[str, NamedFigure] = {"steps_diff": NamedFigure("Step time, base and new", pair.steps_diff)}

_WHY: dict[str, tuple[str, str]] = {
    "breakdown": ("steady", "no step was measured in the steady state"),
    "findings": ("", "no finding promises a gain in time"),
    "epochs": ("", "no training epoch ended"),
    "timeline": ("steady", "no step was measured in the steady state"),
    "startup": ("", "the run did not get to the end of a first step"),
    "trace_steps": ("windows", "no profiler window was recorded"),
    "operators": ("windows", "no profiler window was recorded, and no operator timed in a step"),
    "kernels": ("windows", "no profiler window saw kernels: none was recorded, or the run used no device"),
    "memory_peak": ("memory.breakdown", "it was not looked at what memory holds"),
    "memory_phases": ("memory.phases", "memory was not sampled within steps"),
    "memory_modules": ("memory.breakdown", "it was not looked at what memory holds"),
    "memory_growth": ("memory.growth", "memory was not watched for long enough to tell a trend"),
    "memory_before_oom": ("", "memory did not run out"),
    "modules": ("model_profile", "no step was looked at to count the model's arithmetic"),
    "roofline": ("model_profile", "no module or operator was both counted and timed"),
    "ranks": ("ranks", "the run had one rank, or only one reported"),
    "loader_curve": ("loader_probe", "the loader was not probed"),
    "trials": ("", "no treatment was tried on this training, or none could be measured"),
}
"""Where the session itself may say why, and what to say where it does not."""


def why_absent(name: str, session: Session) -> str:
    """Why the figure of that name is None for this session, in one sentence."""
    key, usual = _WHY[name]
    if not key:
        return usual
    return session.missing.get(key, session.missing.get(key.partition(".")[0], usual))


def figure_json(figure: go.Figure) -> dict[str, Any]:
    """The figure as pure JSON types: ``{"data": […], "layout": {…}}``. What is not a finite number becomes None."""
    document: dict[str, Any] = plain(figure.to_plotly_json())
    return document
