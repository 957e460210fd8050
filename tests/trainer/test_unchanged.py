"""PerfDoctor does not change trainings of many kinds, each run without it and with several settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lightning_perf.probes.loader.guard import landlock_version
from tests.fuzzing import FUZZ, IS_TORTURE

from .comparison import Server, assert_unchanged
from .kinds import KINDS, Kind


def rounds() -> Iterator[tuple[Kind, tuple[str, ...], int]]:
    """Yield each kind with the settings that it is compared in.

    ``make test`` compares the core kinds with everything switched on, and half of them in one other setting, in turn.
    ``make torture`` has more rounds, of all kinds, each with one setting per kind in turn.
    """
    if not IS_TORTURE:
        for place, kind in enumerate(kind for kind in KINDS.values() if kind.core):
            *others, everything = kind.configurations
            other = others[place // 2 % 2 : place // 2 % 2 + 1] if place % 2 else ()
            yield kind, (everything, *other), 0
        return
    for n in range(FUZZ):
        for kind in KINDS.values():
            if n < kind.rounds:
                yield kind, (kind.configurations[n % len(kind.configurations)],), n


ROUNDS = list(rounds())


@pytest.fixture(scope="module")
def server(tmp_path_factory: Any) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("runs")) as started:
        yield started


@pytest.mark.parametrize(("kind", "settings", "n"), ROUNDS, ids=[f"{kind.name}-{n}" for kind, _, n in ROUNDS])
def test_training_is_unchanged_when_measured(server: Server, kind: Any, settings: Any, n: int) -> None:
    for configuration in settings:
        assert_unchanged(server, kind, configuration)


@pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")
@pytest.mark.parametrize("configuration", ["defaults", "windows", "everything"])
def test_loader_is_probed_when_trainings_are_compared(server: Server, configuration: str) -> None:
    probes = server.run(KINDS["random-transforms"], configuration)["loader_probes"]
    assert probes
    assert all(status in ("measured", "partial", "failed") for status, _ in probes), probes


@pytest.mark.parametrize("configuration", ["defaults", "windows", "everything"])
def test_loader_is_not_probed_when_the_compared_training_fails(server: Server, configuration: str) -> None:
    assert [status for status, _ in server.run(KINDS["dataset-raises"], configuration)["loader_probes"]] == ["none"]


def test_there_are_at_least_sixty_kinds() -> None:
    assert len(KINDS) >= 60
