// Sixteen float lanes over the registers of one instruction set. Every operation rounds each lane once, so all sets give the same bits.
//
// Included inside the namespace of a set, after it has defined for its register type R: WIDTH (floats in R) and zero, all, load, store, fma,
// add, sub, mul, div, least, most, nearest, shifted (p * 2^n for integral n), widen (bfloat16), halves (float16), and sum16, see below;
// for integers of 32 bits in its register type I: bytes, signed_bytes (WIDTH of them, widened), shift_left, shift_right, both (and), either
// (or), to_float. REGISTERS is how many vectors the processor holds.

constexpr int NUM = 16 / WIDTH;

struct F16 {
  R r[NUM];
};

struct I16 {
  I r[NUM];
};

#define FORERUN_EACH_OF(type, expression) \
  type out;                               \
  for (int i = 0; i < NUM; ++i) out.r[i] = expression; \
  return out
#define FORERUN_EACH(expression) FORERUN_EACH_OF(F16, expression)

inline F16 zeros() { FORERUN_EACH(zero()); }
inline F16 splat(float a) { FORERUN_EACH(all(a)); }
inline F16 load16(const float* p) { FORERUN_EACH(load(p + i * WIDTH)); }
inline F16 load16(const uint16_t* bf16) { FORERUN_EACH(widen(bf16 + i * WIDTH)); }
inline void store16(float* p, const F16& a) {
  for (int i = 0; i < NUM; ++i) store(p + i * WIDTH, a.r[i]);
}
inline F16 fma(const F16& a, const F16& b, const F16& c) { FORERUN_EACH(fma(a.r[i], b.r[i], c.r[i])); }
inline F16 operator+(const F16& a, const F16& b) { FORERUN_EACH(add(a.r[i], b.r[i])); }
inline F16 operator-(const F16& a, const F16& b) { FORERUN_EACH(sub(a.r[i], b.r[i])); }
inline F16 operator*(const F16& a, const F16& b) { FORERUN_EACH(mul(a.r[i], b.r[i])); }
inline F16 operator/(const F16& a, const F16& b) { FORERUN_EACH(div(a.r[i], b.r[i])); }
inline F16 least(const F16& a, const F16& b) { FORERUN_EACH(least(a.r[i], b.r[i])); }
inline F16 most(const F16& a, const F16& b) { FORERUN_EACH(most(a.r[i], b.r[i])); }
inline F16 nearest(const F16& a) { FORERUN_EACH(nearest(a.r[i])); }
inline F16 shifted(const F16& p, const F16& n) { FORERUN_EACH(shifted(p.r[i], n.r[i])); }
inline F16 load16(const Half* p) { FORERUN_EACH(halves(p + i * WIDTH)); }
inline F16 to_float(const I16& a) { FORERUN_EACH(to_float(a.r[i])); }
inline I16 bytes16(const uint8_t* p) { FORERUN_EACH_OF(I16, bytes(p + i * WIDTH)); }
inline I16 signed_bytes16(const uint8_t* p) { FORERUN_EACH_OF(I16, signed_bytes(p + i * WIDTH)); }
inline I16 both(const I16& a, int bits) { FORERUN_EACH_OF(I16, both(a.r[i], bits)); }
inline I16 either(const I16& a, const I16& b) { FORERUN_EACH_OF(I16, either(a.r[i], b.r[i])); }
inline I16 shift_left(const I16& a, int n) { FORERUN_EACH_OF(I16, shift_left(a.r[i], n)); }
inline I16 shift_right(const I16& a, int n) { FORERUN_EACH_OF(I16, shift_right(a.r[i], n)); }
#undef FORERUN_EACH
#undef FORERUN_EACH_OF

// The first n lanes in memory; the others are zero, or not stored.
inline F16 load_part(const float* p, size_t n) {
  alignas(64) float x[16] = {};
  __builtin_memcpy(x, p, n * sizeof(float));
  return load16(x);
}
inline void store_part(float* p, const F16& a, size_t n) {
  alignas(64) float x[16];
  store16(x, a);
  __builtin_memcpy(p, x, n * sizeof(float));
}

inline float largest(const F16& a) {
  alignas(64) float x[16];
  store16(x, a);
  for (int half = 8; half; half /= 2)
    for (int l = 0; l < half; ++l) x[l] = x[l] > x[l + half] ? x[l] : x[l + half];
  return x[0];
}

// The one order in which lanes are summed: l + 8, then l + 4, l + 2, l + 1.
inline float sum(const F16& a) {
  alignas(64) float x[16];
  store16(x, a);
  for (int half = 8; half; half /= 2)
    for (int l = 0; l < half; ++l) x[l] = x[l] + x[l + half];
  return x[0];
}
