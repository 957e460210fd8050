"""What the categories and names of profiler events mean."""

from typing import Final

OPERATOR: Final = 1
ANNOTATION: Final = 2
PYTHON: Final = 3
RUNTIME: Final = 4
KERNEL: Final = 5
MEMCPY: Final = 6
MEMSET: Final = 7
DEVICE_ANNOTATION: Final = 8
UNKNOWN_DEVICE: Final = 9
IGNORED: Final = 0

_CATEGORIES: Final = {
    OPERATOR: ("operator", "cpu_op"),
    ANNOTATION: ("user_annotation",),
    PYTHON: ("python_function",),
    RUNTIME: ("runtime", "cuda_runtime", "driver", "cuda_driver", "hip_runtime", "xpu_runtime", "xpu_driver",
              "mtia_runtime", "privateuse1_runtime", "privateuse1_driver", "glow_runtime"),
    KERNEL: ("kernel", "concurrent_kernel"),
    MEMCPY: ("memcpy", "gpu_memcpy"),
    MEMSET: ("memset", "gpu_memset"),
    DEVICE_ANNOTATION: ("gpu_user_annotation",),
    UNKNOWN_DEVICE: ("mtia_ccp_events", "mtia_insight", "hpu_op"),
    IGNORED: ("trace", "overhead", "cuda_sync", "cuda_event", "cuda_profiler_range", "cpu_instant_event"),
}  # fmt: skip
KINDS: Final[dict[str, int]] = {name: kind for kind, names in _CATEGORIES.items() for name in names}
"""Kind of each category, by its name in lower case. Capital letters mark the profiler of torch 1.8 to 1.11."""

MEMORY_NAME: Final = "[memory]"
STEP_PREFIX: Final = "ProfilerStep"
LOADER_NAMES: Final = ("enumerate(DataLoader)", "perfdoctor:data_wait")
_LOADER_SUFFIXES: Final = ("train_dataloader_next", "val_next", "test_next", "predict_next")

# Operators whose shapes, types or stacks the analysis needs.
_DETAILED: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "_scaled_mm", "_int_mm", "addmv", "mv"),
        *("conv1d", "conv2d", "conv3d", "convolution", "_convolution", "cudnn_convolution", "miopen_convolution"),
        *("mkldnn_convolution", "_softmax", "softmax", "batch_norm", "_batch_norm_impl_index", "native_batch_norm"),
        *("item", "_local_scalar_dense", "copy_", "add_"),
    )
)
COLLECTIVE_PREFIXES: Final = ("nccl:", "gloo:", "rccl:", "mpi:", "ucc:", "c10d::", "record_param_comms")
_COLLECTIVE_KERNELS: Final = ("ncclKernel", "ncclDevKernel", "ncclSymDevKernel", "ncclSymkDevKernel")


def is_loader_name(name: str) -> bool:
    """Return whether an annotation of this name means that the host waits for the loader."""
    return name.startswith(LOADER_NAMES) or (name.endswith(_LOADER_SUFFIXES) and "[" in name)


def has_details(name: str) -> bool:
    """Return whether the analysis needs the arguments of an operator, annotation or kernel of this name."""
    return name in _DETAILED or name.startswith((*COLLECTIVE_PREFIXES, *_COLLECTIVE_KERNELS))
