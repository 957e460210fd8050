"""Exchange between ranks through a store: no rank blocks or is blocked by another."""

from __future__ import annotations

import msgspec
import pytest

from lightning_perf.probes.ranks.exchange import Exchange

from .synthetic import summary


class FakeStore:
    """A store that never blocks, with some ranks that never report."""

    def __init__(self, is_extended: bool = True) -> None:
        self.values: dict[str, bytes] = {}
        self.is_extended = is_extended

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        assert self.is_extended
        return [self.values[key] for key in keys]

    def has_extended_api(self) -> bool:
        return self.is_extended

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def delete_key(self, key: str) -> bool:
        return self.values.pop(key, None) is not None


class World:
    """Ranks over one fake store and clock; sleeping lets time pass and late ranks arrive."""

    def __init__(self, n_ranks: int, is_extended: bool = True) -> None:
        self.store = FakeStore(is_extended)
        self.now_s = 0.0
        self.arrivals: dict[float, int] = {}
        self.ranks = [Exchange(self.store, rank, n_ranks, lambda: self.now_s, self.sleep) for rank in range(n_ranks)]

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        for when in [when for when in self.arrivals if when <= self.now_s]:
            rank = self.arrivals.pop(when)
            self.ranks[rank].share(summary(rank), 1.0)


@pytest.mark.parametrize("is_extended", [True, False])
def test_rank_0_gets_all_summaries_and_others_their_own(is_extended: bool) -> None:
    world = World(3, is_extended)
    alone = [world.ranks[rank].share(summary(rank, 0.01 * (rank + 1)), 1.0) for rank in (2, 1)]
    assert [[one.rank for one in ranks.summaries] for ranks in alone] == [[2], [1]]
    together = world.ranks[0].share(summary(0), 1.0)
    assert [one.rank for one in together.summaries] == [0, 1, 2]
    assert together.step_max_s == pytest.approx(0.03)
    assert together.step_mean_s == pytest.approx(0.02)
    assert together.data_wait_share_max == pytest.approx(0.2)
    assert together.missing == ()
    assert world.now_s == 0


def test_late_rank_is_waited_for_within_the_limit() -> None:
    world = World(2)
    world.arrivals = {0.5: 1}
    assert len(world.ranks[0].share(summary(0), 1.0).summaries) == 2
    assert world.now_s == pytest.approx(0.5, abs=0.01)


def test_missing_rank_is_reported_and_delays_no_other() -> None:
    world = World(3)
    world.ranks[1].share(summary(1), 1.0)
    together = world.ranks[0].share(summary(0), 1.0)
    assert [one.rank for one in together.summaries] == [0, 1]
    assert [(one.rank, one.reason) for one in together.missing] == [(2, "it did not report within 1 s")]
    assert world.now_s == pytest.approx(1.0, abs=0.01)


def test_earlier_figures_are_used_when_a_rank_stops_reporting() -> None:
    world = World(2)
    world.ranks[1].share(summary(1, 0.05), 1.0)
    world.ranks[0].share(summary(0), 1.0)
    together = world.ranks[0].share(summary(0), 1.0)
    assert together.step_max_s == pytest.approx(0.05)
    assert "earlier" in together.missing[0].reason


def test_rank_reports_the_reason_when_it_measured_nothing() -> None:
    world = World(2)
    assert world.ranks[1].share(None, 1.0) is None
    together = world.ranks[0].share(summary(0), 1.0)
    assert [one.reason for one in together.missing] == ["it measured nothing"]
    assert world.now_s == 0


def test_rank_is_reported_when_its_figures_are_invalid() -> None:
    world = World(2)
    world.store.set("0/1", "{")
    together = world.ranks[0].share(summary(0), 1.0)
    assert together.missing[0].reason.startswith("its report cannot be read")


def test_store_does_not_grow_with_the_reports() -> None:
    world = World(2)
    for _ in range(10):
        world.ranks[1].share(summary(1), 1.0)
        world.ranks[0].share(summary(0), 1.0)
    assert len(world.store.values) == 4  # the last two rounds


def test_message_of_a_rank_is_small() -> None:
    assert len(msgspec.json.encode(summary(1000))) < 2048
