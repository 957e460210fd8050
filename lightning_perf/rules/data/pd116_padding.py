"""PD116: a large share of the tokens is padding that could be left out."""

from lightning_perf.records import Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.rule import required
from lightning_perf.rules.signals import CODE_PHASES, steady_of
from lightning_perf.rules.thresholds import DOMINANT_PART, PADDING_MIN_SHARE
from lightning_perf.rules.user_lines import cpu_computing_share
from lightning_perf.rules.wording import percent

TRIM = fix(
    "pad each batch only to its longest sequence",
    "minutes",
    "numerics",
    code='tokenizer.pad(samples, padding="longest")  # in collate_fn; or torch.nn.utils.rnn.pad_sequence(samples)',
)
BUCKET = fix(
    "make batches of sequences of similar length, or pack several sequences into one row",
    "hours",
    "semantics",
    code="order = sorted(pool, key=lambda i: len(dataset[i]))  # in a batch_sampler, in pools of some dozen batches",
)


@replay_rule("PD116", "padding")
def check(session: Session) -> Diagnosis | None:
    steady_of(session)
    padding = required(session.padding, session.missing.get("padding", "padding was not counted"))
    n = max(1, padding.n_tokens)
    share = padding.n_padding / n
    trimmed, bucketed = ((n - left) / n for left in (padding.trimmed_tokens, padding.bucketed_tokens))
    if share < PADDING_MIN_SHARE or bucketed < PADDING_MIN_SHARE:
        return None
    is_trim_enough = trimmed >= max(PADDING_MIN_SHARE, DOMINANT_PART * bucketed)
    prescription, less = (TRIM, trimmed) if is_trim_enough else (BUCKET, bucketed)
    how = "that end with their longest sequence" if prescription is TRIM else "of sequences of similar length"
    return Diagnosis(
        f"{percent(share)} of the tokens are padding; batches {how} would have {percent(less)} fewer tokens",
        (
            fact("padding ÷ tokens", share, "fraction", PADDING_MIN_SHARE, padding.n_batches),
            fact("tokens left if batches end with their longest sequence", padding.trimmed_tokens, "count"),
            fact("tokens left if, besides, their sequences have similar lengths", padding.bucketed_tokens, "count"),
            fact("tokens now", padding.n_tokens, "count"),
            fact("padding recognized by", padding.basis),
        ),
        prescription,
        "on sequences shortened by as much, these operators run",
        replayed_as=f"sequence={1 - less:.2f}",
        at_stake=cpu_computing_share(session, *CODE_PHASES),
    )
