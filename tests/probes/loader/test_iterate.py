"""A loader that cannot be copied is timed as it is."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from lightning_perf.probes.loader.iterate import iterate_loader, time_pinning
from lightning_perf.records import LoaderProbe

REFUSED = LoaderProbe(status="refused", reason="Batches is not a plain torch DataLoader")


class Batches:
    def __init__(self, n: int, fails_at: int | None = None) -> None:
        self.n, self.fails_at = n, fails_at

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(self.n):
            if number == self.fails_at:
                raise ValueError("no such file")
            time.sleep(0.005)
            yield torch.zeros(8, 2)


def test_batches_are_timed_and_described_when_they_pass() -> None:
    probe = iterate_loader(Batches(20), REFUSED, 5.0)
    assert (probe.status, probe.reason) == ("refused", REFUSED.reason)
    (point,) = probe.curve
    assert (point.num_workers, point.n_batches) == (0, 19)
    assert point.low_s <= point.batch_s <= point.high_s
    assert point.batch_s >= 0.005
    assert probe.first_batch_s >= 0.005
    assert (probe.batch_bytes, probe.n_tensors) == (64, 1)


def test_timing_stops_when_the_time_is_up() -> None:
    (point,) = iterate_loader(Batches(10**6), REFUSED, 0.1).curve
    assert point.n_batches < 100


def test_reason_is_reported_when_batches_fail_or_are_none() -> None:
    failed = iterate_loader(Batches(4, fails_at=2), REFUSED, 5.0).reason
    assert failed.startswith("iterating the loader raised ValueError: no such file; ")  # short reports cut the end
    assert iterate_loader(Batches(0), REFUSED, 5.0).reason.startswith("the loader has no batches; ")
    assert "too few batches" in iterate_loader(Batches(1), REFUSED, 5.0).missing["curve"]


def test_nothing_is_pinned_for_a_device_that_needs_none() -> None:
    probe = time_pinning(iterate_loader(Batches(2), REFUSED, 5.0), torch.device("cpu"))
    assert probe.pin is None
    assert probe.missing["pin"] == "cpu needs no pinned memory"
    probe = time_pinning(REFUSED, torch.device("cuda"))
    assert probe.missing["pin"] == "the contents of a batch are unknown"
