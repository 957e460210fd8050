"""A fault planted in the input pipeline of a fit is the first finding on its data, functions with file and line."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from lightning_perf import PerfDoctor
from lightning_perf.probes.loader import samples, watch
from lightning_perf.probes.loader.prober import LoaderProber
from lightning_perf.records import Finding, Session

from .conftest import Make

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks only on Linux")

_FILE = Path(__file__).parents[2] / "benchmarks" / "loader" / "planted.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("planted_causes", _FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


CAUSES = _load().CAUSES


@pytest.fixture
def fitted(make_trainer: Make, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Session]:
    """Fits with a fault, and returns the session; the loader is probed once its epoch has waited."""

    def fit(name: str, limit_s: float = 6.0) -> Session:
        monkeypatch.setattr(watch, "LoaderProber", partial(LoaderProber, limit_s))
        cause = CAUSES[name]
        if cause.code != "PD105":  # its samples are even: what takes longer there is the machine's, and is not repeated
            monkeypatch.setattr(samples.Samples, "slow_again", lambda *_: 0.0)
        doctor = PerfDoctor(probe_data=True, reports=[])
        make_trainer(doctor, max_epochs=cause.n_epochs).fit(cause.module(), cause.loader())
        assert doctor.session is not None
        assert doctor.session.probes_off == ()
        return doctor.session

    return fit


def first_of(session: Session, *codes: str) -> Finding:
    """Return the first finding on the data, which must be of one of these rules."""
    found = [(f.code, f.severity, f.summary) for f in session.findings]
    # PD102 may report, correctly, that other programs use the cores of the machine.
    on_data = [f for f in session.findings if f.category == "data" and f.severity != "info" and f.code != "PD102"]
    assert on_data, found
    assert on_data[0].code in codes, (found, session.loader_probe)
    return on_data[0]


def test_function_is_named_with_its_line_when_it_makes_samples_slow(fitted: Callable[..., Session]) -> None:
    cause = CAUSES["slow-python-transform"]
    for limit_s in (6.0, 18.0, 54.0):
        session = fitted("slow-python-transform", limit_s)
        probe = session.loader_probe
        # Where another machine took the core, samples seem to wait.
        if probe is not None and probe.functions and (probe.getitem_cpu_fraction or 0.0) > 0.5:
            break
    # Whatever else a busy machine makes slow, this fault is found.
    (finding,) = [finding for finding in session.findings if finding.code == cause.code]
    assert f"{cause.function.__name__} (" in finding.summary
    assert f"{_FILE.name}:" in finding.summary
    # Host figures are those of the training, without the probe's own workers.
    assert session.telemetry is not None
    assert session.telemetry.host is not None
    assert session.telemetry.host.workers_cpu_cores is None


# -- which finding comes first: measurements, in ``make clinic`` -------------------------------------------------------


@pytest.mark.clinic
@pytest.mark.parametrize("name", [name for name, cause in CAUSES.items() if cause.function is not None])
def test_function_is_named_with_its_line_when_it_is_the_cause(fitted: Callable[[str], Session], name: str) -> None:
    session = fitted(name)
    cause = CAUSES[name]
    # More workers hide a wait for storage, and what they gain was measured: that may come first.
    quick = ("PD101",) if cause.code == "PD106" else ()
    summary = first_of(session, cause.code, *quick).summary
    assert f"{cause.function.__name__} (" in summary
    assert f"{_FILE.name}:" in summary
    # Host figures are those of the training, without the probe's own workers.
    assert session.telemetry is not None
    assert session.telemetry.host is not None
    assert session.telemetry.host.workers_cpu_cores is None
    # The quick fix is listed too: for CPU-bound samples, with at most as many workers as free cores.
    starved = next((finding for finding in session.findings if finding.code == "PD101"), None)
    if cause.code == "PD107" and starved is not None:
        assert starved.prescriptions[0].loader_args.get("num_workers", 0) <= session.machine.usable_cores


@pytest.mark.clinic
def test_many_small_tensors_are_named_when_workers_move_them(fitted: Callable[[str], Session]) -> None:
    assert "200 tensors" in first_of(fitted("many-small-tensors"), "PD109").summary


@pytest.mark.clinic
def test_workers_are_named_when_the_data_is_tiny(fitted: Callable[[str], Session]) -> None:
    finding = first_of(fitted("tiny-data-with-workers"), "PD103")
    assert finding.prescriptions[0].loader_args["num_workers"] == 0


@pytest.mark.clinic
def test_indexing_of_tensors_is_named_when_samples_are_their_rows(fitted: Callable[[str], Session]) -> None:
    first_of(fitted("per-sample-indexing"), "PD110")


@pytest.mark.clinic
def test_bursts_are_named_when_a_few_samples_are_slow(fitted: Callable[[str], Session]) -> None:
    finding = first_of(fitted("bursty-samples"), "PD105")
    assert finding.prescriptions[0].loader_args["prefetch_factor"] > 2


@pytest.mark.clinic
def test_growth_is_named_when_workers_keep_samples(fitted: Callable[[str], Session]) -> None:
    # Its severity depends on the distance to the limit; on a busy machine a data wait can come first.
    assert "PD113" in {finding.code for finding in fitted("memory-growth").findings}


@pytest.mark.clinic
def test_no_data_finding_is_reported_when_batches_are_in_time(fitted: Callable[[str], Session]) -> None:
    session = fitted("healthy")
    on_data = [f for f in session.findings if f.category == "data" and f.severity != "info" and f.code != "PD102"]
    assert [(f.code, f.summary) for f in on_data] == []
