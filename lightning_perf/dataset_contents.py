"""What a dataset holds that decides how its items may be loaded, and the states of the global random generators."""

import pickle
import random
import sys
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from types import ModuleType
from typing import Any

_MAX_ITEMS = 64  # items of a container that are searched; later ones are assumed to be alike


def random_states() -> tuple[Any, ...]:
    """Return the states of the global random generators of torch on the CPU, Python and numpy, to be compared."""
    import torch

    return torch.get_rng_state().numpy().tobytes(), *python_random_states()


def python_random_states() -> tuple[Any, Any]:
    """Return the states of the global random generators of Python and numpy, to be compared."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), pickle.dumps(numpy.random.get_state()) if numpy is not None else b""


def generator_in(value: Any) -> Any:
    """Return a random generator that a dataset, or what it holds, has as an attribute; None without one."""
    return _first_of(value, _random_generator)


def device_in(value: Any) -> Any:
    """Return the device of a tensor that a dataset, or what it holds, has outside the CPU; None without one."""
    return _first_of(value, _device_of)


def _random_generator(value: Any) -> Any:
    """Return the value if it is a random generator, else None."""
    kind = type(value)
    is_known = kind.__module__.partition(".")[0] in ("numpy", "torch", "random")
    return value if is_known and kind.__name__ in ("Generator", "RandomState", "Random") else None


def _device_of(value: Any) -> Any:
    """Return the device of a tensor that is not on the CPU; None for other values."""
    import torch

    return value.device if isinstance(value, torch.Tensor) and value.device.type != "cpu" else None


def _first_of(value: Any, read: Callable[[Any], Any], depth: int = 8, seen: set[int] | None = None) -> Any:
    """Return the first result of ``read`` that is not None, of a value and what it holds, ``depth`` levels deep."""
    import torch

    found, seen = read(value), set() if seen is None else seen
    if found is not None or isinstance(value, torch.Tensor) or depth == 0 or id(value) in seen:
        return found
    seen.add(id(value))
    if type(value) in (int, float, str, bytes):
        return None
    parts: Iterable[Any] = ()
    if type(value) in (list, tuple):
        parts = value[:_MAX_ITEMS]
    elif type(value) is dict:
        parts = islice(value.values(), _MAX_ITEMS)
    elif isinstance(value, partial):
        parts = (value.func, *value.args, *value.keywords.values())
    elif hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType)):
        parts = vars(value).values()
    every = (_first_of(part, read, depth - 1, seen) for part in parts)
    return next((found for found in every if found is not None), None)
