"""Fixtures for tests that probe loaders."""

import pytest

from lightning_perf.probes.loader import curve, stages


@pytest.fixture
def short_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages end long before the limit, which a busy machine needs for starting workers."""
    for name in ("SAMPLES_SHARE", "LINES_SHARE", "TRANSPORT_SHARE", "CALIBRATION_SHARE"):
        monkeypatch.setattr(stages, name, 0.02)
    monkeypatch.setattr(curve, "_MAX_ROUND_S", 0.3)
