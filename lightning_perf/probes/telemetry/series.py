"""Sampled metrics in constant memory: their spread, and their timeline."""

from array import array
from collections.abc import Mapping

import numpy as np

from lightning_perf.records import Spread, TelemetryPoint

MAX_KEPT = 2048
MAX_POINTS = 128


class Series:
    """Samples of one metric, weighted by time.

    Mean, minimum and maximum cover all samples. Quantiles cover at most ``MAX_KEPT`` samples, evenly spaced over the
    run: whenever there are more, every second one is dropped and from then on every second one is kept.
    """

    def __init__(self) -> None:
        self.n = 0
        self.weight_s = 0.0
        self._sum = 0.0
        self._min = self._max = 0.0
        self._every = 1
        self._values = array("d")
        self._weights = array("d")

    def add(self, value: float, weight_s: float) -> None:
        """Add a sample that covers ``weight_s`` seconds, more than 0."""
        self._min = min(self._min, value) if self.n else value
        self._max = max(self._max, value) if self.n else value
        if self.n % self._every == 0:
            self._values.append(value)
            self._weights.append(weight_s)
            if len(self._values) > MAX_KEPT:
                self._values, self._weights = self._values[::2], self._weights[::2]
                self._every *= 2
        self.n += 1
        self.weight_s += weight_s
        self._sum += value * weight_s

    def spread(self) -> Spread:
        """Return the spread of the samples, of which there must be one."""
        values, weights = np.array(self._values), np.array(self._weights)
        order = values.argsort(kind="stable")
        passed = weights[order].cumsum()
        places = np.searchsorted(passed, np.array((0.05, 0.5, 0.95)) * passed[-1])
        p5, p50, p95 = values[order][np.minimum(places, len(values) - 1)].tolist()
        return Spread(n=self.n, mean=self._sum / self.weight_s, p5=p5, p50=p50, p95=p95, min=self._min, max=self._max)


class MetricTimeline:
    """The timeline of several metrics: at most ``MAX_POINTS`` means, over more and more samples each."""

    def __init__(self) -> None:
        self._samples_per_point = 1
        self._points: list[_Point] = []

    def add(self, start_s: float, step: int, values: Mapping[str, float]) -> None:
        """Add a sample's values by metric; it began ``start_s`` seconds and ``step`` steps into the run."""
        new = _Point(start_s, step, values)
        if self._points and self._points[-1].n < self._samples_per_point:
            self._points[-1].merge(new)
            return
        self._points.append(new)
        if len(self._points) > MAX_POINTS:
            self._samples_per_point *= 2
            for point, other in zip(self._points[::2], self._points[1::2], strict=False):
                point.merge(other)
            self._points = self._points[::2]

    def records(self) -> tuple[TelemetryPoint, ...]:
        """Return the timeline, with four significant digits."""
        return tuple(point.record() for point in self._points)


class _Point:
    def __init__(self, start_s: float, step: int, values: Mapping[str, float]) -> None:
        self.start_s = start_s
        self.step = step
        self.n = 1
        self._sums = {name: (value, 1) for name, value in values.items()}

    def merge(self, other: "_Point") -> None:
        self.n += other.n
        for name, (value, n) in other._sums.items():
            mine, n_mine = self._sums.get(name, (0.0, 0))
            self._sums[name] = (mine + value, n_mine + n)

    def record(self) -> TelemetryPoint:
        means = {name: float(f"{value / n:.4g}") for name, (value, n) in self._sums.items()}
        return TelemetryPoint(start_s=round(self.start_s, 3), step=self.step, n_samples=self.n, values=means)
