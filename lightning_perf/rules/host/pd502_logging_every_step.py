"""PD502: logging takes too much of each step because it is done too often."""

from __future__ import annotations

import math

from lightning_perf.records import Evidence, Finding, Prescription, Session
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.logging_cost import FREQUENT_STEPS, loggers_of, slow_calls
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.signals import named_by_kind, phase_s, share_of, steady_of
from lightning_perf.rules.wording import percent

CODE = "PD502"
NAME = "logging-every-step"
CATEGORY = "host"

# Lightning issues 21232 and 1986: users notice from a few percent on.
MIN_SHARE = 0.03
DEFAULT_STEPS = 50
# The interval prescribed brings logging down to this share.
TARGET_SHARE = 0.005

DOCS = """\
## What it measures
The share of the time in collecting metrics (what `self.log` does with a value) and in loggers, without loggers whose
single call is slow (PD505).

## Why it costs
At each logged step every metric is reduced, copied from the device and written. Metrics with `prog_bar=True` are copied
at every step, whatever `log_every_n_steps` says, and each copy makes the host wait for the device.

## Example
```python
trainer = Trainer(log_every_n_steps=1)
```

## Prescription
A larger `log_every_n_steps`; fewer metrics with `prog_bar=True`; `on_epoch=True, on_step=False` for what is read once
an epoch.

## When it is wrong
For short debugging runs the detail may be worth it. On a device, part of the wait inside logging is computing that
would be waited for elsewhere.

## Sources
Lightning issues 21232 and 1986; the lecture's first anti-pattern (a synchronisation at each step).
"""


def check(session: Session) -> Finding | None:
    """Compares the logging phase, without slow loggers, with the threshold."""
    steady = steady_of(session)
    loggers = loggers_of(steady)
    slow_share = sum(share_of(slow_calls(times, session)) for times in loggers.values())
    share = phase_s(steady, "logging") / steady.span_s - slow_share
    if share < MIN_SHARE:
        return None
    trainer = session.settings.trainer
    interval = trainer.log_every_n_steps
    frequent_share = sum(share_of(times) for times in loggers.values()) - slow_share
    collecting_share = share_of(named_by_kind(steady, "loop").get("metrics", ()))
    is_collecting = collecting_share > frequent_share  # whether written or not: a longer interval helps little
    advice: tuple[Prescription, ...] = ()
    low_s = 0.0
    if interval is not None and interval < DEFAULT_STEPS:
        wanted = max(DEFAULT_STEPS, 10 * math.ceil(interval * share / TARGET_SHARE / 10))
        if not is_collecting or frequent_share >= MIN_SHARE:
            advice = (_prescription(min(wanted, 10 * DEFAULT_STEPS)),)
            low_s = frequent_share * steady.span_s * (1 - interval / DEFAULT_STEPS)
    if is_collecting or not advice:
        fewer = Prescription(
            treatment="prog-bar-off",
            summary="log fewer metrics a step: prog_bar=False, or on_step=False, on_epoch=True",
            safety="exact",
            effort="minutes",
            code='self.log("train_loss", loss, prog_bar=False, on_step=False, on_epoch=True)',
        )
        advice = (fewer, *advice)
    evidence = [
        Evidence(
            metric="share of the time in logging",
            value=share,
            unit="fraction",
            threshold=MIN_SHARE,
            n=steady.n_steps,
        ),
        Evidence(metric="log_every_n_steps", value="unknown" if interval is None else interval),
    ]
    if trainer.prog_bar_metrics:
        evidence.append(Evidence(metric="metrics on the progress bar", value=trainer.prog_bar_metrics, unit="count"))
    logging_s = share * steady.span_s
    return timed_finding(
        steady,
        code=CODE,
        name=NAME,
        category=CATEGORY,
        summary=f"{percent(share)} of the time goes into logging{_how(interval, is_collecting)}.",
        evidence=tuple(evidence),
        prescriptions=advice,
        claims={"logging": logging_s},
        low_s=low_s,
        method="timed",
        basis="from the loggers' own time to all of the logging",
    )


def _how(interval: int | None, is_collecting: bool) -> str:
    if is_collecting:
        return ": most of it collects what self.log is given at each step"
    return f" every {interval} steps" if interval and interval > 1 else " at every step" if interval else ""


def preflight(session: Session) -> Finding | None:
    """The same from the Trainer's flag."""
    trainer = session.settings.trainer
    if trainer.log_every_n_steps is None:
        raise Skip("log_every_n_steps is not known")
    if not trainer.loggers or not 0 < trainer.log_every_n_steps < FREQUENT_STEPS:
        return None
    return Finding(
        code=CODE,
        name=NAME,
        category=CATEGORY,
        severity="info",
        summary=f"Logging every {trainer.log_every_n_steps} steps is likely to cost time.",
        evidence=(Evidence(metric="log_every_n_steps", value=trainer.log_every_n_steps, threshold=FREQUENT_STEPS),),
        prescriptions=(_prescription(DEFAULT_STEPS),),
    )


def _prescription(n_steps: int) -> Prescription:
    return Prescription(
        treatment="log-every-n",
        summary=f"set log_every_n_steps={n_steps}",
        safety="exact",
        effort="one line",
        trainer_flags={"log_every_n_steps": n_steps},
        code=f"Trainer(..., log_every_n_steps={n_steps})",
    )


RULE = Rule(code=CODE, name=NAME, category=CATEGORY, docs=DOCS, check=check, preflight=preflight)
