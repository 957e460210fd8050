"""PD311: ``torch.compile`` recompiles a function repeatedly."""

import re

from lightning_perf.records import Finding, Prescription, Recompile, Session
from lightning_perf.rules.findings import (
    fact,
    fix,
    gain_from,
    gain_span_s,
    make_finding,
    severity_of_gain,
    uncertainty_s,
)
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.signals import steady_of
from lightning_perf.rules.thresholds import LOW_SHARE, MIN_RECOMPILES, RECOMPILES_AT_LIMIT
from lightning_perf.rules.wording import called, duration, percent, place_of


@rule("PD311", "recompiling", explains=("PD405",))  # compiled code takes memory
def check(session: Session) -> Finding | None:
    watch = required(session.compiler, session.missing.get("compiler", "nothing was compiled"))
    steady = steady_of(session)
    late = [each for each in watch.recompiles if each.n_after_warmup]
    n = sum(each.n_after_warmup for each in late)
    spent_s = min(watch.compile_after_warmup_s, sum(each.compile_s or 0.0 for each in late) or float("inf"))
    span_s = gain_span_s(steady)
    share = spent_s / (span_s + spent_s)
    rest_s = max(steady.n_steps * steady.step_s.mean, steady.span_s - steady.own_s)  # without all of PerfDoctor's time
    most = RECOMPILES_AT_LIMIT if watch.recompile_limit is None else watch.recompile_limit - 1
    at_limit = [each for each in watch.recompiles if each.n >= most]
    if not at_limit and (n == 0 or (n < MIN_RECOMPILES and share < LOW_SHARE)):
        return None
    worst = max(at_limit or late, key=lambda each: each.n)
    unless = ", unless the limit was raised" if watch.recompile_limit is None else ""
    uncompiled = f" After so many recompilations torch runs the function uncompiled{unless}." if at_limit else ""
    # The steady span excludes steps that compile, so the gain is the span with them ÷ the span without. One compilation
    # remains, for sizes that may change. A function at the limit is not compiled again, so no gain is certain.
    low_s = 0.0 if at_limit else share * (1 - 1 / n) * span_s
    gain = gain_from(
        steady,
        low_s - uncertainty_s(steady, low_s),
        max(share, spent_s / (rest_s + spent_s)) * span_s,
        "at most the time spent recompiling" if at_limit else "all but one of these recompilations",
        "timed",
    )
    return make_finding(
        # The cost of running uncompiled from then on is not known.
        severity="low" if at_limit and share < LOW_SHARE else severity_of_gain(gain),
        summary=(
            f"{place_of(worst)} was recompiled {called(worst.n)}; "
            f"recompiling takes {percent(share)} of the time after the first steps."
            f"{uncompiled}{f' Reason: {worst.reason}.' if worst.reason else ''}"
        ),
        evidence=(
            fact("recompilations after the first steps", n, "count", MIN_RECOMPILES),
            fact("share of the time recompiling", share, "fraction", LOW_SHARE),
            fact("total compile time", duration(watch.compile_s)),
            *(
                fact(f"{place_of(r)} recompiled", r.n, "count", most if at_limit else None)
                for r in (at_limit or late)[:3]
            ),
        ),
        prescriptions=_prescriptions(worst, is_only=len(watch.recompiles) == 1 and watch.n_functions > 1),
        gain=gain,
        confidence="high",
    )


_SIZES = re.compile(r"size mismatch at index (\d+)\. expected (\d+), actual (\d+)")
_NOT_ONE = fix(
    "avoid the size 1, for which torch always compiles again: use a batch size that leaves no batch of 1",
    "minutes",
    "semantics",
    code="DataLoader(..., drop_last=True)  # or another batch_size",
)

_STEADY = fix(
    "keep what the guard checks the same in all steps",
    "minutes",
    code="self.factor = torch.tensor(factor)  # a number that changes in each step, as a tensor",
)
_EXCLUDE_LOG = fix(
    "exclude self.log from compilation: its guards check Lightning's own state",
    "minutes",
    code=(
        "@torch.compiler.disable  # in the LightningModule\n"
        "def log(self, *args, **kwargs): super().log(*args, **kwargs)"
    ),
)


def _prescriptions(worst: Recompile, is_only: bool) -> tuple[Prescription, ...]:
    """Return what avoids the failures of the guard."""
    if worst.function == "log" and worst.file.replace("\\", "/").endswith("pytorch/core/module.py"):
        return (_EXCLUDE_LOG,)
    is_of_shape = not worst.reason or any(
        word in worst.reason for word in ("size mismatch", "stride mismatch", ".size()", ".stride()", ".shape")
    )
    return (_for_sizes(worst.reason) if is_of_shape else _STEADY, *((_exclude(worst),) if is_only else ()))


def _for_sizes(reason: str) -> Prescription:
    """Return what avoids compiling for each size."""
    sizes = _SIZES.search(reason)
    dimension = int(sizes[1]) if sizes is not None else 1
    if sizes is not None and dimension == 0 and "1" in sizes.groups()[1:]:
        return _NOT_ONE
    code = (
        f"torch._dynamo.mark_dynamic(batch, {dimension})  # before the model is called; or torch.compile(dynamic=True)"
    )
    return fix("mark the dimension that changes as dynamic, or pad batches to a few sizes", "minutes", code=code)


def _exclude(only: Recompile) -> Prescription:
    return fix(
        f"exclude {only.function}, the only function that recompiles, from compilation",
        "minutes",
        code=f"@torch.compiler.disable  # on {only.function}; functions that it calls are still compiled",
    )
