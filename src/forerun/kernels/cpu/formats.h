// Weights as checkpoints store them, read as float32.
//
// A source is a matrix [n, k]. at(n, i) looks at BLOCK weights of output n from weight i on, i % BLOCK == 0; get(at, j) yields weights
// i + j .. i + j + 16 of them, j a constant once loops are unrolled.

inline float as_float(float a) { return a; }
inline float as_float(uint16_t bf16) {
  const uint32_t bits = uint32_t(bf16) << 16;
  float a;
  __builtin_memcpy(&a, &bits, 4);
  return a;
}

// T: float, uint16_t (bfloat16) or Half. k need not be a multiple of 16: `rest` is the last, incomplete block, with zeros after it.
template <class T>
struct Plain {
  static constexpr size_t BLOCK = 16;
  const T* weights;
  size_t k;
  struct At {
    const T* p;
  };
  At at(size_t n, size_t i) const { return {weights + n * k + i}; }
  F16 get(const At& a, size_t j) const { return load16(a.p + j); }
  const void* address(size_t n, size_t i) const { return weights + n * k + i; }
  void fetch(const At& a, size_t outputs) const { __builtin_prefetch(a.p + outputs * k); }  // the same weights of a later output
  F16 rest(size_t n) const {
    T padded[16] = {};
    __builtin_memcpy(padded, weights + n * k + k / 16 * 16, k % 16 * sizeof(T));
    return load16(padded);
  }
};

// MLX's affine packing: BITS (4 or 8) per weight, the first weight lowest; BLOCK divides the group. Scale: like T above.
template <int BITS, size_t BLOCK_, class Scale>
struct Affine {
  static constexpr size_t BLOCK = BLOCK_;
  const uint8_t* weights;
  const Scale *scales, *biases;
  size_t k, group_bits;  // a group has 2^group_bits weights
  struct At {
    const uint8_t* p;
    Levels levels;
    F16 scale, bias;
  };
  At at(size_t n, size_t i) const {
    const size_t group = n * (k >> group_bits) + (i >> group_bits);
    const float scale = as_float(scales[group]), bias = as_float(biases[group]);
    return {weights + (n * k + i) * BITS / 8, levels(scale, bias), splat(scale), splat(bias)};
  }
  const void* address(size_t n, size_t i) const { return weights + (n * k + i) * BITS / 8; }
  F16 get(const At& a, size_t j) const {
    if constexpr (BITS == 4) return look_up(a.levels, nibbles16(a.p + j / 2));
    return fma(to_float(bytes16(a.p + j)), a.scale, a.bias);
  }
};

template <int BITS, class Scale, class F>
inline void with_affine(const Matrix& m, const F& f) {
  const auto weights = static_cast<const uint8_t*>(m.weights);
  const auto scales = static_cast<const Scale*>(m.scales), biases = static_cast<const Scale*>(m.biases);
  if (m.group == 32) return f(Affine<BITS, 32, Scale>{weights, scales, biases, m.k, 5});
  f(Affine<BITS, 64, Scale>{weights, scales, biases, m.k, m.group == 64 ? 6u : 7u});
}

template <int BITS, class F>
inline void with_affine(const Matrix& m, const F& f) {
  switch (m.scale_format) {
    case Format::BF16: return with_affine<BITS, uint16_t>(m, f);
    case Format::F16: return with_affine<BITS, Half>(m, f);
    default: return with_affine<BITS, float>(m, f);
  }
}

#include "blocks.h"

// f(the source of `m`).
template <class F>
inline void with_source(const Matrix& m, const F& f) {
  switch (m.format) {
    case Format::F32: return f(Plain<float>{static_cast<const float*>(m.weights), m.k});
    case Format::BF16: return f(Plain<uint16_t>{static_cast<const uint16_t*>(m.weights), m.k});
    case Format::F16: return f(Plain<Half>{static_cast<const Half*>(m.weights), m.k});
    case Format::AFFINE4: return with_affine<4>(m, f);
    case Format::AFFINE8: return with_affine<8>(m, f);
    default: return with_blocks(m, f);
  }
}
