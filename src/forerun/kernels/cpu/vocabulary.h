// Functions of logits: rows of a whole vocabulary.

// Sums have the usual lanes within parts of PART_TERMS, whose sums are added in order: threads share a row.
constexpr size_t PART_TERMS = 4096;

// ln x of a normal x > 0, within 1 ulp (Cephes' logf, with fma): x = 2^n (1 + r), sqrt(1/2) <= 1 + r < sqrt(2).
inline float log(float x) {
  int32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  int n = ((bits >> 23) & 255) - 126;
  bits = (bits & 0x807FFFFF) | 0x3F000000;
  float r;
  __builtin_memcpy(&r, &bits, 4);
  if (r < 0.707106781186547524f) r = r + r, --n;
  r = r - 1.0f;
  float p = 7.0376836292e-2f;
  constexpr float COEFFICIENTS[] = {-1.1514610310e-1f, 1.1676998740e-1f,  -1.2420140846e-1f, 1.4249322787e-1f,
                                    -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f};
  for (float c : COEFFICIENTS) p = __builtin_fmaf(p, r, c);
  const float square = r * r;
  float y = p * (r * square);
  y = __builtin_fmaf(float(n), -2.12194440e-4f, y);
  y = __builtin_fmaf(square, -0.5f, y);
  return __builtin_fmaf(float(n), 0.693359375f, r + y);
}

// f(start, lanes) for each sixteen of x[start .. stop], the missing ones -inf.
template <class F>
inline void each_sixteen(const float* x, size_t start, size_t stop, const F& f) {
  size_t i = start;
  for (; i + 16 <= stop; i += 16) f(i, load16(x + i));
  if (i == stop) return;
  float padded[16];
  for (size_t l = 0; l < 16; ++l) padded[l] = i + l < stop ? x[i + l] : -__builtin_inff();
  f(i, load16(padded));
}

// The largest of x[start .. stop]; a NaN counts or not.
inline float largest(const float* x, size_t start, size_t stop) {
  F16 best = splat(x[start]);
  each_sixteen(x, start, stop, [&](size_t, const F16& a) { best = most(best, a); });
  float lanes[16], most = x[start];
  store16(lanes, best);
  for (float a : lanes) most = a > most ? a : most;
  return most;
}

// a.parts [rows][parts of a row] holds each part's largest, then its sum.
inline void log_softmax(const LogSoftmax& a) {
  if (a.n == 0) return;
  const size_t parts = (a.n + PART_TERMS - 1) / PART_TERMS;
  const auto each_part = [&](size_t cost, auto&& f) {  // f(row, part, start, stop)
    in_parts(a.rows * parts, cost * least(PART_TERMS, a.n), [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) f(i / parts, i, i % parts * PART_TERMS, least(a.n, (i % parts + 1) * PART_TERMS));
    });
  };
  each_part(1, [&](size_t row, size_t i, size_t start, size_t stop) { a.parts[i] = largest(a.x + row * a.n, start, stop); });
  for (size_t row = 0; row < a.rows; ++row) a.largest[row] = largest(a.parts + row * parts, 0, parts);
  each_part(2, [&](size_t row, size_t i, size_t start, size_t stop) {
    F16 total = zeros();
    each_sixteen(a.x + row * a.n, start, stop, [&](size_t, const F16& x) { total = total + exp(x - splat(a.largest[row])); });
    a.parts[i] = sum(total);
  });
  for (size_t row = 0; row < a.rows; ++row) {
    float total = 0;
    for (size_t i = row * parts; i < (row + 1) * parts; ++i) total = total + a.parts[i];
    a.logs[row] = total == total ? log(total) : total;
  }
  each_part(1, [&](size_t row, size_t, size_t start, size_t stop) {
    const F16 least = splat(a.largest[row]), log = splat(a.logs[row]);
    each_sixteen(a.x + row * a.n, start, stop, [&](size_t at, const F16& x) {
      const F16 y = x - least - log;
      if (at + 16 <= stop) return store16(a.y + row * a.n + at, y);
      float last[16];
      store16(last, y);
      __builtin_memcpy(a.y + row * a.n + at, last, (stop - at) * sizeof(float));
    });
  });
}

// An integer that is larger for a larger value and, of equal values, for a lower index.
inline int64_t rank(float value, size_t index) {
  const float positive_zero = value + 0.0f;
  int32_t bits;
  __builtin_memcpy(&bits, &positive_zero, 4);
  return int64_t(bits < 0 ? bits ^ 0x7FFFFFFF : bits) * (int64_t(1) << 32) + int64_t(0xFFFFFFFF - index);
}
inline size_t index_of(int64_t rank) { return 0xFFFFFFFF - size_t(rank & 0xFFFFFFFF); }

// Restores the heap ranks[0 .. size], least first, of which only entry i may be too large for its place.
inline void sift_down(int64_t* ranks, size_t size, size_t i) {
  const int64_t moved = ranks[i];
  for (size_t child; (child = 2 * i + 1) < size; i = child) {
    if (child + 1 < size && ranks[child + 1] < ranks[child]) ++child;
    if (moved <= ranks[child]) break;
    ranks[i] = ranks[child];
  }
  ranks[i] = moved;
}

// The k largest of x[0 .. n], descending, in `indices` and `values`; `ranks` [k] is memory.
inline void top_k_row(const float* x, size_t n, size_t k, int64_t* ranks, float* values, uint32_t* indices) {
  for (size_t i = 0; i < k; ++i) ranks[i] = rank(x[i], i);
  for (size_t i = k / 2; i-- > 0;) sift_down(ranks, k, i);
  for (size_t start = k; start < n; start += 128) {
    const size_t stop = least(n, start + 128);
    if (largest(x, start, stop) < x[index_of(ranks[0])]) continue;
    for (size_t i = start; i < stop; ++i)
      if (const int64_t here = rank(x[i], i); here > ranks[0]) ranks[0] = here, sift_down(ranks, k, 0);
  }
  for (size_t left = k; left-- > 0;) {  // the least of those left is the last of them
    const size_t i = index_of(ranks[0]);
    values[left] = x[i], indices[left] = uint32_t(i);
    ranks[0] = ranks[left], sift_down(ranks, left, 0);
  }
}

inline void top_k(const TopK& a) {
  if (a.k == 0) return;
  in_parts(a.rows, a.n, [&](size_t begin, size_t end) {
    int64_t* ranks = static_cast<int64_t*>(scratch(a.k * sizeof(int64_t)));
    for (size_t r = begin; r < end; ++r) top_k_row(a.x + r * a.n, a.n, a.k, ranks, a.values + r * a.k, a.indices + r * a.k);
  });
}
