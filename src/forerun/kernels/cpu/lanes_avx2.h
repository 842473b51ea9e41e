// AVX2 and FMA. See lanes.h.

constexpr int WIDTH = 8, REGISTERS = 16;
using R = __m256;
using I = __m256i;

inline R zero() { return _mm256_setzero_ps(); }
inline R all(float a) { return _mm256_set1_ps(a); }
inline R load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, R a) { _mm256_storeu_ps(p, a); }
inline R fma(R a, R b, R c) { return _mm256_fmadd_ps(a, b, c); }
inline R add(R a, R b) { return _mm256_add_ps(a, b); }
inline R sub(R a, R b) { return _mm256_sub_ps(a, b); }
inline R mul(R a, R b) { return _mm256_mul_ps(a, b); }
inline R div(R a, R b) { return _mm256_div_ps(a, b); }
inline R least(R a, R b) { return _mm256_min_ps(a, b); }
inline R most(R a, R b) { return _mm256_max_ps(a, b); }
inline R nearest(R a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline R shifted(R p, R n) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
}
inline R widen(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}
inline R halves(const Half* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline float as_float(Half a) { return _cvtsh_ss(a.bits); }

inline I bytes(const uint8_t* p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))); }
inline I signed_bytes(const uint8_t* p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))); }
inline I both(I a, int bits) { return _mm256_and_si256(a, _mm256_set1_epi32(bits)); }
inline I either(I a, I b) { return _mm256_or_si256(a, b); }
inline I shift_left(I a, int n) { return _mm256_slli_epi32(a, n); }
inline I shift_right(I a, int n) { return _mm256_srli_epi32(a, n); }
inline R to_float(I a) { return _mm256_cvtepi32_ps(a); }

#include "lanes.h"
#include "levels.h"

// The sums of four vectors, and of sixteen, in the order of `sum`.
inline void sum4(const F16* x, float* out) {
  const R a = add(x[0].r[0], x[0].r[1]), b = add(x[1].r[0], x[1].r[1]), c = add(x[2].r[0], x[2].r[1]), d = add(x[3].r[0], x[3].r[1]);
  const R t0 = add(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  const R t1 = add(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
  const R u = add(_mm256_shuffle_ps(t0, t1, 0x44), _mm256_shuffle_ps(t0, t1, 0xEE));
  const R w = add(_mm256_shuffle_ps(u, u, 0x88), _mm256_shuffle_ps(u, u, 0xDD));
  _mm_storeu_ps(out, _mm_unpacklo_ps(_mm256_castps256_ps128(w), _mm256_extractf128_ps(w, 1)));
}

inline F16 sum16(const F16* a) {
  alignas(32) float out[16];
  for (int i = 0; i < 16; i += 4) sum4(a + i, out + i);
  return load16(out);
}

// The nibbles of 8 bytes, lowest first, in the lowest four bits.
inline I16 nibbles16(const uint8_t* p) {
  int words[2];
  __builtin_memcpy(words, p, 8);
  const I by = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
  return {{_mm256_srlv_epi32(_mm256_set1_epi32(words[0]), by), _mm256_srlv_epi32(_mm256_set1_epi32(words[1]), by)}};
}

// Lane l holds bits >> l.
inline I16 spread16(uint32_t bits) {
  const I by = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {{_mm256_srlv_epi32(_mm256_set1_epi32(int(bits)), by), _mm256_srlv_epi32(_mm256_set1_epi32(int(bits >> 8)), by)}};
}
