"""PD325: the output layer computes positions that the loss ignores."""

from lightning_perf.records import Session
from lightning_perf.rules.findings import fact, fix, optional_fact
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.rule import required
from lightning_perf.rules.signals import steady_of
from lightning_perf.rules.step_signals import model_profile_of
from lightning_perf.rules.thresholds import IGNORED_TARGETS_MIN_SHARE
from lightning_perf.rules.wording import percent


@replay_rule("PD325", "ignored-targets")
def check(session: Session) -> Diagnosis | None:
    steady_of(session)
    targets = required(model_profile_of(session).targets, "no cross-entropy was seen in the sampled step")
    share = targets.n_ignored / max(1, targets.n_targets)
    if share < IGNORED_TARGETS_MIN_SHARE:
        return None
    loss = f"The loss in {targets.site}" if targets.site else "The loss"
    return Diagnosis(
        f"{loss} ignores {percent(share)} of the targets of a step, but the output layer computes scores of "
        f"{targets.n_classes:,} classes for each of them",
        (
            fact("ignored ÷ all targets of a step", share, "fraction", IGNORED_TARGETS_MIN_SHARE),
            fact("targets of a step", targets.n_targets, "count"),
            fact("classes", targets.n_classes, "count"),
            optional_fact("line of the output layer", targets.layer_site or None),
        ),
        fix(
            "apply the output layer only to positions whose target is not ignored",
            "minutes",
            "numerics",
            code=(
                f"is_used = labels != {targets.ignore_index}\n"
                "loss = F.cross_entropy(self.head(hidden[is_used]), labels[is_used])"
            ),
        ),
        "without them, the output layer and its softmax run",
        replayed_as=f"targets={1 - share:.2f}",
    )
