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

// x [rows, 2 width] float32: silu of the first half times the second half, [rows, width].
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

}  // namespace forerun
