// Plain C++ with the bits of the other sets: slow where the processor has no fused multiply-add. See lanes.h.

constexpr int WIDTH = 1, REGISTERS = 16;
using R = float;
using I = int32_t;

inline R zero() { return 0; }
inline R all(float a) { return a; }
inline R load(const float* p) { return *p; }
inline void store(float* p, R a) { *p = a; }
inline R fma(R a, R b, R c) { return __builtin_fmaf(a, b, c); }
inline R add(R a, R b) { return a + b; }
inline R sub(R a, R b) { return a - b; }
inline R mul(R a, R b) { return a * b; }
inline R div(R a, R b) { return a / b; }
inline R least(R a, R b) { return a < b ? a : b; }
inline R most(R a, R b) { return a > b ? a : b; }
inline R nearest(R a) { return __builtin_rintf(a); }
inline R shifted(R p, R n) {
  int32_t bits;
  __builtin_memcpy(&bits, &p, 4);
  bits += int32_t(uint32_t(int32_t(__builtin_rintf(n))) << 23);
  __builtin_memcpy(&p, &bits, 4);
  return p;
}
inline R widen(const uint16_t* p) {
  const uint32_t bits = uint32_t(*p) << 16;
  float a;
  __builtin_memcpy(&a, &bits, 4);
  return a;
}
inline float as_float(Half a) {
  const int exponent = a.bits >> 10 & 31, fraction = a.bits & 1023;
  if (exponent == 0) return float(fraction) * (a.bits >> 15 ? -0x1p-24f : 0x1p-24f);
  const uint32_t bits = uint32_t(a.bits >> 15) << 31 | uint32_t(exponent == 31 ? 255 : exponent + 112) << 23 | uint32_t(fraction) << 13;
  float out;
  __builtin_memcpy(&out, &bits, 4);
  return out;
}
inline R halves(const Half* p) { return as_float(*p); }

inline I bytes(const uint8_t* p) { return *p; }
inline I signed_bytes(const uint8_t* p) { return int8_t(*p); }
inline I both(I a, int bits) { return a & bits; }
inline I either(I a, I b) { return a | b; }
inline I shift_left(I a, int n) { return a << n; }
inline I shift_right(I a, int n) { return int32_t(uint32_t(a) >> n); }
inline R to_float(I a) { return float(a); }

#include "lanes.h"
#include "levels.h"

// The sums of four vectors, and of sixteen, in the order of `sum`.
inline void sum4(const F16* a, float* out) {
  for (int i = 0; i < 4; ++i) out[i] = sum(a[i]);
}

inline F16 sum16(const F16* a) {
  F16 out;
  for (int i = 0; i < 16; ++i) out.r[i] = sum(a[i]);
  return out;
}

// The nibbles of 8 bytes, lowest first, in the lowest four bits.
inline I16 nibbles16(const uint8_t* p) {
  I16 out;
  for (int i = 0; i < 16; ++i) out.r[i] = p[i / 2] >> 4 * (i % 2);
  return out;
}

// Lane l holds bits >> l.
inline I16 spread16(uint32_t bits) {
  I16 out;
  for (int l = 0; l < 16; ++l) out.r[l] = I(bits >> l);
  return out;
}
