"""PD309: attention that writes its whole square of scores to memory."""

from __future__ import annotations

from lightning_perf.records import AttentionCall, Evidence, Finding, MaterialisedAttention, Prescription, Session
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.host_signals import claims_within, looked_at, steps_s, trace_or_live, where
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.signals import is_cpu_run
from lightning_perf.rules.trace_signals import (
    CODE_PHASES,
    code_limit_s,
    code_phases,
    device_savings,
    is_blind,
    place,
    reading_of,
    share_evidence,
    trace_finding,
)
from lightning_perf.rules.wording import percent

CODE = "PD309"
NAME = "materialised-attention"
CATEGORY = "compute"

MIN_SHARE = 0.15
# The lecture gives 2-4x for flash attention, a case study 2.5x in training; small sizes and CPUs gain less.
LOW_SPEED_UP = 1.3
HIGH_SPEED_UP = 4.0

DOCS = """\
## What it measures
In a profiler window, a batched product, a softmax and a second product in a row, with their backward, as a share of
the device's time (of the operators' time on a CPU). On a CPU without a window, the same in a few sampled steps, as a
share of the step.

## Why it costs
The scores of every query with every key are written to memory, read for the softmax, written and read again. Fused
attention keeps them in the chip: memory grows with the sequence instead of its square.

## Example
```python
weights = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1)
return weights @ v
```

## Prescription
`torch.nn.functional.scaled_dot_product_attention(q, k, v)`; models of a library: `attn_implementation="sdpa"`.

## When it is wrong
Where the weights themselves are needed. Short sequences gain little, and unusual masks may fall back to the same
written-out form. On a CPU in 16 bit nothing is said: there the backward pass of fused attention may take longer than
what it replaces.

## Sources
The profiling lecture (flash attention, 2-4x); a case study of attention at 60 % of a training, 2.5x faster with it.
"""


def check(session: Session) -> Finding | None:
    """Charges the sequence with the time of its kernels, or on a CPU with the host's."""
    if is_cpu_run(session) and "16" in (session.settings.trainer.precision or ""):
        # Steps took 1.2 and 1.7 times as long with fused attention in two small models in bf16 (ATTENTION_QUERY_S of
        # PD301 is why).
        raise Skip("the backward pass of a CPU's fused attention may take longer in 16 bit than what it replaces")
    return trace_or_live(session, _from_trace, _live)


def _live(session: Session) -> Finding | None:
    calls, steady = looked_at(session)
    if calls.device != "cpu":
        raise Skip("what attention costs a device, only a profiler window tells")
    share = min(1.0, sum(call.share or 0.0 for call in calls.attentions))
    if share < MIN_SHARE:
        return None
    worst = calls.attentions[0]
    spent_s = share * steps_s(steady)
    via = f", by way of torch's {worst.via}" if worst.via else ""
    return timed_finding(
        steady,
        code=CODE,
        name=NAME,
        category=CATEGORY,
        summary=(
            f"{percent(share)} of a step is attention written out as products and a softmax. "
            f"{where(worst.file, worst.line, worst.function)} writes {worst.rows} x {worst.columns} scores to "
            f"memory{via}."
        ),
        evidence=(
            Evidence(
                metric="attention in the time of a step",
                value=share,
                unit="fraction",
                threshold=MIN_SHARE,
                n=calls.n_steps,
            ),
            *(
                Evidence(
                    metric=f"attention at {where(each.file, each.line, each.function)}",
                    value=each.per_step,
                    unit="a step",
                    n=calls.n_steps,
                )
                for each in calls.attentions[:3]
            ),
        ),
        prescriptions=(_prescription(worst),),
        claims=claims_within(steady, spent_s * (1 - 1 / HIGH_SPEED_UP), CODE_PHASES),
        # On a CPU the products take most of it, and scores that fit a cache are written at little cost.
        low_s=0.0,
        basis=f"attention up to {HIGH_SPEED_UP:g}x faster, the rest as it is",
        confidence="medium",
    )


def _prescription(call: AttentionCall | None = None) -> Prescription:
    code = "out = torch.nn.functional.scaled_dot_product_attention(q, k, v)"
    summary = "use torch's scaled_dot_product_attention"
    if call is not None and call.via:
        summary += "; need_weights=False where its weights are not used"
    elif call is not None and "scaled_dot_product_attention" in call.code:
        code = ""
        summary = (
            "let torch's scaled_dot_product_attention take a fused kernel: give it four dimensions, and a mask that "
            "those know; here it fell back to the written-out form"
        )
    return Prescription(treatment="", summary=summary, safety="numerics", effort="minutes", code=code)


def _from_trace(session: Session) -> Finding | None:
    reading = reading_of(session)
    trace = reading.trace
    if is_blind(trace):
        raise Skip(trace.missing.get("device", "the trace does not show what the device did"))
    if trace.n_operators == 0:
        raise Skip(trace.missing.get("operators", "the trace holds no operators"))
    attention = trace.attention
    if attention is None or attention.share < MIN_SHARE:
        return None
    spent_s = attention.device_s if trace.device is not None else min(attention.host_s, code_limit_s(reading))
    low_s, high_s = 0.0, spent_s * (1 - 1 / HIGH_SPEED_UP)  # on a CPU: as in _live
    if trace.device is not None:
        low_s, high_s = device_savings(reading, spent_s * (1 - 1 / LOW_SPEED_UP), high_s)
    where = f" {place(attention.site, attention.function)} writes" if attention.site else " The model writes"
    return trace_finding(
        reading,
        code=CODE,
        name=NAME,
        category=CATEGORY,
        summary=(
            f"{percent(reading.share(spent_s))} of the time is attention written out as products and a softmax."
            f"{where} {_scores(attention)} to memory."
        ),
        evidence=(
            Evidence(
                metric="attention in the time of " + ("the device" if trace.device is not None else "operators"),
                value=attention.share,
                unit="fraction",
                threshold=MIN_SHARE,
                n=attention.n,
            ),
            share_evidence(reading, "attention", spent_s),
            *((Evidence(metric="place", value=place(attention.site, attention.function)),) if attention.site else ()),
        ),
        prescriptions=(_prescription(),),
        low_s=low_s,
        high_s=high_s,
        phases=code_phases(reading) if trace.device is None else (),
        basis=f"attention {LOW_SPEED_UP if trace.device is not None else 1:g}x to {HIGH_SPEED_UP:g}x faster, the rest "
        "as it is",
        confidence="medium",
    )


def _scores(attention: MaterialisedAttention) -> str:
    if attention.rows is None or attention.columns is None:
        return "all scores"
    return f"{attention.rows} x {attention.columns} scores"


RULE = Rule(code=CODE, name=NAME, category=CATEGORY, docs=DOCS, check=check)
