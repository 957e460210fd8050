"""PD309: attention that writes all scores to memory."""

from lightning_perf.records import AttentionCall, Evidence, Prescription, Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.kernel_signals import on_path_s
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.rule import Skip
from lightning_perf.rules.step_signals import from_trace_or_steps, sampled_steps_of
from lightning_perf.rules.thresholds import ATTENTION_MIN_SHARE
from lightning_perf.rules.trace_reading import complete_reading_of
from lightning_perf.rules.wording import percent, place, place_of, site_of

_FUSED = "scaled_dot_product_attention"
_NO_DROPOUT = """\
for module in self.modules():  # at the end of __init__
    if isinstance(module, torch.nn.MultiheadAttention):
        module.dropout = 0.0
"""


@replay_rule("PD309", "materialised-attention", explains=("PD301", "PD302"))
def check(session: Session) -> Diagnosis | None:
    return from_trace_or_steps(session, _from_trace, _from_steps)


def _from_steps(session: Session) -> Diagnosis | None:
    calls, _ = sampled_steps_of(session)
    if calls.device != "cpu":
        raise Skip("on a device the time of attention is known from a profiler window only")
    share = min(1.0, sum(call.share or 0.0 for call in calls.attentions))
    if share < ATTENTION_MIN_SHARE:
        return None
    worst = calls.attentions[0]
    via = f" through torch's {worst.via}" if worst.via else ""
    n = calls.n_steps
    found = fact("attention ÷ time of a step", share, "fraction", ATTENTION_MIN_SHARE, n)
    sites = {place_of(each): each.per_step for each in calls.attentions[:3]}
    more = [fact(f"attention at {site}", k, "per step", n=n) for site, k in sites.items()]
    scores = f"{worst.rows} x {worst.columns} scores{via}"
    return _diagnosed(share, next(iter(sites)), scores, (found, *more), _prescription(worst.function, worst))


def _from_trace(session: Session) -> Diagnosis | None:
    reading = complete_reading_of(session)
    trace = reading.trace
    if trace.n_operators == 0:
        raise Skip(trace.missing.get("operators", "the trace holds no operators"))
    attention, is_device = trace.attention, trace.device is not None
    if attention is None or attention.share < ATTENTION_MIN_SHARE:
        return None
    spent_s = on_path_s(trace, attention.device_s) if is_device else min(attention.host_s, reading.code_limit_s)
    function, call = attention.function, None
    site = place(function, attention.site) if attention.site else ""
    if not site and session.sync_calls is not None and session.sync_calls.attentions:  # a trace without stacks
        call = session.sync_calls.attentions[0]
        function, site = call.function, place_of(call)
    found = fact(
        "attention ÷ time of " + ("the device" if is_device else "operators"),
        attention.share,
        "fraction",
        ATTENTION_MIN_SHARE,
        attention.n,
    )
    evidence = (found, reading.evidence("attention", spent_s))
    scores = "all scores"
    if attention.rows is not None and attention.columns is not None:
        scores = f"{attention.rows} x {attention.columns} scores"
    share = reading.share(spent_s)
    return _diagnosed(share, site, scores, evidence, _prescription(function, call))


def _diagnosed(
    share: float, site: str, scores: str, evidence: tuple[Evidence, ...], prescription: Prescription
) -> Diagnosis:
    return Diagnosis(
        f"{percent(share)} of the time is attention written out as matrix multiplications and softmax: "
        f"{site or 'the model'} writes {scores} to memory",
        evidence,
        prescription,
        "fused attention runs it",
        replayed_as="fused-attention",
        at_stake=share,
    )


def _prescription(function: str, call: AttentionCall | None = None) -> Prescription:
    if function.startswith("eager_attention"):  # the name in transformers' models
        code = 'model.set_attn_implementation("sdpa")  # or from_pretrained(..., attn_implementation="sdpa")'
        return fix("switch the model to sdpa", "one line", "numerics", treatment="fused-attention", code=code)
    code = "out = torch.nn.functional.scaled_dot_product_attention(q, k, v)"
    summary = "use torch's scaled_dot_product_attention"
    if call is not None and call.fallback == "dropout":
        summary = f"set the dropout of attention to 0: with it, {_FUSED} has no fused kernel on a CPU"
        return fix(summary, "minutes", "semantics", code=_NO_DROPOUT if call.via else "")
    if call is not None and (call.fallback or _FUSED in call.code):
        code = ""
        summary = (
            f"use inputs for which {_FUSED} has a fused kernel: four dimensions, a mask that it supports, and on a CPU "
            "dropout_p=0; here it falls back to matrix multiplications"
        )
    elif call is not None and call.via:
        summary = "pass need_weights=False where the attention weights are not used: torch then runs fused attention"
        code = "out, _ = attention(q, k, v, need_weights=False)"
        if call.code:
            code += f"  # now, at {site_of(call.file, call.line)}: {call.code}"
    return fix(summary, "minutes", "numerics", code=code)
