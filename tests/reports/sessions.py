"""Synthetic sessions for tests of reports."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lightning_perf.records import (
    Breakdown,
    Device,
    DeviceMemory,
    DeviceTimes,
    Difference,
    Distribution,
    EarlierRun,
    EarlierRuns,
    Epoch,
    Evidence,
    Finding,
    Gain,
    Growth,
    Headroom,
    HotFunction,
    LoaderProbe,
    LoaderSettings,
    Machine,
    Memory,
    ModuleMemory,
    Overhead,
    PhaseMemory,
    PhaseTime,
    Prescription,
    ProbeFailure,
    Repeated,
    RuleOutcome,
    Run,
    Session,
    Settings,
    Spread,
    StageTimes,
    TorchSettings,
    TrainerSettings,
    Verdict,
    WorkerPoint,
)
from lightning_perf.rules.engine import diagnose

GIB = 1024**3


def times(p50: float) -> Distribution:
    return Distribution(p50=p50, p95=p50 * 1.4, p99=p50 * 2.1, mean=p50 * 1.08, std=p50 * 0.2)


def stage(span_s: float, n_steps: int, shares: dict[str, float], samples_per_s: float | None = 1043.2) -> StageTimes:
    between = {"validation", "checkpoint", "epoch_boundary"}
    phases = {
        name: PhaseTime(
            total_s=share * span_s,
            share=share,
            p50_s=None if name in between else share * span_s / n_steps,
            p95_s=None if name in between else 1.5 * share * span_s / n_steps,
        )
        for name, share in shares.items()
    }
    return StageTimes(
        n_steps=n_steps,
        n_warmup_steps=10,
        span_s=span_s,
        step_s=times(span_s / n_steps),
        samples_per_s=samples_per_s,
        phases=phases,
        is_steady=True,
    )


def spread(value: float) -> Spread:
    """Return readings that all have one value."""
    return Spread(n=60, mean=value, p5=value, p50=value, p95=value, min=value, max=value)


STARVED_BY_LOADER = Finding(
    code="PD101",
    name="starved-by-loader",
    category="data",
    severity="high",
    summary="54 % of the time waits for data. One process makes a batch in 17.1 ms; "
    "two workers are enough to hide it behind 14.1 ms of compute.",
    evidence=(
        Evidence(metric="share of the step waiting for data", value=0.541, unit="fraction", threshold=0.2, n=400),
        Evidence(metric="time to make one batch", value=0.0171, unit="s", n=16),
        Evidence(metric="num_workers", value=0),
    ),
    prescriptions=(
        Prescription(
            treatment="loader-workers",
            summary="Load in 2 workers that live on between epochs.",
            safety="exact",
            effort="one line",
            loader_args={"num_workers": 2, "persistent_workers": True},
            code="DataLoader(dataset, batch_size=32, num_workers=2, persistent_workers=True)",
        ),
    ),
    gain=Gain(low=1.7, high=2.1, basis="waiting is exclusive; two workers make a batch every 8.6 ms", method="probed"),
    claims={"data_wait": 6.64},
)

LOGGING_EVERY_STEP = Finding(
    code="PD502",
    name="logging-every-step",
    category="host",
    severity="low",
    summary="Logging takes 3.4 % of the steady time: log_every_n_steps is 1.",
    evidence=(Evidence(metric="share of logging", value=0.034, unit="fraction", threshold=0.03, n=400),),
    prescriptions=(
        Prescription(
            treatment="log-every-n",
            summary="Log every 50 steps.",
            safety="exact",
            effort="one line",
            trainer_flags={"log_every_n_steps": 50},
            code="Trainer(log_every_n_steps=50)",
        ),
    ),
    gain=Gain(low=1.0, high=1.035, basis="logging is exclusive"),
    confidence="medium",
    claims={"logging": 0.41},
)

SHARES = {
    "data_wait": 0.541,
    "backward": 0.2,
    "forward": 0.163,
    "logging": 0.034,
    "optimizer": 0.028,
    "validation": 0.024,
    "callbacks": 0.004,
    "transfer": 0.003,
    "checkpoint": 0.002,
    "other": 0.001,
}

OUTCOMES = (
    RuleOutcome(code="PD101", status="finding"),
    RuleOutcome(code="PD104", status="passed"),
    RuleOutcome(code="PD105", status="skipped", reason="no fetch blocked often enough: 3 waits, 8 needed"),
    RuleOutcome(code="PD318", status="passed"),
    RuleOutcome(code="PD502", status="finding"),
    RuleOutcome(code="PD601", status="ignored", reason='ignore=["PD601"]'),
)


def starved() -> Session:
    epochs = tuple(
        Epoch(
            index=i,
            n_steps=140,
            wall_s=4.4,
            phases={name: share * 4.4 for name, share in SHARES.items()},
            samples=4480,
            step_p50_s=0.0307,
        )
        for i in range(3)
    )
    return Session(
        run=Run(
            id="2026-01-02T03:04:05-7f3a",
            stage="fit",
            status="finished",
            started_at="2026-01-02T03:04:05+00:00",
            wall_s=14.2,
            n_steps=420,
            n_epochs=3,
            n_optimizer_steps=420,
            time_to_first_step_s=0.41,
            startup={"sanity_validation": 0.21, "other": 0.2},
            lightning_perf="0.1.0",
        ),
        machine=Machine(os="Linux", python="3.11.9", cpu_model="Some CPU", n_logical_cores=4, usable_cores=2.0),
        settings=Settings(
            trainer=TrainerSettings(precision="32-true", strategy="SingleDeviceStrategy", log_every_n_steps=1),
            loaders=(
                LoaderSettings(
                    stage="train",
                    index=0,
                    class_name="torch.utils.data.DataLoader",
                    is_plain=True,
                    batch_size=32,
                    num_workers=0,
                ),
            ),
            torch=TorchSettings(n_threads=2),
        ),
        epochs=epochs,
        steady=stage(12.28, 400, SHARES),
        memory=Memory(host_rss_bytes=700 * 1024**2, host_peak_rss_bytes=int(0.78 * GIB)),
        findings=(STARVED_BY_LOADER, LOGGING_EVERY_STEP),
        outcomes=OUTCOMES,
        verdict=Verdict(
            category="data", code="PD101", text="The loader starves the model: 54 % of the time is waiting"
        ),
        overhead=Overhead(per_step_us=14.2, reporting_s=0.031, share=0.0026, budget_us=40.0),
        missing={"steady.device": "the CPU has no clock of its own", "steady.gc_s": "gc callbacks are off"},
    )


def healthy() -> Session:
    shares = {"backward": 0.55, "forward": 0.37, "optimizer": 0.05, "data_wait": 0.02, "other": 0.01}
    base = starved()
    phases = {name: share * 4.4 for name, share in shares.items()}
    return msgspec.structs.replace(
        base,
        epochs=tuple(msgspec.structs.replace(epoch, phases=phases) for epoch in base.epochs),
        steady=stage(12.0, 400, shares),
        findings=(),
        outcomes=tuple(RuleOutcome(code=f"PD1{i:02}", status="passed") for i in range(1, 15)),
        verdict=Verdict(category="healthy", code=None, text="Healthy: 92 % of the time is forward and backward"),
    )


def twelve_findings() -> Session:
    severities = ("high", "medium", "medium", "low", "low", "low", "low", "info", "info", "info", "info")
    more = tuple(
        msgspec.structs.replace(
            LOGGING_EVERY_STEP,
            code=f"PD{600 + i}",
            name=f"example-finding-{i}",
            severity=severity,
            summary=f"Finding number {i} says something of moderate length about what was seen in this run.",
            is_preflight=i == 3,
            gain=None if severity == "info" else LOGGING_EVERY_STEP.gain,
        )
        for i, severity in enumerate(severities)
    )
    return msgspec.structs.replace(starved(), findings=(*more, STARVED_BY_LOADER))


def hostile() -> Session:
    """Return a session whose texts hold markup, HTML, Markdown and escape sequences, or are very long."""
    bad = "[bold]x[/bold] [/] <script>alert(1)</script> | ``` `a` \x1b[31mred\x1b[0m\x07\x00 \u202eevil\n# head"
    finding = msgspec.structs.replace(
        STARVED_BY_LOADER,
        code="PD504",
        name="slow-callback",
        summary=f"{bad} takes 12 % of the time",
        evidence=(
            Evidence(metric=bad, value="n" * 10_000),
            Evidence(metric="m" * 10_000, value=float("nan"), unit="s"),
            Evidence(metric="a unit of its own", value=3.0, unit=bad),
        ),
        prescriptions=(
            Prescription(
                treatment="",
                summary=bad,
                safety="exact",
                effort="minutes",
                code=f"print('''{bad}''')\n```\n~~~~\n" + "y" * 10_000 + "\n" + "z = 1\n" * 100,
            ),
        ),
        gain=Gain(low=1.0, high=float("inf"), basis=bad),
    )
    return msgspec.structs.replace(
        starved(),
        findings=(finding,),
        verdict=Verdict(category="host", code="PD504", text=bad + "v" * 10_000),
        machine=Machine(os="Linux", python="3.11", devices=(Device(index=0, name=bad, kind="cuda"),)),
        missing={bad: bad, "k" * 10_000: "w" * 10_000},
        probes_off=(ProbeFailure(probe=bad, error="e" * 10_000, step=3),),
        outcomes=(RuleOutcome(code="PD504", status="failed", reason=bad),),
    )


def too_short() -> Session:
    return msgspec.structs.replace(
        starved(),
        run=msgspec.structs.replace(
            starved().run, status="failed", error="ValueError", n_steps=3, n_epochs=0, wall_s=0.6
        ),
        epochs=(),
        steady=None,
        findings=(),
        outcomes=(RuleOutcome(code="PD101", status="skipped", reason="no steady steps"),),
        verdict=Verdict(category="unknown", code=None, text="Too little was measured: 3 steps, 20 are needed"),
        memory=Memory(),
        overhead=None,
        missing={"steady": "3 steps, fewer than the 10 of warm-up"},
    )


def ddp() -> Session:
    base = starved()
    steady = stage(
        62.0, 800, {"forward": 0.31, "backward": 0.47, "data_wait": 0.12, "transfer": 0.06, "optimizer": 0.04}, 8210.0
    )
    device = DeviceTimes(
        n=790,
        starved_s=5.9,
        starved_share=0.095,
        busy_s=55.8,
        step_s=times(0.0771),
        backend="cuda",
        phases={"forward": 0.0225, "backward": 0.0451, "optimizer": 0.0021},
        n_phases_sampled=24,
    )
    return msgspec.structs.replace(
        base,
        run=msgspec.structs.replace(base.run, rank=0, world_size=4, wall_s=3912.0, n_steps=48_000, n_epochs=12),
        machine=Machine(
            os="Linux",
            python="3.11.9",
            usable_cores=64.0,
            local_world_size=4,
            devices=(Device(index=0, name="NVIDIA H200", kind="cuda", memory_bytes=141 * GIB),),
        ),
        steady=msgspec.structs.replace(steady, device=device),
        validation=stage(8.1, 64, {"forward": 0.71, "data_wait": 0.22, "transfer": 0.05, "other": 0.02}, 12_001.0),
        memory=Memory(
            devices=(
                DeviceMemory(
                    device="cuda:0",
                    peak_allocated_bytes=int(31.2 * GIB),
                    peak_reserved_bytes=40 * GIB,
                    total_bytes=141 * GIB,
                    alloc_retries=0,
                ),
            ),
            host_peak_rss_bytes=9 * GIB,
        ),
        missing={},
    )


def validate_stage() -> Session:
    base = starved()
    return msgspec.structs.replace(
        base,
        run=msgspec.structs.replace(base.run, stage="validate", n_epochs=0, n_optimizer_steps=None, n_steps=64),
        epochs=(),
        steady=stage(2.0, 60, {"data_wait": 0.3, "forward": 0.6, "transfer": 0.06, "other": 0.04}, 3.25),
        findings=(),
        verdict=Verdict(category="healthy", code=None, text="Healthy: nothing above info"),
    )


def memory_sampled() -> Session:
    base = ddp()
    breakdown = Breakdown(
        device="cuda:0",
        parameters_bytes=4 * GIB,
        gradients_bytes=4 * GIB,
        optimizer_bytes=8 * GIB,
        optimizer_basis="expected",
        buffers_bytes=1024,
        batch_bytes=int(0.4 * GIB),
        activations_bytes=12 * GIB,
        activations_basis="saved tensors",
        n_samples=64,
        peak_bytes=int(31.2 * GIB),
        rest_bytes=int(2.8 * GIB),
        cache_bytes=int(8.8 * GIB),
        modules=(
            ModuleMemory(name="encoder", parameters_bytes=3 * GIB, activations_bytes=9 * GIB),
            ModuleMemory(name="head_a", parameters_bytes=GIB, activations_bytes=3 * GIB),
        ),
    )
    growing = Growth(
        where="cuda:0",
        n=200,
        first_step=100,
        last_step=20_000,
        level_bytes=20 * GIB,
        bytes_per_step=512 * 1024.0,
        low_bytes_per_step=500 * 1024.0,
        high_bytes_per_step=530 * 1024.0,
        is_steady=True,
    )
    level = msgspec.structs.replace(growing, where="host", bytes_per_step=12.0, low_bytes_per_step=-40.0)
    headroom = Headroom(
        device="cuda:0",
        capacity_bytes=141 * GIB,
        margin_fraction=0.1,
        fixed_bytes=19 * GIB,
        per_sample_bytes=0.19 * GIB,
        n_samples=64,
        largest_batch=567,
        basis="saved tensors of one batch",
    )
    phases = tuple(
        PhaseMemory(phase=phase, n=20, allocated_bytes=int(held * GIB), reserved_bytes=40 * GIB)
        for phase, held in (("forward", 28.4), ("backward", 20.4), ("optimizer", 16.4))
    )
    device = msgspec.structs.replace(base.memory.devices[0], phases=phases, peak_phase="backward")
    memory = msgspec.structs.replace(
        base.memory, devices=(device,), breakdown=breakdown, growth=(growing, level), headroom=headroom
    )
    return msgspec.structs.replace(base, memory=memory)


def loader_probed() -> Session:
    """Return a starved run whose loader was probed."""
    base = starved()

    def repeated(seconds: float, longest: float) -> Repeated:
        return Repeated(n=512, mean_s=seconds, p50_s=seconds, p95_s=1.2 * seconds, max_s=longest)

    def point(n: int, batch_s: float) -> WorkerPoint:
        return WorkerPoint(
            num_workers=n,
            prefetch_factor=2 if n else None,
            batch_s=batch_s,
            low_s=0.98 * batch_s,
            high_s=1.02 * batch_s,
            first_batch_s=2 * batch_s + 0.05 * n,
            n_batches=80,
            take_s=0.0002 if n else None,
        )

    probe = LoaderProbe(
        status="measured",
        wall_s=12.0,
        usable_cores=8.0,
        batch_size=32,
        num_workers=0,
        getitem=repeated(0.00052, 0.0009),
        getitem_cpu_fraction=0.99,
        dataset_is_batched=False,
        indexes_tensors=False,
        collate=repeated(0.0004, 0.001),
        transport=repeated(0.0006, 0.002),
        batch_bytes=32 * 3 * 224 * 224 * 4,
        n_tensors=2,
        n_objects=0,
        read_bytes=110_000.0,
        functions=(
            HotFunction(name="Images.augment", file="/home/user/train.py", line=31, share=0.72, own_share=0.7,
                        blamed_share=0.71, n_calls=1.0),
            HotFunction(name="Images.decode", file="/home/user/train.py", line=22, share=0.2, own_share=0.01,
                        blamed_share=0.2, n_calls=1.0, kind="native"),
        ),
        curve=(point(0, 0.0171), point(1, 0.0175), point(2, 0.0089), point(4, 0.0046), point(8, 0.0031)),
    )  # fmt: skip
    found = diagnose(msgspec.structs.replace(base, loader_probe=probe))
    return msgspec.structs.replace(found, outcomes=base.outcomes)  # what was found; not how many rules there are


def earlier_runs(news: str = "18 % slower than your last 5 runs: data wait +10.1 ms per step") -> EarlierRuns:
    """Return five earlier runs and a slower one with fewer workers."""
    changed = (
        Difference(name="num_workers", base="8", new="4"),
        Difference(name="commit", base="a" * 40, new="b" * 40),
    )
    runs = [EarlierRun(id=f"run{i}", started_at=f"2026-01-{i + 1:02d}T08:00:00Z", n_steps=400,
                       step_s=0.062 if i == 5 else 0.052,
                       phase_s={"data_wait": 0.012 if i == 5 else 0.002, "forward": 0.02, "backward": 0.03},
                       changes=changed if i == 5 else ())
            for i in range(6)]  # fmt: skip
    return EarlierRuns(runs=tuple(runs), news=news)


SESSIONS: dict[str, Callable[[], Session]] = {
    "starved": starved,
    "healthy": healthy,
    "twelve_findings": twelve_findings,
    "hostile": hostile,
    "too_short": too_short,
    "ddp": ddp,
    "validate_stage": validate_stage,
    "memory_sampled": memory_sampled,
    "loader_probed": loader_probed,
}
