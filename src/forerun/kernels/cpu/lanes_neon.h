// NEON with fused multiply-add (any AArch64). See lanes.h.

constexpr int WIDTH = 4, REGISTERS = 32;
using R = float32x4_t;
using I = int32x4_t;

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
inline R halves(const Half* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits))); }
inline float as_float(Half a) { return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(a.bits))), 0); }

inline I bytes(const uint8_t* p) {
  uint32_t four;
  __builtin_memcpy(&four, p, 4);
  return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four)))));
}
inline I signed_bytes(const uint8_t* p) {
  uint32_t four;
  __builtin_memcpy(&four, p, 4);
  return vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four))));
}
inline I both(I a, int bits) { return vandq_s32(a, vdupq_n_s32(bits)); }
inline I either(I a, I b) { return vorrq_s32(a, b); }
inline I shift_left(I a, int n) { return vshlq_s32(a, vdupq_n_s32(n)); }
inline I shift_right(I a, int n) { return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-n))); }
inline R to_float(I a) { return vcvtq_f32_s32(a); }

#include "lanes.h"
#include "levels.h"

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

// The nibbles of 8 bytes, lowest first, in the lowest four bits.
inline I16 nibbles16(const uint8_t* p) {
  const uint8x8_t pairs = vld1_u8(p);
  const uint8x8x2_t each = vzip_u8(pairs, vshr_n_u8(pairs, 4));
  I16 out;
  for (int i = 0; i < 2; ++i) {
    const uint16x8_t eight = vmovl_u8(each.val[i]);
    out.r[2 * i] = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(eight)));
    out.r[2 * i + 1] = vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(eight)));
  }
  return out;
}

// Lane l holds bits >> l.
inline I16 spread16(uint32_t bits) {
  constexpr int32_t BY[4] = {0, -1, -2, -3};
  I16 out;
  for (int i = 0; i < 4; ++i) out.r[i] = vreinterpretq_s32_u32(vshlq_u32(vdupq_n_u32(bits >> 4 * i), vld1q_s32(BY)));
  return out;
}
