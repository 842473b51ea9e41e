// The operations of the extension, as Python sees them. Each checks its arguments: errors reach the caller, not the evaluation.
#pragma once
#include <optional>

#include "primitive.h"

namespace forerun {

// x [..., width] float32, gain [width] float32: RMS norm of the last axis.
mx::array rms_norm(const mx::array& x, const mx::array& gain, float eps);

// (x + residual, its RMS norm), both in the shape of x.
std::pair<mx::array, mx::array> add_rms_norm(const mx::array& x, const mx::array& residual, const mx::array& gain, float eps);

// x [rows, 2 width] float32: silu of the first half times the second half, [rows, width].
mx::array swiglu(const mx::array& x);

// x [rows, k] float32, w [n, k] float32, bfloat16 or float16: x times the transposed w, [rows, n] float32.
mx::array linear(const mx::array& x, const mx::array& w);

// `linear` with MLX's affine packing: packed [n, k * bits / 32] uint32, scales and biases [n, k / group] float32, bfloat16 or float16; bits 4 or
// 8, groups of 32, 64 or 128. The result has the bits of the product with the float32 matrix fma(q, scale, bias).
mx::array quantised_linear(const mx::array& x, const mx::array& packed, const mx::array& scales, const mx::array& biases, int bits, int group);

// `linear` with GGUF's blocks: [n, bytes of a row] uint8; format "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k" or "q6_k".
// The result has the bits of the product with the float32 matrix that llama.cpp dequantises them to.
mx::array block_linear(const mx::array& x, const mx::array& blocks, const std::string& format);

// Rows `ids` [rows] int32 or uint32 of that matrix, [rows, k] float32, and all of it. Each id is below n.
mx::array block_rows(const mx::array& blocks, const mx::array& ids, const std::string& format);
mx::array block_dequantise(const mx::array& blocks, const std::string& format);

// x [rows, chosen or 1, k] float32, w [experts, n, k], experts [rows, chosen] int32 or uint32, each below the first size of w: y[r, j] is x[r, j]
// times the transposed matrix of experts[r, j], [rows, chosen, n] float32, with the bits of `linear`.
mx::array linear_of_experts(const mx::array& x, const mx::array& w, const mx::array& experts);
mx::array quantised_linear_of_experts(const mx::array& x, const mx::array& packed, const mx::array& scales, const mx::array& biases,
                                      const mx::array& experts, int bits, int group);

// x [rows, n] float32: the logarithm of softmax, NaN in a row with NaN or +inf or nothing but -inf.
mx::array log_softmax(const mx::array& x);

// (values float32, indices uint32), both [rows, k]: the k largest of each row of x [rows, n] float32, descending; of equals the lower index
// first. A row with NaN gives k different indices and no more.
std::pair<mx::array, mx::array> top_k(const mx::array& x, int k);

}  // namespace forerun
