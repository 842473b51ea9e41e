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

struct Kernels {
  const char* name;
  void (*rms_norm)(const RmsNorm&);
  void (*swiglu)(const SwiGlu&);
};

// nullptr where the build has no such set.
extern const Kernels *const AVX512, *const AVX2, *const NEON, *const PORTABLE;

}  // namespace forerun
