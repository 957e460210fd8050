"""Classify kernels by name: kind, precision, and whether they use matrix units (Tensor Cores, MFMA).

The patterns follow the names of cuBLAS, cuDNN, CUTLASS, NCCL, rocBLAS (Tensile), MIOpen, Composable Kernel, RCCL and
PyTorch itself. Other kernels are ``other``.
"""

import functools
import re
from typing import Final

import numpy as np
import numpy.typing as npt

from lightning_perf.records import Kernels, KernelTime, KindTime

from .columns import Trace
from .intervals import SECOND, Times
from .kinds import KERNEL
from .nesting import Rows
from .step_times import StepTimes

MATRIX_KINDS: Final = ("matmul", "convolution", "attention")
N_TOP: Final = 32

# Patterns are searched in lower-case names. The first that matches decides.
_KINDS: Final = tuple(
    (kind, re.compile(pattern).search)
    for kind, pattern in (
        (
            "communication",
            r"nccl(dev)?kernel|^nccl|rccl|nvshmem|(one|two)_?shot_?all_?reduce|multimem_all|cross_device_reduce",
        ),
        ("attention", r"flash(?!infer_kv_ind)|fmha|attention|attn_|_attn|efficient_?attention"),
        ("matmul", r"^triton_tem_(?!.*conv).*mm"),
        (
            "copy",
            r"nchwtonhwc|nhwctonchw|batched_transpose|converttensor_kernel|nchw2nhwc|nhwc2nchw|tensor_reorder",
        ),
        ("normalization", r"batch_?norm|layer_?norm|group_?norm|rms_?norm|instance_?norm|bn_(fw|bw)|bnfwd|bnbwd"),
        ("normalization", r"softmax|rowwisemoments|gammabetabackward|computefusedparams"),
        ("optimizer", r"multi_tensor_apply.*(adam|sgd|lamb|adagrad|rmsprop|addcdiv)|fused_?(adam|sgd)"),
        (
            "convolution",
            r"conv(?!ert)|winograd|wgrad|dgrad|fprop|implicit_gemm|scudnn|hcudnn|cudnn.*(gemm|kernel2?<)"
            r"|im2col|col2im|igemm_(fwd|bwd|wrw)|^miopen.*conv|computeoffsetskernel|naive_conv",
        ),
        (
            "matmul",
            r"(?<!fb)gemm|gemv|^cijk_|splitk_?reduce|matmul|cutlass|xmma|nvjet|mfma.*gemm|cublas|dot_kernel",
        ),
        ("memset", r"fillfunctor|^memset|__amd_rocclr_fillbuffer"),
        ("copy", r"direct_copy|copy_kernel|catarray|_copy_|copybuffer|float16_copy|transpose|permute"),
        ("reduction", r"reduce_kernel|reduce|devicescan|radix|sort|topk|argmax|argmin|cumsum|norm_"),
        (
            "elementwise",
            r"elementwise|pointwise|^triton_(poi|for)|multi_tensor_apply|tensorop|optensor|dropout|scalepacked",
        ),
        ("reduction", r"^triton_(red|per)"),
        ("embedding", r"embedding|index_?select|index_|scatter|gather"),
        ("pooling", r"pool|upsample"),
    )
)

_NOT_MATRIX: Final = ("triton_poi_", "triton_red_", "triton_per_", "triton_for_")
"""Kernels of torch.compile that multiply no matrices, although their names list operators that do."""

_TENSOR_CORE: Final = re.compile(
    r"[si](884|1688|16816|16832|8816|16864|161616)|[hb]1688|h884|[hiw]mma|gmma|tensorop|tensor_op"
    r"|sm(80|86|89|90|100|120)_xmma|xmma_gemm|xmma_(fprop|dgrad|wgrad)|flash_?(fwd|bwd|fprop|bprop|attn)"
    r"|fmha_?(cutlass|v2|fwd|bwd)|_mi\d+x\d+x\d+|mfma|xdl|igemm_(fwd|bwd|wrw)_gtcx|^_zn\d*flash|nvjet|warpgroup"
)
"""``884``, ``1688``, ``16816`` … are the shapes of one matrix instruction; ``MI16x16x1`` and ``xdl`` are AMD's."""

_NO_TENSOR_CORE: Final = re.compile(r"simt|sm(50|60|61)_|ffma|^(volta|ampere|turing)_sgemm")

_PRECISIONS: Final = tuple(
    (precision, re.compile(pattern).search)
    for precision, pattern in (
        ("fp8", r"e4m3|e5m2|_f8|fp8|^nvjet_(sm\d+_)?[qo]"),
        ("bf16", r"bf16|bfloat16|_bbs_|_b16|^nvjet_(sm\d+_)?t"),
        ("tf32", r"tf32|s1688gemm(?!_(fp16|bf16))|_xf32|_x_|1688_nn_|tensorop_s1688|^nvjet_(sm\d+_)?s(?!m)"),
        ("fp16", r"f16|fp16|half|hgemm|h884|hcudnn|_hhs_|_hss_|c10::half|s884|s16816|^nvjet_(sm\d+_)?h"),
        ("int8", r"int8|i8816|i16832|_i8_|igemm_int8|imma"),
        ("fp64", r"dgemm|f64|double|d884|_db_"),
        ("fp32", r"sgemm|scudnn|f32|float|_sb_|ffma|winograd|gemmsn|simt|fp32"),
    )
)
_LAYOUT: Final = re.compile(r"nchw_?to_?nhwc|nhwc_?to_?nchw|nchw2nhwc|nhwc2nchw|batched_transpose_\d+x\d+")


@functools.lru_cache(maxsize=65_536)
def kernel_kind(name: str) -> str:
    """Return the kind of a kernel; ``other`` if unknown."""
    name = name.lower()
    excluded = MATRIX_KINDS if name.startswith(_NOT_MATRIX) else ()
    return next((kind for kind, search in _KINDS if kind not in excluded and search(name)), "other")


@functools.lru_cache(maxsize=65_536)
def uses_tensor_cores(name: str) -> bool:
    """Return whether a kernel multiplies matrices on matrix units."""
    name = name.lower()
    return bool(_TENSOR_CORE.search(name)) and not _NO_TENSOR_CORE.search(name)


@functools.lru_cache(maxsize=65_536)
def kernel_precision(name: str) -> str:
    """Return the input precision of a matrix kernel, or ``unknown``."""
    name = name.lower()
    return next((precision for precision, search in _PRECISIONS if search(name)), "unknown")


def converts_layout(name: str) -> bool:
    """Return whether a kernel only converts between NCHW and NHWC."""
    return bool(_LAYOUT.search(name.lower()))


def describe_kernels(trace: Trace, steps: StepTimes, launched_in: Rows) -> Kernels | None:
    """Describe the kernels of the analyzed span; None without any in the trace.

    ``launched_in`` is the index of the step that launched each kernel, -1 for none.
    """
    every = trace.rows(KERNEL)
    if not len(every):
        return None
    rows = every[steps.touch(trace, every)]
    if not len(rows):
        return Kernels(median_s=None, tensor_core_fraction=None)
    durations = trace.durations[rows]
    ids, position = np.unique(trace.name_ids[rows], return_inverse=True)
    names = [trace.names[i] for i in ids.tolist()]
    by_name_ns = np.bincount(position, weights=durations, minlength=len(ids))
    counts = np.bincount(position, minlength=len(ids))
    total_ns = float(by_name_ns.sum())
    kinds = [kernel_kind(name) for name in names]
    is_matrix = np.array([kind in MATRIX_KINDS for kind in kinds])
    on_tensor_cores = np.array([uses_tensor_cores(name) for name in names])
    is_layout = np.array([converts_layout(name) for name in names])
    is_known = is_matrix & on_tensor_cores  # whether the name shows if the kernel uses Tensor Cores
    precisions: dict[str, float] = {}
    for i in np.flatnonzero(is_matrix).tolist():
        precision = kernel_precision(names[i])
        is_known[i] |= precision != "unknown"
        precisions[precision] = precisions.get(precision, 0.0) + float(by_name_ns[i]) / SECOND
    known_ns = float(by_name_ns[is_known].sum())
    matrix_tensor_ns = float(by_name_ns[is_matrix & on_tensor_cores].sum())
    of_kind: dict[str, tuple[float, int]] = {}
    for kind, ns, n in zip(kinds, by_name_ns.tolist(), counts.tolist(), strict=True):
        sum_ns, sum_n = of_kind.get(kind, (0.0, 0))
        of_kind[kind] = sum_ns + ns, sum_n + n
    occupancies, blocks = trace.occupancies[rows], trace.blocks_per_sm[rows]
    occupancy_by_name = _means_by_name(occupancies, durations, position, len(ids))
    blocks_by_name = _means_by_name(blocks, durations, position, len(ids))
    largest = np.argsort(-by_name_ns, kind="stable")[:N_TOP].tolist()
    in_steps = launched_in[launched_in >= 0]
    per_step = np.bincount(in_steps, minlength=steps.n_steps) if steps.n_steps else np.array([len(rows)])
    return Kernels(
        median_s=float(np.median(durations)) / SECOND,
        tensor_core_fraction=float(by_name_ns[on_tensor_cores].sum()) / total_ns if total_ns else 0.0,
        top=tuple(
            KernelTime(
                name=names[i], kind=kinds[i], total_s=float(by_name_ns[i]) / SECOND, n=int(counts[i]),
                share=float(by_name_ns[i]) / total_ns if total_ns else 0.0, occupancy=occupancy_by_name[i],
                blocks_per_sm=blocks_by_name[i],
            )
            for i in largest
        ),
        matrix_s=float(by_name_ns[is_matrix].sum()) / SECOND,
        matrix_tensor_core_fraction=matrix_tensor_ns / known_ns if known_ns else None,
        matrix_precisions=precisions,
        kinds={
            kind: KindTime(total_s=ns / SECOND, n=n, share=ns / total_ns if total_ns else 0.0)
            for kind, (ns, n) in sorted(of_kind.items(), key=lambda item: -item[1][0])
        },
        layout_s=float(by_name_ns[is_layout].sum()) / SECOND,
        layout_n=int(counts[is_layout].sum()),
        n_per_step=float(np.median(per_step)),
        occupancy=_means_by_name(occupancies, durations, np.zeros_like(rows), 1)[0],
        sm_efficiency=_sm_efficiency(trace, rows, steps.span_ns),
    )  # fmt: skip


def _means_by_name(values: npt.NDArray[np.float32], durations: Times, names: Rows, n_names: int) -> list[float | None]:
    """Return the mean of the known values by name, weighted by time; None without any."""
    known = np.flatnonzero(~np.isnan(values))
    weights = durations[known]
    sums = np.bincount(names[known], weights=values[known] * weights, minlength=n_names)
    totals = np.bincount(names[known], weights=weights, minlength=n_names)
    return [float(each) / total if total else None for each, total in zip(sums, totals.tolist(), strict=True)]


def _sm_efficiency(trace: Trace, rows: Rows, span_ns: int) -> float | None:
    """Return the part of the multiprocessors that had a block, mean over the span and over devices; None if unknown.

    As the PyTorch profiler's TensorBoard plugin estimates it: blocks per multiprocessor, at most 1, those of kernels
    that run at once added up (https://github.com/pytorch/kineto/blob/main/tb_plugin/docs/gpu_utilization.md).
    """
    rows = rows[trace.blocks_per_sm[rows] > 0]
    devices = np.unique(trace.devices[rows])
    if not len(rows) or not span_ns:
        return None
    covered_ns = 0.0
    for device in devices.tolist():
        own = rows[trace.devices[rows] == device]
        moments = np.concatenate((trace.starts[own], trace.ends[own]))
        order = np.argsort(moments, kind="stable")
        blocks = trace.blocks_per_sm[own].astype(np.float64)
        running = np.cumsum(np.concatenate((blocks, -blocks))[order])[:-1]
        covered_ns += float((np.clip(running, 0.0, 1.0) * np.diff(moments[order])).sum())
    return min(1.0, covered_ns / (len(devices) * span_ns))
