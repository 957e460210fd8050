"""PD706: DDP stores every gradient twice while memory is nearly full."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, make_finding, optional_fact
from lightning_perf.rules.memory_signals import is_tight
from lightning_perf.rules.rule import Skip, required, rule
from lightning_perf.rules.signals import check_has_ranks
from lightning_perf.rules.wording import size_text


@rule("PD706", "no-bucket-view")
def check(session: Session) -> Finding | None:
    check_has_ranks(session)
    if session.run.stage != "fit":
        raise Skip(f"only fit has gradients, this is {session.run.stage}")
    is_view = required(session.settings.trainer.gradient_as_bucket_view, "the strategy is not DDP")
    if not session.memory.devices:
        raise Skip(session.missing.get("memory.devices", "no device memory was read"))
    if is_view or not is_tight(session):
        return None
    breakdown = session.memory.breakdown
    n_bytes = breakdown.gradients_bytes if breakdown is not None else None
    saved = f"{size_text(n_bytes)} of gradients are" if n_bytes else "all gradients are"
    return make_finding(
        severity="medium",
        summary=f"Memory is nearly full, and {saved} stored twice: DDP copies them into its buckets.",
        evidence=(fact("gradient_as_bucket_view", False), optional_fact("gradients", n_bytes or None, "bytes")),
        prescriptions=fix(
            "set gradient_as_bucket_view=True on DDP",
            "one line",
            treatment="ddp-bucket-view",
            code="Trainer(..., strategy=DDPStrategy(..., gradient_as_bucket_view=True))",
        ),
    )
