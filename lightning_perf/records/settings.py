"""Settings of loaders, Trainer, model, optimizers and torch."""

from .base import Record

MIXED_PRECISIONS = ("16-mixed", "bf16-mixed")
"""``Trainer(precision=...)`` with which Lightning refuses to clip gradients of fused optimizers
(``MixedPrecision.clip_gradients``)."""

HALF_PRECISIONS = (*MIXED_PRECISIONS, "16-true", "bf16-true")
"""``Trainer(precision=...)`` that computes in bf16 or fp16."""


class LoaderSettings(Record, frozen=True, kw_only=True):
    """One DataLoader.

    Attributes:
        stage: ``"train"``, ``"val"``, ``"test"`` or ``"predict"``.
        index: Position among the loaders of the stage.
        class_name: Qualified class name; only a ``torch.utils.data.DataLoader``, a subclass or a ``WebLoader`` fills in
            the rest.
        is_plain: Whether it is exactly ``torch.utils.data.DataLoader``.
        is_iterable: Whether the dataset is an ``IterableDataset``.
        n_batches: Batches per epoch; None without a length.
        n_samples: Length of the dataset; None without one.
        batch_size: None with a custom batch sampler or ``batch_size=None``.
        prefetch_factor: Batches that each worker prefetches; None without workers.
        sampler_class: Class name of the (batch) sampler in use.
        is_in_memory_tensors: Whether the dataset is a ``TensorDataset``.
        call: Class or function that creates the loader, e.g. ``"WebLoader"``; ``"pipeline_def"`` for a DALI pipeline.
        refusal: Why treatments cannot change its arguments; empty if they can, None in older sessions.
        n_shards: Shards of an ``IterableDataset`` that workers divide among themselves; None if unknown.
        n_threads: Threads of a DALI pipeline; None for other loaders.
        n_equal_workers: Workers with an ``IterableDataset`` whose first batch equals that of the first one, itself
            included; None if they were not compared.
    """

    stage: str
    index: int
    class_name: str
    is_plain: bool
    dataset_class: str | None = None
    is_iterable: bool | None = None
    n_batches: int | None = None
    n_samples: int | None = None
    batch_size: int | None = None
    num_workers: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    prefetch_factor: int | None = None
    drop_last: bool | None = None
    sampler_class: str | None = None
    is_shuffled: bool | None = None
    collate: str | None = None
    multiprocessing_context: str | None = None
    is_in_memory_tensors: bool | None = None
    call: str = "DataLoader"
    refusal: str | None = None
    n_shards: int | None = None
    n_threads: int | None = None
    n_equal_workers: int | None = None

    def why_not_changed(self) -> str:
        """Return why treatments cannot change its arguments; empty if they can."""
        if self.refusal is not None:
            return self.refusal
        if not self.is_plain:
            return f"the training loader is a {self.class_name}, not exactly a torch.utils.data.DataLoader"
        return (
            "the dataset is an IterableDataset, of which each worker would yield everything" if self.is_iterable else ""
        )


class TrainerSettings(Record, frozen=True, kw_only=True):
    """Arguments of the Trainer, as effective during the run; None if unknown.

    Attributes:
        package: That of the Trainer: ``"lightning.pytorch"`` or ``"pytorch_lightning"``, which accept only their own
            callbacks, plugins and strategies.
        precision: ``"32-true"``, ``"bf16-mixed"`` …
        accelerator: torch's type of the root device: ``"cpu"``, ``"cuda"``, ``"mps"`` …
        strategy: Class name of the strategy, e.g. ``"DDPStrategy"``.
        progress_bar: Class name of the progress bar; None if there is none.
        progress_bar_refresh_rate: Steps between refreshes; None without a progress bar, or if it refreshes by time.
        profiler: Class name of the user's profiler; None without one.
        callbacks: Class names, without PerfDoctor.
        prog_bar_metrics: Number of metrics that the progress bar shows in each step; None until known.
        sync_dist_on_step: Whether a metric is reduced over ranks in each step; None until known.
    """

    package: str | None = None
    precision: str | None = None
    accelerator: str | None = None
    strategy: str | None = None
    n_devices: int | None = None
    n_nodes: int | None = None
    world_size: int = 1
    max_epochs: int | None = None
    max_steps: int | None = None
    accumulate_grad_batches: int | None = None
    gradient_clip_val: float | None = None
    gradient_clip_algorithm: str | None = None
    log_every_n_steps: int | None = None
    val_check_interval: float | int | None = None
    check_val_every_n_epoch: int | None = None
    limit_train_batches: float | int | None = None
    limit_val_batches: float | int | None = None
    num_sanity_val_steps: int | float | None = None
    reload_dataloaders_every_n_epochs: int | None = None
    is_anomaly_detection_on: bool | None = None
    is_inference_mode: bool | None = None
    is_deterministic: bool | None = None
    is_barebones: bool | None = None
    is_fast_dev_run: bool | None = None
    is_automatic_optimization: bool | None = None
    progress_bar: str | None = None
    progress_bar_refresh_rate: int | None = None
    profiler: str | None = None
    callbacks: tuple[str, ...] = ()
    loggers: tuple[str, ...] = ()
    prog_bar_metrics: int | None = None
    sync_dist_on_step: bool | None = None
    find_unused_parameters: bool | None = None
    static_graph: bool | None = None
    gradient_as_bucket_view: bool | None = None


class ParameterGroup(Record, frozen=True, kw_only=True):
    """Parameters or buffers of one dtype; shared storages count once."""

    dtype: str
    n_elements: int
    n_bytes: int


class OptimizerSettings(Record, frozen=True, kw_only=True):
    """One optimizer.

    Attributes:
        implementation: Code path of a step: ``"fused"``, ``"foreach"``, ``"single-tensor"`` or ``"unknown"``.
        n_tensors: Parameters that it updates.
        n_elements: Elements of these parameters.
        n_groups: Its parameter groups.
        n_distinct_groups: Those that differ in an argument, e.g. the learning rate; 0 if unknown.
        supports_fused: Whether the class has a fused implementation on this device; None if unknown.
        zero_grad_keeps_tensors: Whether gradients were filled with zeros instead of set to None; None if unknown.
        steps_without_zero_grad: Observed steps whose gradients had not been cleared since the previous step; None if
            not observed (automatic optimization clears them itself).
        n_steps_watched: Observed steps.
        n_clearings: Observed clearings of gradients between two backward passes.
        n_clearings_dropping: Those that cleared gradients which a backward pass had added since the optimizer's step.
        dropping_backward: Line that called most such passes, e.g. ``"gan.py:66"``; empty without one of the user's.
        dropped_per_batch: Such passes of this line per batch; None if some of its passes were used, and in older
            sessions.
    """

    class_name: str
    implementation: str
    n_tensors: int
    n_elements: int
    supports_fused: bool | None = None
    zero_grad_keeps_tensors: bool | None = None
    steps_without_zero_grad: int | None = None
    n_steps_watched: int = 0
    n_clearings: int = 0
    n_clearings_dropping: int = 0
    dropping_backward: str = ""
    dropped_per_batch: float | None = None
    n_groups: int = 0
    n_distinct_groups: int = 0


class Hyperparameters(Record, frozen=True, kw_only=True):
    """Data among a module's hyperparameters, which each checkpoint holds besides the weights.

    Attributes:
        n_bytes: Bytes of all tensors, arrays and long lists of numbers or strings in them, as saved.
        largest: Name of the largest one.
        largest_bytes: Its bytes.
        costs_s: Seconds by which they lengthen saving a checkpoint; None if not timed.
        site: The line that calls ``save_hyperparameters``, e.g. ``"model.py:31"``; empty if unknown.
    """

    n_bytes: int
    largest: str
    largest_bytes: int
    costs_s: float | None = None
    site: str = ""


class FixedWeights(Record, frozen=True, kw_only=True):
    """Weights that each checkpoint holds, and that a fit did not change.

    Attributes:
        n_bytes: Bytes of those parameters, or buffers, of a mebibyte or more without a gradient that nothing wrote to.
        largest: Path of the largest one, e.g. ``"encoder.embedding.weight"``.
        is_buffer: Whether they are buffers, which take more bytes than such parameters then.
        site: The user's line that makes the largest one, e.g. ``"model.py:31"``; empty if unknown.
        costs_s: Seconds that they add to saving a checkpoint; None if unknown.
    """

    n_bytes: int
    largest: str
    is_buffer: bool
    costs_s: float | None = None
    site: str = ""


class AddedHooks(Record, frozen=True, kw_only=True):
    """Hooks that a training adds to its modules or parameters while it runs.

    Attributes:
        n_hooks: Hooks of the module or parameter to which most were added, when they were last counted.
        per_step: Hooks added to it per step.
        per_epoch: Hooks added to it per epoch; None if they are added in most steps.
        module: Its path, e.g. ``"encoder.layers.0"`` or ``"head.weight"``; empty for the LightningModule itself.
        function: Name of the hook added last; empty if unknown.
        site: Its first line, e.g. ``"model.py:31"``; empty if unknown.
    """

    n_hooks: int
    per_step: float
    per_epoch: float | None = None
    module: str = ""
    function: str = ""
    site: str = ""


class ModelSettings(Record, frozen=True, kw_only=True):
    """The LightningModule.

    Attributes:
        layers: Number of layers by type, e.g. ``{"Linear": 12}``.
        matmul_parameter_fraction: Fraction of the parameters in Linear, Conv, RNN or attention layers.
        conv_bias_before_norm: Qualified names of convolutions with a bias that feed a batch norm (by definition order).
        is_compiled: Whether the module or a part of it is compiled.
        eval_outputs_have_graph: Whether validation outputs had an autograd graph; None if unknown.
        n_unused_gradients: Parameters that get gradients in each step although no optimizer has them; None if unknown.
        n_unused_elements: Number of elements of these parameters.
        unused_gradients_in: Path of the submodule, without trained parameters, that holds most of them.
        n_unused_elements_in: Number of elements of those in it.
        hyperparameters: None if they hold less than a mebibyte of data, or before the end of fit.
        added_hooks: None if no module gets a hook in most steps or epochs, or before the second count.
        fixed_weights: None if all large weights changed, or before the end of fit.
        clips_gradients: Whether a method of the module calls ``clip_gradients``; None in older sessions and histories.
        optimizers_site: First line of the module's ``configure_optimizers``, e.g. ``"model.py:31"``; empty if unknown.
    """

    class_name: str
    parameters: tuple[ParameterGroup, ...] = ()
    buffers: tuple[ParameterGroup, ...] = ()
    n_trainable: int | None = None
    layers: dict[str, int] = {}
    matmul_parameter_fraction: float | None = None
    conv_bias_before_norm: tuple[str, ...] = ()
    is_compiled: bool | None = None
    optimizers: tuple[OptimizerSettings, ...] = ()
    eval_outputs_have_graph: bool | None = None
    n_unused_gradients: int | None = None
    n_unused_elements: int | None = None
    unused_gradients_in: str = ""
    n_unused_elements_in: int | None = None
    hyperparameters: Hyperparameters | None = None
    added_hooks: AddedHooks | None = None
    fixed_weights: FixedWeights | None = None
    clips_gradients: bool | None = None
    optimizers_site: str = ""


class TorchSettings(Record, frozen=True, kw_only=True):
    """Process-wide switches of torch."""

    float32_matmul_precision: str | None = None
    is_cudnn_benchmark_on: bool | None = None
    is_deterministic: bool | None = None
    is_onednn_on: bool | None = None
    n_threads: int | None = None
    n_interop_threads: int | None = None
    omp_num_threads: str | None = None


class Settings(Record, frozen=True, kw_only=True):
    """All settings."""

    trainer: TrainerSettings = TrainerSettings()
    loaders: tuple[LoaderSettings, ...] = ()
    model: ModelSettings | None = None
    torch: TorchSettings = TorchSettings()

    @property
    def is_clipping(self) -> bool:
        """Whether Lightning clips gradients, or the module calls it to do so."""
        return bool(self.trainer.gradient_clip_val or (self.model is not None and self.model.clips_gradients))

    @property
    def clips_fused(self) -> bool:
        """Whether Lightning clips gradients of a fused optimizer."""
        optimizers = self.model.optimizers if self.model is not None else ()
        return self.is_clipping and any(one.implementation == "fused" for one in optimizers)
