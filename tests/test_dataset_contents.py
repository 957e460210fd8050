"""What a dataset holds."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from lightning_perf.dataset_contents import generator_in


def test_generator_of_a_module_that_a_dataset_names_is_not_its_own() -> None:
    assert generator_in(SimpleNamespace(library=np, path="data")) is None
    assert generator_in(SimpleNamespace(library=np, rng=np.random.default_rng(1))) is not None
