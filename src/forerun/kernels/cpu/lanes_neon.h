// NEON with fused multiply-add (any AArch64). See lanes.h.

constexpr int WIDTH = 4;
using R = float32x4_t;

inline R zero() { return vdupq_n_f32(0); }
inline R all(float a) { return vdupq_n_f32(a); }
inline R load(const float* p) { return vld1q_f32(p); }
inline void store(float* p, R a) { vst1q_f32(p, a); }
inline R fma(R a, R b, R c) { return vfmaq_f32(c, a, b); }
inline R add(R a, R b) { return vaddq_f32(a, b); }
inline R sub(R a, R b) { return vsubq_f32(a, b); }
inline R mul(R a, R b) { return vmulq_f32(a, b); }
inline R div(R a, R b) { return vdivq_f32(a, b); }
inline R least(R a, R b) { return vbslq_f32(vcltq_f32(a, b), a, b); }  // as x86: b unless a < b
inline R most(R a, R b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline R nearest(R a) { return vrndnq_f32(a); }
inline R shifted(R p, R n) {
  return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32(vcvtnq_s32_f32(n), 23)));
}
inline R widen(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }

#include "lanes.h"

// The sums of four vectors, and of sixteen, in the order of `sum`.
inline void sum4(const F16* a, float* out) {
  for (int i = 0; i < 4; ++i) {
    const R x = add(add(a[i].r[0], a[i].r[2]), add(a[i].r[1], a[i].r[3]));
    const float32x2_t y = vadd_f32(vget_low_f32(x), vget_high_f32(x));
    out[i] = vget_lane_f32(y, 0) + vget_lane_f32(y, 1);
  }
}

inline F16 sum16(const F16* a) {
  float out[16];
  for (int i = 0; i < 16; i += 4) sum4(a + i, out + i);
  return load16(out);
}
