"""What a step costs more when the core has slept, or done something else, before it.

    python benchmarks/cold_start/run.py             the table, on the terminal
    python benchmarks/cold_start/run.py --write     and into docs/benchmarks/cold-start.md

Steps of small models on one CPU thread: forward, backward and optimizer are timed, what lies between two steps is not.
Between them lies nothing, 20 ms of sleep as of a training that waits for data, or about as much work of Python's on
objects and small tensors. The three take turns; figures are medians. Gains are predicted with this in mind
(``lightning_perf/rules/gain.py``).

What lies between epochs is longer. The second table has what all of the next 16 steps take longer after 0.3 s of sleep,
of Python's work on objects, and of sorting large tensors: each step's median over 8 such pauses, less that of steps
without one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "benchmarks" / "cold-start.md"

SIZES = ((512, 4, 8), (1024, 16, 16), (2048, 16, 64), (4096, 16, 128))
"""Width, activations, samples a batch."""

SMALL = ((128, 4, 8), *SIZES[:2])
"""Of steps that take longer, 16 differ by more than a pause makes them."""

STEPS, WARMUP = 60, 20
PAUSE_S, EPOCH_PAUSE_S = 0.02, 0.3
EPOCHS, STEPS_OF_EPOCH = 8, 16
RECORDS = [{str(key): key * index / 7 for key in range(400)} for index in range(64)]


def nothing() -> None:
    """The next step follows at once."""


def sleep() -> None:
    """As where the training waits for a sample."""
    time.sleep(PAUSE_S)


def python() -> None:
    """As where batches are collated in Python."""
    for _ in range(2):
        for record in RECORDS:
            list(record.values())
        for record in RECORDS[:4]:
            for value in list(record.values())[:100]:
                torch.tensor(value)


def for_a_while(what: Callable[[], object]) -> Callable[[], None]:
    """That again and again, for as long as between two epochs."""

    def work() -> None:
        end = time.perf_counter() + EPOCH_PAUSE_S
        while time.perf_counter() < end:
            what()

    return work


BETWEEN: tuple[Callable[[], None], ...] = (nothing, sleep, python)
BETWEEN_EPOCHS: tuple[Callable[[], None], ...] = (
    lambda: time.sleep(EPOCH_PAUSE_S),
    for_a_while(lambda: [list(record.values()) for record in RECORDS]),
    for_a_while(lambda: torch.rand(2_000_000).argsort()),
)


def step_of(width: int, depth: int, batch: int) -> Callable[[], float]:
    """A step of a new model, which tells how many seconds it took."""
    model = nn.Sequential(nn.Linear(400, width), *(nn.GELU() for _ in range(depth)), nn.Linear(width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    samples = torch.rand(batch, 400)

    def step() -> float:
        begin = time.perf_counter()
        loss = model(samples).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return time.perf_counter() - begin

    return step


def step_ms(size: tuple[int, int, int], between: Callable[[], None]) -> float:
    """Median of a step, in milliseconds."""
    step = step_of(*size)
    taken = []
    for _ in range(STEPS):
        between()
        taken.append(step())
    return 1e3 * statistics.median(taken[WARMUP:])


def slowed_ms(size: tuple[int, int, int], between: Callable[[], None]) -> float:
    """What all steps after a pause between epochs take longer, in milliseconds."""
    step = step_of(*size)
    alone_s = statistics.median([step() for _ in range(STEPS)][WARMUP:])
    taken = []
    for _ in range(EPOCHS):
        between()
        taken.append([step() for _ in range(STEPS_OF_EPOCH)])
    return 1e3 * sum(statistics.median(steps) - alone_s for steps in zip(*taken, strict=True))


def text_of(rounds: int) -> str:
    """The page."""
    first, second = (part.strip() for part in (__doc__ or "").split("\n\n")[2:4])
    lines = [
        "# Steps after a pause",
        "",
        first,
        "",
        f"Made by `python benchmarks/cold_start/run.py`; {rounds} rounds, torch {torch.__version__}, one thread.",
        "",
        "| a step alone | after 20 ms of sleep | after other work of Python's |",
        "| :-- | :-- | :-- |",
    ]
    for size in SIZES:
        taken: dict[Callable[[], None], list[float]] = {between: [] for between in BETWEEN}
        for _ in range(rounds):
            for between in BETWEEN:
                taken[between].append(step_ms(size, between))
        alone, slept, worked = (statistics.median(taken[between]) for between in BETWEEN)
        lines.append(
            f"| {alone:.2f} ms | {slept:.2f} ms ({slept - alone:+.2f}) | {worked:.2f} ms ({worked - alone:+.2f}) |"
        )
    lines += ["", second, "", "| a step | sleep | Python's work | sorting |", "| :-- | :-- | :-- | :-- |"]
    for size in SMALL:
        alone = step_ms(size, nothing)
        slowed = (statistics.median(slowed_ms(size, between) for _ in range(rounds)) for between in BETWEEN_EPOCHS)
        lines.append(f"| {alone:.2f} ms | {' | '.join(f'{ms:+.1f} ms' for ms in slowed)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(REPOSITORY)}")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    text = text_of(arguments.rounds)
    print(text)
    if arguments.write:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
