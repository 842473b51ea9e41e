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

enum class Format : uint8_t { F32, BF16, F16, AFFINE4, AFFINE8, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K };

// A matrix [n, k] as a checkpoint stores it: plain, affine, or in GGUF's blocks (Q...); a stack of them is one with more rows. Affine weights are MLX's: q * scale + bias, a scale and
// a bias, stored as F32, BF16 or F16, for each `group` of a row.
struct Matrix {
  Format format;
  const void* weights;
  size_t n, k;
  const void *scales = nullptr, *biases = nullptr;
  Format scale_format = Format::F32;
  size_t group = 0;
};

// y[id] = x[id / share] times the transposed rows first .. first + n of the matrix, for `rows` ids (nullptr: 0, 1, ...). A sum of products has
// 16 lanes; lane l adds the terms l, l + 16, ... in order. `packed` has packed_floats(rows, k) floats where rows > MOST_FEW_ROWS, else it is
// not used.
struct Linear {
  Matrix matrix;
  const float* x;
  float *y, *packed;
  size_t rows;
  const uint32_t* ids = nullptr;
  size_t share = 1, first = 0;
};

constexpr size_t MOST_FEW_ROWS = 12;
inline size_t packed_floats(size_t rows, size_t k, size_t matrices = 1) { return (rows + 12 * matrices) * ((k + 15) / 16 * 16); }

// `all` with the matrix of expert experts[id] for row id: the matrices lie one behind the other. Indices beyond the last mean the last.
// ids [rows] and parts [num_experts] are memory for the rows in the order of experts; all.packed has
// packed_floats(rows, k, least of num_experts and rows).
struct ExpertsLinear {
  struct Part {
    Linear linear;
    size_t first_tile, first_piece;
  };
  Linear all;
  const uint32_t* experts;
  size_t num_experts;
  uint32_t* ids;
  Part* parts;
};

// y[r] = row ids[r] (nullptr: r) of the matrix in float32. Ids beyond the last row mean the last.
struct MatrixRows {
  Matrix matrix;
  const uint32_t* ids;
  float* y;
  size_t rows;
};

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

// From rows of `projected`: heads queries (each followed by its gate if is_gated), then kv_heads keys. q [rows, heads, head_dim], k [rows, kv_heads,
// head_dim]: normalised where the gain is not nullptr, the first 2 half elements rotated by positions[row] * frequencies[half].
struct AttentionInputs {
  const float *projected, *q_gain, *k_gain, *frequencies;
  const int32_t* positions;
  float *q, *k;
  size_t rows, width, heads, kv_heads, head_dim, half;
  float eps;
  bool is_gated, is_traditional;
};

// buffer [kv_heads, capacity, dim] at the rows at[rows]: those of x, whose rows and heads are x_row and x_head elements apart.
struct WriteRows {
  float* buffer;
  const float* x;
  const int32_t* at;
  size_t rows, kv_heads, capacity, dim, x_row, x_head;
};

// Rows start .. start + rows. Heads of keys and values are keys_head and values_head elements apart; blocks: the table of pages, or nullptr.
struct AttentionSequence {
  const float *keys, *values;
  const int32_t* blocks;
  size_t keys_head, values_head, start, rows;
};

// q, out [rows, heads, dim]; row i sees the keys first .. positions[i], its own always.
struct Attention {
  const float* q;
  const int32_t* positions;
  float* out;
  const AttentionSequence* sequences;
  size_t num_sequences, heads, kv_heads, dim, first, block_tokens;
};

// out = y * sigmoid(gate), y and out [rows, heads, head_dim]; a row of `projected` has for each head its query, then its gate.
struct SigmoidGate {
  const float *y, *projected;
  float* out;
  size_t rows, width, heads, head_dim;
};

// y[r] = x[r] - largest(x[r]) - ln(sum of e^(x[r] - largest)). `largest` and `logs` [rows] and `parts` [rows][n / 4096 + 1] are memory.
struct LogSoftmax {
  const float* x;
  float *y, *largest, *logs, *parts;
  size_t rows, n;
};

// The k largest of each row, descending; of equals the lower index first.
struct TopK {
  const float* x;
  float* values;
  uint32_t* indices;
  size_t rows, n, k;
};

struct Kernels {
  const char* name;
  void (*rms_norm)(const RmsNorm&);
  void (*swiglu)(const SwiGlu&);
  void (*linear)(const Linear&);
  void (*linear_of_experts)(const ExpertsLinear&);
  void (*matrix_rows)(const MatrixRows&);
  void (*delta_net)(const DeltaNet&);
  void (*attention_inputs)(const AttentionInputs&);
  void (*write_rows)(const WriteRows&);
  void (*attention)(const Attention&);
  void (*sigmoid_gate)(const SigmoidGate&);
  void (*log_softmax)(const LogSoftmax&);
  void (*top_k)(const TopK&);
};

// nullptr where the build has no such set.
extern const Kernels *const AVX512, *const AVX2, *const NEON, *const PORTABLE;

}  // namespace forerun
