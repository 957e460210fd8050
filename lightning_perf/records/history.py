"""Identity of a training across runs, and earlier runs of the same training."""

from .base import Record
from .comparison import Difference


class Provenance(Record, frozen=True, kw_only=True):
    """The training and its code; unknown fields are None. Paths are relative to the git repository of the project.

    Attributes:
        parameters: Digest of the shapes of all parameters, in order; None while some have no shape.
        sample_shapes: Shapes of the first batch's tensors without the batch dimension, e.g. ``("3x224x224", "")``.
        dataset: Path of the dataset; outside the project only the digest of its path.
        script: The program's file; None outside the project.
        commit: The git commit at the start of the run.
        branch: None on a detached head, unless the CI service names the branch.
        is_dirty: Whether tracked files differed from the commit.
    """

    parameters: str | None = None
    sample_shapes: tuple[str, ...] = ()
    dataset: str | None = None
    script: str | None = None
    commit: str | None = None
    branch: str | None = None
    is_dirty: bool | None = None


class EarlierRun(Record, frozen=True, kw_only=True):
    """One run of the history.

    Attributes:
        started_at: ISO 8601, UTC.
        n_steps: Steady steps.
        step_s: Typical seconds per step, as in a comparison.
        phase_s: Seconds per step by phase, those between steps included.
        changes: Settings, versions and code that differ from the run before it.
    """

    id: str
    started_at: str
    n_steps: int
    step_s: float
    phase_s: dict[str, float]
    changes: tuple[Difference, ...] = ()


class EarlierRuns(Record, frozen=True, kw_only=True):
    """Runs of the same training on this machine, oldest first; the last is the run of the session.

    Attributes:
        news: What became slower since the last runs; empty if nothing did, or if there are too few.
        detectable: Factor by which steps must be slower to be found in 95 % of cases; None if there are too few runs.
        machine_factor: How many times as long steps take because the machine is slower than in the last runs, which the
            other two exclude; None if earlier runs do not show it.
    """

    runs: tuple[EarlierRun, ...]
    news: str = ""
    detectable: float | None = None
    machine_factor: float | None = None
