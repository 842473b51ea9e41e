// The kernels of one instruction set as functions of plain memory. Matrices are row-major; sizes count elements; all arithmetic is float32.
#pragma once
#include <cstddef>
#include <cstdint>

namespace forerun {

// y[r] = x[r] * rsqrt(mean(x[r]^2) + eps) * gain, width % 16 == 0. With `residual` x is first replaced: sum[r] = x[r] + residual[r].
struct RmsNorm {
  const float *x, *residual, *gain;
  float *sum, *y;
  size_t rows, width;
  float eps;
};

// y[r] = silu(x[r, :width]) * x[r, width:], width % 16 == 0.
struct SwiGlu {
  const float* x;
  float* y;
  size_t rows, width;
};

struct Half {  // a float16
  uint16_t bits;
};

enum class Format : uint8_t { F32, BF16, F16, AFFINE4, AFFINE8 };

// A matrix [n, k] as a checkpoint stores it; a stack of matrices is one with more rows. Affine weights are MLX's: q * scale + bias, a scale and
// a bias, stored as F32, BF16 or F16, for each `group` of a row.
struct Matrix {
  Format format;
  const void* weights;
  size_t n, k;
  const void *scales = nullptr, *biases = nullptr;
  Format scale_format = Format::F32;
  size_t group = 0;
};

// y[r] = x[r] times the transposed matrix. A sum of products has 16 lanes; lane l adds the terms l, l + 16, ... in order. `packed` has
// packed_floats(rows, k) floats where rows > MOST_FEW_ROWS, else it is not used.
struct Linear {
  Matrix matrix;
  const float* x;
  float *y, *packed;
  size_t rows;
};

constexpr size_t MOST_FEW_ROWS = 12;
inline size_t packed_floats(size_t rows, size_t k) { return (rows + 12) * ((k + 15) / 16 * 16); }

// Rows start .. start + rows, which continue tail [conv_width - 1, channels] and matrix [value_heads, value_dim, key_dim]. `next_matrix` may
// be `matrix`.
struct DeltaSequence {
  const float *tail, *matrix;
  float *next_tail, *next_matrix;
  size_t start, rows;
};

// A gated DeltaNet layer between its projections. A row of `projected` holds the channels (queries, keys, values), z of value_heads *
// value_dim, b and a of value_heads; y [rows, value_heads * value_dim].
struct DeltaNet {
  const float *projected, *conv, *decay_rate, *dt_bias, *gain;
  float* y;
  const DeltaSequence* sequences;
  size_t num_sequences, rows, width, channels, conv_width, key_heads, value_heads, key_dim, value_dim;
  float eps;
};

struct Kernels {
  const char* name;
  void (*rms_norm)(const RmsNorm&);
  void (*swiglu)(const SwiGlu&);
  void (*linear)(const Linear&);
  void (*delta_net)(const DeltaNet&);
};

// nullptr where the build has no such set.
extern const Kernels *const AVX512, *const AVX2, *const NEON, *const PORTABLE;

}  // namespace forerun
