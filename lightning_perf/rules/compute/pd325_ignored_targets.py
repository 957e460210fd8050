"""PD325: the output layer computes positions that the loss ignores."""

from lightning_perf.records import Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.rule import required
from lightning_perf.rules.signals import CODE_PHASES, steady_of
from lightning_perf.rules.step_signals import model_profile_of
from lightning_perf.rules.thresholds import IGNORED_TARGETS_MIN_SHARE
from lightning_perf.rules.user_lines import cpu_computing_share, whole_lines_of
from lightning_perf.rules.wording import percent

_LOSSES = ("cross_entropy", "CrossEntropyLoss.forward", "nll_loss", "NLLLoss.forward")


@replay_rule("PD325", "ignored-targets")
def check(session: Session) -> Diagnosis | None:
    steady_of(session)
    targets = required(model_profile_of(session).targets, "no cross-entropy was seen in the sampled step")
    share = targets.n_ignored / max(1, targets.n_targets)
    if share < IGNORED_TARGETS_MIN_SHARE:
        return None
    return Diagnosis(
        f"{percent(share)} of the targets are ignored by the loss, but the output layer and the loss compute "
        f"{targets.n_classes:,} classes for each of them{_where(session)}",
        (
            fact("ignored ÷ all targets of a step", share, "fraction", IGNORED_TARGETS_MIN_SHARE),
            fact("targets of a step", targets.n_targets, "count"),
            fact("classes", targets.n_classes, "count"),
        ),
        fix(
            "select the positions that count before the output layer",
            "minutes",
            "numerics",
            code=(
                "counts = labels != -100  # the loss's ignore_index\n"
                "loss = F.cross_entropy(self.head(hidden[counts]), labels[counts])"
            ),
        ),
        "on the other positions, these operators run",
        replayed_as=f"targets={1 - share:.2f}",
        at_stake=cpu_computing_share(session, *CODE_PHASES),
    )


def _where(session: Session) -> str:
    """Return the line that calls the loss; empty if stack samples show none."""
    lines = whole_lines_of(session, CODE_PHASES, lambda line: line.call.endswith(_LOSSES))
    return f", in {lines[0].where}" if lines else ""
