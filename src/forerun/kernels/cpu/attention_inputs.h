// Queries, keys and gates of attention from its projection, and keys and values into their place.

inline uint64_t bits(double x) { return __builtin_bit_cast(uint64_t, x); }
inline double of_bits(uint64_t x) { return __builtin_bit_cast(double, x); }

// The sine and cosine of 16 float angles, each correctly rounded but for one in millions, where |angle| < 2^26: a multiple n of pi / 2 is
// taken off in three pieces, of which the first two times n are exact; then the series. Doubles, and no branches: compilers make lanes of it.
inline void sine_cosine(const float* angles, float* sine, float* cosine) {
  constexpr double SHIFT = 6755399441055744.0;  // 1.5 * 2^52: the sum with it is rounded to an integer, which its lowest bits hold
  constexpr double HIGH = 0x1.921fb54p+0, MIDDLE = 0x1.10b461p-30, LOW = 0x1.a62633145c06ep-58;
  for (int i = 0; i < 16; ++i) {
    const double x = double(angles[i]), shifted = x * 0.63661977236758134 + SHIFT, n = shifted - SHIFT;
    const double r = ((x - n * HIGH) - n * MIDDLE) - n * LOW, square = r * r;
    double s = 1.0 / 6227020800.0, c = -1.0 / 87178291200.0;
    s = s * square - 1.0 / 39916800.0, c = c * square + 1.0 / 479001600.0;
    s = s * square + 1.0 / 362880.0, c = c * square - 1.0 / 3628800.0;
    s = s * square - 1.0 / 5040.0, c = c * square + 1.0 / 40320.0;
    s = s * square + 1.0 / 120.0, c = c * square - 1.0 / 720.0;
    s = s * square - 1.0 / 6.0, c = c * square + 1.0 / 24.0;
    s = s * square * r + r, c = c * square - 0.5;
    c = c * square + 1.0;
    const uint64_t quadrant = bits(shifted), is_odd = 0 - (quadrant & 1), swap = (bits(s) ^ bits(c)) & is_odd;
    sine[i] = float(of_bits((bits(s) ^ swap) ^ (quadrant & 2) << 62));
    cosine[i] = float(of_bits((bits(c) ^ swap) ^ ((quadrant + 1) & 2) << 62));
  }
}

// The first 2 half elements of x: pairs half apart, or adjacent.
inline void rotate(float* x, const float* sine, const float* cosine, size_t half, bool is_traditional) {
  const size_t step = is_traditional ? 2 : 1, apart = is_traditional ? 1 : half;
  for (size_t i = 0; i < half; ++i) {
    float &a = x[i * step], &b = x[i * step + apart];
    const float turned = a * cosine[i] - b * sine[i];
    b = a * sine[i] + b * cosine[i];
    a = turned;
  }
}

// One head: copied, or normalised where there is a gain, then rotated.
inline void attention_input(const AttentionInputs& a, const float* x, const float* gain, const float* sine, const float* cosine, float* y) {
  if (gain) rms_norm_row(x, gain, a.head_dim, a.eps, y);
  else __builtin_memcpy(y, x, a.head_dim * sizeof(float));
  rotate(y, sine, cosine, a.half, a.is_traditional);
}

inline void attention_inputs_row(const AttentionInputs& a, size_t row, float* sine, float* cosine) {
  alignas(64) float angles[16];
  for (size_t i = 0; i < a.half; i += 16) {
    for (size_t j = 0; j < 16; ++j) angles[j] = i + j < a.half ? float(a.positions[row]) * a.frequencies[i + j] : 0.0f;
    sine_cosine(angles, sine + i, cosine + i);
  }
  const size_t q_stride = a.head_dim * (a.is_gated ? 2 : 1);
  const float *q = a.projected + row * a.width, *k = q + a.heads * q_stride;
  for (size_t h = 0; h < a.heads; ++h)
    attention_input(a, q + h * q_stride, a.q_gain, sine, cosine, a.q + (row * a.heads + h) * a.head_dim);
  for (size_t h = 0; h < a.kv_heads; ++h)
    attention_input(a, k + h * a.head_dim, a.k_gain, sine, cosine, a.k + (row * a.kv_heads + h) * a.head_dim);
}

inline void attention_inputs(const AttentionInputs& a) {
  in_parts(a.rows, (a.heads + a.kv_heads) * a.head_dim + a.half * 16, [&](size_t begin, size_t end) {
    const size_t space = (a.half + 15) / 16 * 16;
    float* sine = static_cast<float*>(scratch(2 * space * sizeof(float)));
    for (size_t row = begin; row < end; ++row) attention_inputs_row(a, row, sine, sine + space);
  });
}

inline void write_rows(const WriteRows& a) {
  in_parts(a.rows, a.kv_heads * a.dim, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row)
      for (size_t h = 0; h < a.kv_heads; ++h)
        __builtin_memcpy(a.buffer + (h * a.capacity + size_t(a.at[row])) * a.dim, a.x + row * a.x_row + h * a.x_head, a.dim * sizeof(float));
  });
}

inline void sigmoid_gate(const SigmoidGate& a) {
  in_parts(a.rows, a.heads * a.head_dim * 8, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row)
      for (size_t h = 0; h < a.heads; ++h) {
        const float* gate = a.projected + row * a.width + (2 * h + 1) * a.head_dim;
        const size_t at = (row * a.heads + h) * a.head_dim;
        for (size_t i = 0; i < a.head_dim; i += 16) store16(a.out + at + i, load16(a.y + at + i) * sigmoid(load16(gate + i)));
      }
  });
}
