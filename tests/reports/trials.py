"""Synthetic trials for tests of reports."""

from __future__ import annotations

from lightning_perf.records import Arm, ArmRun, Gain, Interval, Rung, Trial

MIB = 1024**2


def about(value: float, reach: float = 0.015) -> Interval:
    return Interval(value=value, low=value * (1 - reach), high=value * (1 + reach))


WORKERS = Gain(low=1.7, high=2.1, basis="waiting is exclusive")
PRECISION = Gain(low=1.0, high=1.6, basis="the share of matrix multiplication")
COMPILE = Gain(low=1.1, high=2.4, basis="element-wise chains")


def climbed() -> Trial:
    """Return a trial with a ladder of three rungs, and a treatment for each reason to be left out."""
    oom = "RuntimeError: out of memory: tried to allocate 3.2 GiB, 1.1 GiB free"
    on_top = "loader-workers=4+precision-bf16"
    return Trial(
        id="t1",
        command=("python", "train.py", "--lr", "1e-3"),
        status="finished",
        started_at="2026-11-21T10:00:00Z",
        wall_s=754.0,
        steps=120,
        repeats=3,
        seed=1,
        noise_band=0.016,
        aa=Interval(value=1.004, low=0.991, high=1.017),
        arms=(
            Arm(id="baseline", verdict="no_change", step_s=about(0.0312), peak_bytes=812 * MIB),
            Arm(id="baseline-again", verdict="no_change", speedup=about(1.004), peak_bytes=812 * MIB),
            Arm(id="loader-workers=4", treatments=("loader-workers=4",), verdict="improved", speedup=about(1.83),
                p_value=0.024, predicted=WORKERS, peak_bytes=830 * MIB, loss="within_noise"),
            Arm(id="precision-bf16", treatments=("precision-bf16",), safety="numerics", verdict="improved",
                speedup=about(1.22), predicted=PRECISION, peak_bytes=655 * MIB, loss="within_noise"),
            Arm(id="compile", treatments=("compile",), verdict="regressed", speedup=about(0.48, 0.03),
                predicted=COMPILE, peak_bytes=1400 * MIB, loss="identical"),
            Arm(id="log-every-n=50", treatments=("log-every-n=50",), verdict="inconclusive", speedup=about(1.02, 0.02),
                peak_bytes=812 * MIB, loss="identical", repeats_needed=4,
                reason="about 4 more repeats would probably settle it"),
            Arm(id="channels-last", treatments=("channels-last",), verdict="failed", reason=oom),
            Arm(id="batch-size=256", treatments=("batch-size=256",), safety="semantics", verdict="improved",
                speedup=about(1.31), peak_bytes=2900 * MIB, loss="not_judged"),
            Arm(id=on_top, treatments=("loader-workers=4", "precision-bf16"), safety="numerics",
                verdict="improved", speedup=about(2.31), peak_bytes=690 * MIB, loss="within_noise"),
            Arm(id=f"{on_top}+log-every-n=50", treatments=("loader-workers=4", "precision-bf16", "log-every-n=50"),
                safety="numerics", verdict="improved", speedup=about(2.33), peak_bytes=690 * MIB, loss="within_noise"),
        ),
        ladder=(
            Rung(added="", arm="baseline", is_kept=True, verdict="no_change", peak_bytes=812 * MIB),
            Rung(added="loader-workers=4", arm="loader-workers=4", is_kept=True, verdict="improved",
                 step_gain=about(1.83), speedup=about(1.83), predicted=WORKERS, peak_bytes=830 * MIB,
                 loss="within_noise"),
            Rung(added="precision-bf16", arm=on_top, is_kept=True, verdict="improved", step_gain=about(1.26),
                 speedup=about(2.31), predicted=PRECISION, peak_bytes=690 * MIB, loss="within_noise"),
            Rung(added="log-every-n=50", arm=f"{on_top}+log-every-n=50", is_kept=False, verdict="no_change",
                 step_gain=about(1.01), speedup=about(2.33), peak_bytes=690 * MIB, loss="within_noise",
                 reason="no speedup on top of the kept treatments"),
            Rung(added="batch-size=256", arm="batch-size=256", is_kept=False, verdict="improved",
                 speedup=about(1.31), peak_bytes=2900 * MIB, loss="not_judged",
                 reason="changes the training itself, so it was measured alone only"),
            Rung(added="compile", arm="compile", is_kept=False, verdict="regressed", speedup=about(0.48, 0.03),
                 predicted=COMPILE, peak_bytes=1400 * MIB, loss="identical", reason="slower alone"),
            Rung(added="channels-last", arm="channels-last", is_kept=False, verdict="failed", reason=oom),
        ),
        runs=tuple(
            ArmRun(arm="baseline", repeat=i, position=i, status="ok", block_means_s=(0.031, 0.0312), block_steps=20)
            for i in range(27)
        ),
        best=on_top,
        trainer_flags={"precision": "bf16-mixed"},
        loader_args={"num_workers": 4, "persistent_workers": True},
        code='trainer = Trainer(precision="bf16-mixed")\n'
        "loader = DataLoader(dataset, num_workers=4, persistent_workers=True)",
        yaml="trainer:\n  precision: bf16-mixed\n",
        not_tried={"fused-optimizer": "the optimizer is fused already"},
    )  # fmt: skip


def fruitless() -> Trial:
    """Return a trial without a speedup, interrupted by Ctrl-C."""
    return Trial(
        id="t2",
        command=("python", "-m", "project.train"),
        status="interrupted",
        started_at="2026-11-21T10:00:00Z",
        wall_s=61.0,
        steps=60,
        repeats=3,
        arms=(
            Arm(id="baseline", verdict="no_change", peak_bytes=300 * MIB),
            Arm(id="log-every-n=50", treatments=("log-every-n=50",), reason="an interval needs 2 runs of each arm"),
        ),
        ladder=(Rung(added="", arm="baseline", is_kept=True, verdict="no_change", peak_bytes=300 * MIB),),
    )


def broken() -> Trial:
    """Return a trial whose baseline fails."""
    reason = "[bold]x[/bold]\x1b[31m ModuleNotFoundError: No module named 'torchvision'\u202e"
    return Trial(
        id="t3",
        command=("python", "train.py"),
        status="failed",
        started_at="2026-11-21T10:00:00Z",
        arms=(Arm(id="baseline", verdict="failed", reason=reason),),
    )
