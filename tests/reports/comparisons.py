"""Synthetic comparisons for tests of reports."""

from __future__ import annotations

from collections.abc import Callable

from lightning_perf.records import (
    ComparedRun,
    Comparison,
    Difference,
    FigureChange,
    FindingChange,
    Interval,
    TimeChange,
    TrialChange,
)

HOSTILE = "<script>alert(1)</script> | `x` \x1b[31m\n[bold]red[/bold]"


def _run(source: str, n_steps: int = 1000) -> ComparedRun:
    return ComparedRun(source=source, id=source, started_at="2026-01-01T00:00:00Z", n_steps=n_steps, device="H100")


def slower() -> Comparison:
    return Comparison(
        base=(_run("logs/version_0"),),
        new=(_run("logs/version_1"),),
        stage="fit",
        per="step",
        times=(
            TimeChange(name="step", base_s=0.05, new_s=0.056, ratio=Interval(value=1.12, low=1.08, high=1.16),
                       change="slower"),
            TimeChange(name="wall", base_s=0.06, new_s=0.067, reason="too few epochs"),
            TimeChange(name="data_wait", base_s=0.004, new_s=0.0095, ratio=Interval(value=2.375, low=2.2, high=2.6),
                       change="slower"),
            TimeChange(name="forward", base_s=0.02, new_s=0.0204, ratio=Interval(value=1.02, low=0.98, high=1.06),
                       change="no_change"),
            TimeChange(name="optimizer", base_s=0.002, new_s=0.00201, ratio=Interval(value=1.005, low=0.9, high=1.12)),
            TimeChange(name="validation", base_s=0.0, new_s=0.002, reason="base: it did not occur"),
        ),
        figures=(
            FigureChange(name="samples per second", unit="", base=640.0, new=571.0),
            FigureChange(name="cuda:0 peak allocated", unit="bytes", base=8 * 1024**3, new=None),
        ),
        findings=(
            FindingChange(code="PD101", name="starved-by-loader", base=None, new="high",
                          summary="17 % of each step waits for data.", unchecked="the loader was not seen"),
            FindingChange(code="PD502", name="many-small-kernels", base="medium", new=None, summary="They are small."),
            FindingChange(code="PD601", name="slow-logging", base="low", new="low", summary="It logs each step."),
        ),
        settings=(Difference(name="settings.loaders[0].num_workers", base="4", new="0"),),
        environment=(Difference(name="machine.versions.torch", base="2.12", new="2.13"),),
        trials=(
            TrialChange(arm="compile", base=Interval(value=1.3, low=1.2, high=1.4), new=None, base_verdict="improved"),
        ),
        run_noise_fraction=0.03,
        run_noise_basis="usual on one quiet machine, not measured here",
        band_fraction=0.02,
        ruled_out_fraction=0.1,
        cautions=("the runs were made on different hosts",),
    )  # fmt: skip


def alike() -> Comparison:
    return Comparison(
        base=(_run("base/1"), _run("base/2")),
        new=(_run("new/1"), _run("new/2")),
        stage="fit",
        per="step",
        times=(
            TimeChange(name="step", base_s=0.05, new_s=0.0501, ratio=Interval(value=1.002, low=0.98, high=1.02),
                       change="no_change"),
            TimeChange(name="wall", base_s=0.06, new_s=0.0595, ratio=Interval(value=0.99, low=0.95, high=1.03),
                       change="no_change"),
        ),
        figures=(),
        findings=(),
        settings=(),
        environment=(),
        trials=(),
        run_noise_fraction=0.03,
        run_noise_basis="not used: measured from the 2 and 2 runs themselves",
        band_fraction=0.02,
        ruled_out_fraction=0.1,
    )  # fmt: skip


def hostile() -> Comparison:
    return Comparison(
        base=(_run(HOSTILE, 0),),
        new=(_run(HOSTILE * 50, 0),),
        stage="fit",
        per="sample",
        times=(TimeChange(name="step", base_s=None, new_s=None, reason=f"base: {HOSTILE}"),),
        figures=(FigureChange(name=HOSTILE, unit="bytes", base=float("nan"), new=1e30),),
        findings=(
            FindingChange(code=HOSTILE, name=HOSTILE, base=None, new="high", summary=HOSTILE, unchecked=HOSTILE),
        ),
        settings=tuple(Difference(name=f"{HOSTILE}{i}", base=HOSTILE, new=None) for i in range(2)),
        environment=(),
        trials=(TrialChange(arm=HOSTILE, base=None, new=None, base_verdict="failed"),),
        run_noise_fraction=0.03,
        run_noise_basis="usual",
        band_fraction=0.02,
        ruled_out_fraction=0.1,
        cautions=(HOSTILE,),
    )


COMPARISONS: dict[str, Callable[[], Comparison]] = {"slower": slower, "alike": alike, "hostile": hostile}
