"""PD602: saving checkpoints takes a share of training time."""

import math

from lightning_perf.records import (
    Finding,
    FixedWeights,
    Hyperparameters,
    Prescription,
    Session,
    async_checkpoints_are_copies,
)
from lightning_perf.rules.findings import SPREAD, fact, fix, removal_finding
from lightning_perf.rules.rule import rule
from lightning_perf.rules.signals import call_s, named_by_kind, phase_s, steady_of, step_counter
from lightning_perf.rules.thresholds import CHECKPOINT_TARGET_RATIO, IN_EPOCH_MAX_EPOCHS, LOOP_MIN_SHARE, MANY
from lightning_perf.rules.wording import duration, number_of, percent, place, size_text


@rule("PD602", "checkpoint-heavy", line_of=())
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    seconds = phase_s(steady, "checkpoint")
    share = seconds / steady.span_s
    if share < LOOP_MIN_SHARE:
        return None
    saves = named_by_kind(steady, "loop").get("save_checkpoint", [])
    name = next(iter(named_by_kind(steady, "checkpoint_callback")), "" if saves else "ModelCheckpoint")
    n_saves = sum(time.n_calls for time in saves)
    each = f" Each of {number_of(n_saves, 'checkpoint')} took {duration(call_s(*saves))}." if n_saves > 1 else ""
    is_in_epoch, interval, n_fitting = _interval(session, n_saves, bool(name))
    times = min(MANY, max(2, math.ceil(share / (1 - share) / CHECKPOINT_TARGET_RATIO)), n_fitting)
    data, fixed = _data_in(session), _fixed_in(session)
    left, left_least = 1 / times, 1 / times if times > 1 else 0.0
    excess = data or fixed
    if excess is not None:
        left, left_least = max(0.0, 1.0 - (1 - SPREAD) * n_saves * (excess.costs_s or 0.0) / seconds), 0.0
    if data is not None:
        each += (
            f" The hyperparameters, most of them {place(data.largest, data.site)}, have {size_text(data.n_bytes)}, the "
            f"weights {size_text(_weights_bytes(session))}."
        )
    elif fixed is not None:
        each += (
            f" Of {size_text(_weights_bytes(session))} of weights, {size_text(fixed.n_bytes)} do not change, the "
            f"largest of them {place(fixed.largest, fixed.site)}."
        )
    return removal_finding(
        steady,
        summary=f"{percent(share)} of training time is spent saving checkpoints.{each}",
        evidence=(
            fact("share of the time saving checkpoints", share, "fraction", LOOP_MIN_SHARE),
            fact("time per checkpoint", call_s(*saves), "s", n=n_saves) if saves else None,
            fact(
                "checkpoints saved by",
                name or ("trainer.save_checkpoint" if session.run.has_trainer else "fabric.save"),
            ),
            fact("data in the hyperparameters", data.n_bytes, "bytes") if data is not None else None,
            fact("weights that do not change", fixed.n_bytes, "bytes") if fixed is not None else None,
        ),
        prescriptions=(
            _without(data) if data is not None else _without_fixed(fixed) if fixed is not None else None,
            _less_often(session, name, is_in_epoch, interval, times) if times > 1 else None,
            fix(
                "write checkpoints in the background: plugins=[AsyncCheckpointIO()]",
                "one line",
                treatment="async-checkpoint",
                code=(
                    f"from {session.settings.trainer.package or 'lightning.pytorch'}.plugins.io import "
                    "AsyncCheckpointIO\n"
                    "Trainer(..., plugins=[AsyncCheckpointIO()])"
                ),
            )
            if session.run.has_trainer
            and async_checkpoints_are_copies(session.machine.versions, session.settings.trainer.package)
            else None,
        ),
        timed={"checkpoint": seconds},
        left=left,
        left_least=left_least,
    )


def _weights_bytes(session: Session) -> int:
    model = session.settings.model
    return sum(each.n_bytes for each in (*model.parameters, *model.buffers)) if model is not None else 0


def _data_in(session: Session) -> Hyperparameters | None:
    """Return the data among the hyperparameters if it is larger than the weights and two of Adam's states for each."""
    model = session.settings.model
    found = model.hyperparameters if model is not None else None
    return found if found is not None and found.n_bytes > 3 * _weights_bytes(session) else None


def _fixed_in(session: Session) -> FixedWeights | None:
    """Return the weights that do not change if they are most of a checkpoint."""
    model = session.settings.model
    found = model.fixed_weights if model is not None else None
    return found if found is not None and 2 * found.n_bytes > _state_bytes(session, found) else None


def _state_bytes(session: Session, fixed: FixedWeights) -> int:
    """Return the bytes of a checkpoint: the weights, and two of Adam's states for each that changes."""
    return 3 * max(0, _weights_bytes(session) - fixed.n_bytes) + fixed.n_bytes


def _without_fixed(fixed: FixedWeights) -> Prescription:
    if fixed.is_buffer:
        name = fixed.largest.rpartition(".")[2]
        return fix(
            f"leave buffers such as {fixed.largest} out of checkpoints, if the model makes the same ones again",
            "minutes",
            code=(
                "self.strict_loading = False  # in __init__, to load older checkpoints, which hold it\n"
                f'self.register_buffer("{name}", tensor, persistent=False)  # not of random values'
            ),
        )
    return fix(
        f"leave weights such as {fixed.largest} out of checkpoints, if the model loads them from their own file",
        "minutes",
        code=(
            "self.strict_loading = False  # in __init__, where these weights are loaded from their own file\n"
            "def on_save_checkpoint(self, checkpoint):\n"
            "    trained = {weight for optimizer in self.trainer.optimizers for weight in optimizer.state}\n"
            "    for name, weight in self.named_parameters(remove_duplicate=False):\n"
            "        if not weight.requires_grad and weight not in trained:\n"
            '            checkpoint["state_dict"].pop(name, None)'
        ),
    )


def _without(data: Hyperparameters) -> Prescription:
    call = f"save_hyperparameters() ({data.site})" if data.site else "the hyperparameters"
    return fix(
        f"leave {data.largest} out of {call}, and pass it when loading a checkpoint",
        "one line",
        code=f'self.save_hyperparameters(ignore=["{data.largest}"])  # or without it in the list of names',
    )


def _interval(session: Session, n_saves: int, is_callback: bool) -> tuple[bool, int, int]:
    """Return whether checkpoints are saved within epochs, the steps or epochs between two, and how often these fit.

    A longer interval than the run would save nothing. Callbacks count optimizer steps, the user's code counts batches.
    """
    run = session.run
    n = max(1, n_saves or run.n_epochs)
    is_in_epoch = run.n_epochs / n < IN_EPOCH_MAX_EPOCHS
    n_steps = (run.n_optimizer_steps if is_callback else 0) or run.n_steps
    total = n_steps if is_in_epoch else run.n_epochs
    interval = max(1, round(total / n))
    return is_in_epoch, interval, max(1, total // interval)


def _less_often(session: Session, name: str, is_in_epoch: bool, interval: int, times: int) -> Prescription:
    """Recommend one checkpoint in ``times``, with an interval in epochs unless they are saved within epochs."""
    run, wanted = session.run, times * interval
    counted = f"trainer.{step_counter(session) if is_in_epoch else 'current_epoch'}"
    saved = "trainer.save_checkpoint(path)"
    if not run.has_trainer:
        counted, saved = "step" if is_in_epoch else "epoch", "...  # save"
    setting = f"{'every_n_train_steps' if is_in_epoch else 'every_n_epochs'}={wanted}"
    return fix(
        f"set {setting} on {name}: one checkpoint in {times}" if name else f"save one checkpoint in {times}",
        "one line",
        code=f"{name}(..., {setting})" if name else f"if {counted} % {wanted} == 0:\n    {saved}",
    )
