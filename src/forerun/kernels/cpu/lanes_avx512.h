// AVX-512 (F, BW, DQ, VL, VBMI). See lanes.h.

constexpr int WIDTH = 16, REGISTERS = 32;
using R = __m512;
using I = __m512i;

inline R zero() { return _mm512_setzero_ps(); }
inline R all(float a) { return _mm512_set1_ps(a); }
inline R load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, R a) { _mm512_storeu_ps(p, a); }
inline R fma(R a, R b, R c) { return _mm512_fmadd_ps(a, b, c); }
inline R add(R a, R b) { return _mm512_add_ps(a, b); }
inline R sub(R a, R b) { return _mm512_sub_ps(a, b); }
inline R mul(R a, R b) { return _mm512_mul_ps(a, b); }
inline R div(R a, R b) { return _mm512_div_ps(a, b); }
inline R least(R a, R b) { return _mm512_min_ps(a, b); }
inline R most(R a, R b) { return _mm512_max_ps(a, b); }
inline R nearest(R a) { return _mm512_roundscale_ps(a, 0); }
inline R shifted(R p, R n) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23)));
}
inline R widen(const uint16_t* p) {  // one permutation, where an extension and a shift are two operations on the ports of the fma
  const __m512i to_upper = _mm512_set_epi32(15 << 16, 14 << 16, 13 << 16, 12 << 16, 11 << 16, 10 << 16, 9 << 16, 8 << 16, 7 << 16, 6 << 16, 5 << 16,
                                            4 << 16, 3 << 16, 2 << 16, 1 << 16, 0);
  const __m512i words = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xAAAAAAAA, to_upper, words));
}
inline R halves(const Half* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline float as_float(Half a) { return _cvtsh_ss(a.bits); }

inline I bytes(const uint8_t* p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline I signed_bytes(const uint8_t* p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline I both(I a, int bits) { return _mm512_and_si512(a, _mm512_set1_epi32(bits)); }
inline I either(I a, I b) { return _mm512_or_si512(a, b); }
inline I shift_left(I a, int n) { return _mm512_slli_epi32(a, n); }
inline I shift_right(I a, int n) { return _mm512_srli_epi32(a, n); }
inline R to_float(I a) { return _mm512_cvtepi32_ps(a); }

#include "lanes.h"

// The sums of four vectors, and of sixteen, in the order of `sum`.
inline void sum4(const F16* a, float* out) {
  const R t0 = add(_mm512_shuffle_f32x4(a[0].r[0], a[1].r[0], 0x44), _mm512_shuffle_f32x4(a[0].r[0], a[1].r[0], 0xEE));
  const R t1 = add(_mm512_shuffle_f32x4(a[2].r[0], a[3].r[0], 0x44), _mm512_shuffle_f32x4(a[2].r[0], a[3].r[0], 0xEE));
  R u = add(_mm512_shuffle_f32x4(t0, t1, 0x88), _mm512_shuffle_f32x4(t0, t1, 0xDD));
  u = add(u, _mm512_permute_ps(u, 0x4E));
  u = add(u, _mm512_permute_ps(u, 0xB1));
  const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, u)));
}

inline F16 sum16(const F16* a) {
  R eights[8], fours[4];
  for (int i = 0; i < 8; ++i)
    eights[i] = add(_mm512_shuffle_f32x4(a[2 * i].r[0], a[2 * i + 1].r[0], 0x44), _mm512_shuffle_f32x4(a[2 * i].r[0], a[2 * i + 1].r[0], 0xEE));
  for (int i = 0; i < 4; ++i)
    fours[i] = add(_mm512_shuffle_f32x4(eights[2 * i], eights[2 * i + 1], 0x88), _mm512_shuffle_f32x4(eights[2 * i], eights[2 * i + 1], 0xDD));
  auto twos = [&](int i) {  // per 128 bits: two lanes of an output of fours[i], two of one of fours[i + 1]
    const __m512d u = _mm512_castps_pd(fours[i]), v = _mm512_castps_pd(fours[i + 1]);
    return add(_mm512_castpd_ps(_mm512_unpacklo_pd(u, v)), _mm512_castpd_ps(_mm512_unpackhi_pd(u, v)));
  };
  const R p = twos(0), q = twos(2);
  const R ones = add(_mm512_shuffle_ps(p, q, 0x88), _mm512_shuffle_ps(p, q, 0xDD));  // lane 4 j + c is the sum of a[4 c + j]
  return {{_mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), ones)}};
}

// All values of four bits as weights, fma(q, scale, bias), and those of 16 integers of which the lowest four bits count.
struct Levels {
  R values;
};
inline Levels levels(float scale, float bias) {
  return {fma(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), all(scale), all(bias))};
}
inline F16 look_up(const Levels& l, const I16& q) { return {{_mm512_permutexvar_ps(q.r[0], l.values)}}; }

// The nibbles of 8 bytes, lowest first, in the lowest four bits. Byte 0 of word l becomes bits 4 l .. 4 l + 7 of the 64.
inline I16 nibbles16(const uint8_t* p) {
  long long bits;
  __builtin_memcpy(&bits, p, 8);
  const __m512i at = _mm512_setr_epi64(0x0000000400000000, 0x0000000c00000008, 0x0000001400000010, 0x0000001c00000018, 0x0000002400000020,
                                       0x0000002c00000028, 0x0000003400000030, 0x0000003c00000038);
  return {{_mm512_multishift_epi64_epi8(at, _mm512_set1_epi64(bits))}};
}

// Lane l holds bits >> l.
inline I16 spread16(uint32_t bits) {
  return {{_mm512_srlv_epi32(_mm512_set1_epi32(int(bits)), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))}};
}
