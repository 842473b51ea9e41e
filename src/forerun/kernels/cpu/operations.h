// The operations of the extension, as Python sees them. Each checks its arguments: errors reach the caller, not the evaluation.
#pragma once
#include <optional>
#include <tuple>

#include "primitive.h"

namespace forerun {

// x [..., width] float32, gain [width] float32: RMS norm of the last axis.
mx::array rms_norm(const mx::array& x, const mx::array& gain, float eps);

// (x + residual, its RMS norm), both in the shape of x.
std::pair<mx::array, mx::array> add_rms_norm(const mx::array& x, const mx::array& residual, const mx::array& gain, float eps);

// x [..., 2 width] float32: silu of the first half times the second half, [..., width].
mx::array swiglu(const mx::array& x);

// x [rows, k] float32, w [n, k] float32, bfloat16 or float16: x times the transposed w, [rows, n] float32.
mx::array linear(const mx::array& x, const mx::array& w);

// `linear` with MLX's affine packing: packed [n, k * bits / 32] uint32, scales and biases [n, k / group] float32, bfloat16 or float16; bits 4 or
// 8, groups of 32, 64 or 128. The result has the bits of the product with the float32 matrix fma(q, scale, bias).
mx::array quantised_linear(const mx::array& x, const mx::array& packed, const mx::array& scales, const mx::array& biases, int bits, int group);
// A gated DeltaNet layer between its two projections, for the rows of several sequences end to end. All arrays are float32.
// projected [rows, channels + value_width + 2 value_heads]: qkv, z, b, a; per sequence its rows in `spans`, tail [width - 1, channels] and
// matrix [value_heads, value_dim, key_dim]; conv [width, channels]; decay_rate, dt_bias [value_heads]; gain [value_dim].
// Returns y [rows, value_width], the next tails, the next matrices. Dims are multiples of 16.
std::tuple<mx::array, Arrays, Arrays> delta_net(const mx::array& projected, const Arrays& tails, const Arrays& matrices, const std::vector<int>& spans,
                                                const mx::array& conv, const mx::array& decay_rate, const mx::array& dt_bias,
                                                const mx::array& gain, float eps, int key_heads, int value_heads);

// (q [rows, heads, head_dim], k [rows, kv_heads, head_dim]) from projected [rows, ...] float32: the queries (with is_gated each head's query, then
// its gate), then the keys. Each head is normalised where there is a gain [head_dim]. Its first 2 len(frequencies) elements are rotated by
// float32(position) * frequency, rounded to float32; pairs are half of these apart, or adjacent if is_traditional. positions [rows] int32;
// frequencies float32, radians per position: 1 / periods.
std::pair<mx::array, mx::array> attention_inputs(const mx::array& projected, const std::optional<mx::array>& q_gain,
                                                 const std::optional<mx::array>& k_gain, float eps, const mx::array& positions,
                                                 const mx::array& frequencies, int heads, int kv_heads, int head_dim, bool is_gated,
                                                 bool is_traditional);

// keys, values [kv_heads, capacity, dim] float32 with k, v [rows, kv_heads, dim] at the rows `at` [rows] int32: in place where nobody else holds
// them, else copied. k and v may be slices.
std::pair<mx::array, mx::array> write_rows(const mx::array& keys, const mx::array& values, const mx::array& k, const mx::array& v,
                                           const mx::array& at);

// Attention of q [rows, heads, dim] float32, the rows of several sequences end to end, `spans` rows of each; [rows, heads, dim]. Keys, values:
// for each sequence [kv_heads, capacity, dim] float32, in the order of positions, or pages of block_tokens rows in the order of its table in
// `blocks` [n] int32. Row i sees the keys first .. positions[i] [rows] int32, its own always; scores are times dim^-1/2.
mx::array attention(const mx::array& q, const Arrays& keys, const Arrays& values, const std::vector<std::optional<mx::array>>& blocks,
                    const std::vector<int>& spans, const mx::array& positions, int first, int block_tokens);

// y [rows, heads, head_dim] float32 times the sigmoid of the gates in the gated projection [rows, ...]: [rows, heads * head_dim].
mx::array sigmoid_gate(const mx::array& y, const mx::array& projected, int heads, int head_dim);

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
