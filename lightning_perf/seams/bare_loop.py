"""A plain PyTorch loop that replaces the Trainer's loop of training batches, to measure what Lightning's loop costs."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from operator import itemgetter
from typing import Any

from .actions import is_overridden
from .undo import Undos, change_attribute

PRECISIONS = ("Precision", "MixedPrecision", "HalfPrecision", "DoublePrecision")
"""Precision plugins that a plain loop can reproduce with a context manager and a conversion of the batch."""

LEAST_BATCHES = 3
"""Fewest batches per epoch; the Trainer trains the first and the last."""


def why_no_bare_loop(trainer: Any, module: Any) -> str:
    """Return why a plain loop cannot train as this Trainer does; empty if it can. Called in ``on_train_start``."""
    loop, strategy, plugin = trainer.fit_loop.epoch_loop, trainer.strategy, trainer.precision_plugin
    if not module.automatic_optimization:
        return "with manual optimization, training_step contains the loop already"
    if type(strategy).__name__ != "SingleDeviceStrategy":
        return f"a plain loop trains on a single device, not with {type(strategy).__name__}"
    if len(trainer.optimizers) != 1:
        return f"a plain loop expects one optimizer, not {len(trainer.optimizers)}"
    closure = inspect.signature(type(trainer.optimizers[0]).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        return f"{type(trainer.optimizers[0]).__name__} needs a closure"
    if is_overridden(module, "optimizer_step"):
        return f"{type(module).__name__}.optimizer_step needs the Trainer's closure"
    if type(plugin).__name__ not in PRECISIONS or getattr(plugin, "scaler", None) is not None:
        return f"a plain loop cannot reproduce precision {plugin.precision} of {type(plugin).__name__}"
    if any(one.reduce_on_plateau and one.interval == "step" for one in trainer.lr_scheduler_configs):
        return "a scheduler monitors a metric at each step"
    if type(trainer.fit_loop._data_fetcher).__name__ == "_DataLoaderIterDataFetcher":
        return "training_step takes dataloader_iter"
    if getattr(trainer, "_val_check_time_interval", None) is not None:
        return "validation is due by time, not by batches"
    if trainer.num_training_batches < LEAST_BATCHES:
        return f"an epoch has {trainer.num_training_batches} batches, of which the first and last are the Trainer's"
    return "" if hasattr(loop, "advance") else "this version of Lightning has another loop"


def run_bare_loop(trainer: Any, module: Any, undos: Undos) -> None:
    """Train in a plain loop from now on, except the first and last batch of an epoch and those with a validation.

    Callbacks with a true ``measures_bare_loop`` get ``on_train_batch_end``, and ``leave_out_step`` before a batch that
    the Trainer trains. ``self.log`` in the module does nothing in the plain loop.
    """
    loop = trainer.fit_loop.epoch_loop
    change_attribute(loop, "advance", _BareLoop(trainer, module, loop.advance), undos)


class _BareLoop:
    """Replacement of the loop's ``advance``: trains the next batches in a plain loop, then one by the Trainer."""

    def __init__(self, trainer: Any, module: Any, advance: Callable[[Any], None]) -> None:
        self.trainer, self.module, self.advance = trainer, module, advance
        self.loop = trainer.fit_loop.epoch_loop
        self.meters = [one for one in trainer.callbacks if getattr(one, "measures_bare_loop", False)]
        self.context = _forward_context(trainer.precision_plugin)
        takes_index = "batch_idx" in self.loop._build_kwargs({}, None, 0)
        self.arguments = (lambda batch, index: (batch, index)) if takes_index else (lambda batch, index: (batch,))

    def __call__(self, fetcher: Any) -> None:
        if self.loop.batch_progress.current.ready > 0 and not self.loop.restarting:
            muted = Undos()
            try:
                for one in self.module.modules():
                    if hasattr(one, "automatic_optimization"):  # a LightningModule
                        change_attribute(one, "log", _ignore, muted)
                        change_attribute(one, "log_dict", _ignore, muted)
                is_over = self._train(fetcher, self._n_usual())
            finally:
                muted.close()
            if is_over:
                return
        for meter in self.meters:
            meter.leave_out_step()
        self.advance(fetcher)

    def _n_usual(self) -> int | None:
        """Return the number of batches before the next one that the Trainer trains; None if there is no limit."""
        trainer, index = self.trainer, self.loop.batch_progress.current.ready
        limits = [trainer.num_training_batches - 1 - index]
        if self.loop.max_steps != -1:
            every = trainer.accumulate_grad_batches
            limits.append((self.loop.max_steps - trainer.global_step) * every - 1 - index % every)
        if self.loop._should_check_val_epoch() and trainer.val_check_batch != math.inf:
            at = self.loop.batch_progress.total.ready if trainer.check_val_every_n_epoch is None else index
            limits.append(trainer.val_check_batch - 1 - at % trainer.val_check_batch)
        limit = min(limits)
        return None if limit == math.inf else max(0, int(limit))

    def _train(self, fetcher: Any, n: int | None) -> bool:
        """Train at most ``n`` batches; return whether the training has to stop."""
        trainer, module, loop = self.trainer, self.module, self.loop
        (optimizer,), transfer = trainer.optimizers, _transfer(trainer, module)
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        every, epoch = trainer.accumulate_grad_batches, trainer.current_epoch
        clip = self._clipping(optimizer, parameters)
        schedulers = [one for one in trainer.lr_scheduler_configs if one.interval == "step"]
        hooks = [getattr(module, name) if is_overridden(module, name) else None for name in _HOOKS]
        batch_start, batch_end, before_zero_grad, before_backward, after_backward, *others = hooks
        before_step, zero_grad, backward, schedule = others
        ready, steps = loop.batch_progress, loop.automatic_optimization.optim_progress.optimizer.step
        first = index = ready.current.ready
        first_step, is_over = steps.total.completed, False
        for batch in _batches(fetcher, n):
            batch = transfer(batch)
            ready.current.ready += 1
            ready.total.ready += 1
            if batch_start is not None and batch_start(batch, index) == -1:
                raise StopIteration
            with self.context():
                output = module.training_step(*self.arguments(batch, index))
            loss = output["loss"] if isinstance(output, Mapping) else output
            if every > 1 and loss is not None:
                loss = loss / every
            if index % every == 0:
                if before_zero_grad is not None:
                    before_zero_grad(optimizer)
                optimizer.zero_grad() if zero_grad is None else zero_grad(epoch, index, optimizer)
            if loss is not None:
                if before_backward is not None:
                    before_backward(loss)
                loss.backward() if backward is None else backward(loss)
                if after_backward is not None:
                    after_backward()
            index += 1
            if index % every == 0:
                if before_step is not None:
                    before_step(optimizer)
                clip()
                optimizer.step()
                steps.total.ready += 1
                steps.total.completed += 1
                for one in schedulers:
                    if index % one.frequency == 0:
                        one.scheduler.step() if schedule is None else schedule(one.scheduler, None)
            outputs = {} if loss is None else {**(output if isinstance(output, Mapping) else {}), "loss": loss.detach()}
            for meter in self.meters:
                meter.on_train_batch_end(trainer, module, outputs, batch, index - 1)
            if batch_end is not None:
                batch_end(outputs, batch, index - 1)
            if trainer.should_stop:
                is_over = True
                break
        for progress in (ready.current, ready.total):
            for name in ("started", "processed", "completed"):
                setattr(progress, name, getattr(progress, name) + index - first)
        fetcher.fetched += index - first
        stepped = steps.total.completed - first_step
        steps.current.ready += stepped
        steps.current.completed += stepped
        # The Trainer counts the last batch itself after its advance.
        loop._batches_that_stepped += stepped - (1 if is_over and index % every == 0 else 0)
        return is_over

    def _clipping(self, optimizer: Any, parameters: list[Any]) -> Callable[[], object]:
        """Return a function that clips gradients as the Trainer is set to."""
        import torch

        value, algorithm = self.trainer.gradient_clip_val, self.trainer.gradient_clip_algorithm
        if is_overridden(self.module, "configure_gradient_clipping"):
            return lambda: self.module.configure_gradient_clipping(optimizer, value, algorithm)
        if not value or value < 0:
            return _ignore
        by = torch.nn.utils
        clip = by.clip_grad_value_ if str(algorithm).rpartition(".")[2].lower() == "value" else by.clip_grad_norm_
        return lambda: clip(parameters, value)


_HOOKS = (
    *("on_train_batch_start", "on_train_batch_end", "on_before_zero_grad", "on_before_backward", "on_after_backward"),
    *("on_before_optimizer_step", "optimizer_zero_grad", "backward", "lr_scheduler_step"),
)
"""Hooks of a LightningModule that the plain loop calls if the module overrides them."""


def _batches(fetcher: Any, n: int | None) -> Iterator[Any]:
    """Yield the next ``n`` batches (None: all), but not the last one of an epoch of unknown length."""
    combined = fetcher.combined_loader
    if combined.flattened[0] is combined.iterables:
        (batches,) = combined._iterator.iterators
    else:  # several loaders; not iter(combined), which would start them again
        batches = map(itemgetter(0), iter(combined.__next__, None))
    if fetcher.length is not None:
        yield from islice(batches, n)
    elif fetcher.batches:
        for following in islice(batches, n):
            (batch, *_), fetcher.batches[0] = fetcher.batches[0], (following, 0, 0)
            yield batch


def _transfer(trainer: Any, module: Any) -> Callable[[Any], Any]:
    """Return a function that converts and moves a batch and calls the user's hooks, as the Trainer does."""
    import torch

    device, plugin = trainer.strategy.root_device, trainer.precision_plugin
    find = trainer._data_connector._datahook_selector.get_instance
    names = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
    before, moves, after = (
        getattr(owner, name) if is_overridden(owner, name) else None for name in names for owner in (find(name),)
    )
    is_async = device.type not in ("cpu", "mps")  # as Lightning
    converts = type(plugin).__name__ in ("HalfPrecision", "DoublePrecision")

    def move(batch: Any) -> Any:
        if isinstance(batch, torch.Tensor):
            return batch.to(device, non_blocking=is_async)
        if type(batch) in (list, tuple):
            return type(batch)(map(move, batch))
        if type(batch) is dict:
            return {key: move(value) for key, value in batch.items()}
        return module.transfer_batch_to_device(batch, device, 0)

    def transfer(batch: Any) -> Any:
        if converts:
            batch = plugin.convert_input(batch)
        if before is not None:
            batch = before(batch, 0)
        batch = move(batch) if moves is None else moves(batch, device, 0)
        return batch if after is None else after(batch, 0)

    return transfer


def _forward_context(plugin: Any) -> Callable[[], AbstractContextManager[Any]]:
    """Return a function that makes the context of a forward pass with this precision plugin."""
    if type(plugin).__name__ == "Precision":
        return nullcontext
    return getattr(plugin, "autocast_context_manager", plugin.forward_context)  # type: ignore[no-any-return]


def _ignore(*_: Any, **__: Any) -> None:
    """Do nothing."""
