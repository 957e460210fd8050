"""Kernels are classified by name, across vendors and generations."""

import pytest

from lightning_perf.traces.kernels import converts_layout, kernel_kind, kernel_precision, uses_tensor_cores

BF16_GEMM = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel"
)
MATRICES = [
    ("volta_sgemm_128x64_nn", "matmul", "fp32", False),
    ("volta_scudnn_128x64_relu_medium_nn_v1", "convolution", "fp32", False),
    ("volta_h884gemm_64x64_ldg8_nn", "matmul", "fp16", True),
    ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn", "matmul", "fp16", True),
    ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", "matmul", "bf16", True),
    ("ampere_sgemm_128x64_tn", "matmul", "fp32", False),
    ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4>(...)", "matmul", "tf32", True),
    ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(...)", "matmul", "fp32", False),
    (BF16_GEMM, "matmul", "bf16", True),
    ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT", "matmul", "bf16", True),  # cuBLAS 13 on an H100
    ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NTN", "matmul", "fp16", True),
    ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16", "convolution", "tf32", True),
    ("Cijk_Ailk_Bljk_BBS_BH_MT256x128x64_MI16x16x16x1_SN_LDSB0", "matmul", "bf16", True),
    ("Cijk_Alik_Bljk_SB_MT64x64x8_SN_1LDSB0", "matmul", "fp32", False),
    ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x64x32_wt32x32x8", "convolution", "bf16", True),
    ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<cutlass::bfloat16_t>>", "attention", "bf16", True),
    ("cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_6_128x64x64_4x1x1_cga1x1x1_kernel0_0",
     "attention", "fp16", True),
    ("cudnn_generated_fort_native_sdpa_sm100_flash_bprop_f16_knob_1_128x128x128_4x1x1_cga1x1x1_kernel0_0",
     "attention", "fp16", True),
    ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<128, cutlass::bfloat16_t>>>",
     "attention", "bf16", True),
    ("void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<ck_tile::half_t>>", "attention", "fp16", True),
    ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention)", "attention", "bf16", True),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "precision", "on_tensor_cores"), MATRICES)
def test_matrix_kernels_are_classified_by_name(name: str, kind: str, precision: str, on_tensor_cores: bool) -> None:
    assert (kernel_kind(name), kernel_precision(name), uses_tensor_cores(name)) == (kind, precision, on_tensor_cores)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "communication"),
        ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>", "communication"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>", "communication"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "elementwise"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>", "memset"),
        ("void at::native::elementwise_kernel<128, 4, gpu_kernel_impl<direct_copy_kernel_cuda(...)>", "copy"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", "reduction"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1, true>", "normalization"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16>", "normalization"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float>", "normalization"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer"),
        ("void fbgemm_gpu::permute_2D_data_kernel<false>", "copy"),
        ("triton_poi_fused_add_relu_0", "elementwise"),
        ("triton_poi_fused_convolution_relu_3", "elementwise"),
        ("triton_for_fused_0", "elementwise"),
        ("triton_per_fused__scaled_dot_product_attention_sum_2", "reduction"),
        ("triton_tem_fused_addmm_relu_0", "matmul"),
        ("triton_tem_fused_addmm_native_layer_norm_view_1", "matmul"),
        ("triton_tem_fused__to_copy_convolution_repeat_unsqueeze_view_2", "convolution"),
        ("triton_tem_fused_flex_attention_0", "attention"),
        ("my_own_kernel", "other"),
    ],
)
def test_other_kernels_are_classified_by_name(name: str, kind: str) -> None:
    assert kernel_kind(name) == kind
    assert not uses_tensor_cores(name)


def test_layout_conversions_are_classified_by_name() -> None:
    assert converts_layout("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>")
    assert converts_layout("batched_transpose_32x32_half")
    assert not converts_layout("volta_scudnn_128x32_nhwc_tn_v1")
