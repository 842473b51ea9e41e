// A gated DeltaNet layer between its two projections: short causal convolution, the gated delta rule, norm and gate.

// f(sequence, t) for the rows begin .. end of all sequences: row t of the sequence.
template <class F>
inline void each_row(const DeltaNet& a, size_t begin, size_t end, const F& f) {
  for (size_t i = 0; i < a.num_sequences; ++i) {
    const DeltaSequence& s = a.sequences[i];
    const size_t from = begin > s.start ? begin : s.start, to = end < s.start + s.rows ? end : s.start + s.rows;
    for (size_t row = from; row < to; ++row) f(s, row - s.start);
  }
}

// Row `at` of the sequence's channels, counted from the start of its tail.
inline const float* conv_input(const DeltaNet& a, const DeltaSequence& s, size_t at) {
  const size_t before = a.conv_width - 1;
  return at < before ? s.tail + at * a.channels : a.projected + (s.start + at - before) * a.width;
}

inline void conv_silu(const DeltaNet& a, const DeltaSequence& s, size_t t, float* mixed) {
  for (size_t c = 0; c < a.channels; c += 16) {
    F16 total = load16(conv_input(a, s, t) + c) * load16(a.conv + c);
    for (size_t j = 1; j < a.conv_width; ++j) total = fma(load16(conv_input(a, s, t + j) + c), load16(a.conv + j * a.channels + c), total);
    store16(mixed + c, silu(total));
  }
}

inline void scale_to_norm(float* x, size_t dim, float norm) {
  F16 squares = zeros();
  for (size_t i = 0; i < dim; i += 16) squares = fma(load16(x + i), load16(x + i), squares);
  const F16 scale = splat(norm / __builtin_sqrtf(sum(squares) + 1e-6f));
  for (size_t i = 0; i < dim; i += 16) store16(x + i, load16(x + i) * scale);
}

// decay = exp(-rate softplus(a + bias)), beta = sigmoid(b) of a row.
inline void delta_gates(const DeltaNet& a, const float* projected, float* decay, float* beta) {
  const float *b = projected + a.channels + a.value_heads * a.value_dim, *x = b + a.value_heads;
  for (size_t h = 0; h < a.value_heads; h += 16) {
    const size_t n = a.value_heads - h < 16 ? a.value_heads - h : 16;
    store_part(beta + h, sigmoid(load_part(b + h, n)), n);
    const F16 rate = load_part(a.decay_rate + h, n), step = softplus(load_part(x + h, n) + load_part(a.dt_bias + h, n));
    store_part(decay + h, exp(zeros() - rate * step), n);
  }
}

// Rows of queries, keys and values in the order of channels; then decays and betas.
struct DeltaInputs {
  float *mixed, *decay, *beta;
};

inline void delta_inputs(const DeltaNet& a, const DeltaInputs& in, const DeltaSequence& s, size_t t) {
  const size_t row = s.start + t;
  float* mixed = in.mixed + row * a.channels;
  conv_silu(a, s, t, mixed);
  for (size_t h = 0; h < a.key_heads; ++h) {
    scale_to_norm(mixed + h * a.key_dim, a.key_dim, 1.0f / __builtin_sqrtf(float(a.key_dim)));
    scale_to_norm(mixed + (a.key_heads + h) * a.key_dim, a.key_dim, 1.0f);
  }
  delta_gates(a, a.projected + row * a.width, in.decay + row * a.value_heads, in.beta + row * a.value_heads);
}

// A vector of DIM elements in registers, or of any number in memory if DIM is 0.
template <size_t DIM>
struct Held {
  F16 x[DIM / 16];
  explicit Held(const float* p) {
    for (size_t j = 0; j < DIM; j += 16) x[j / 16] = load16(p + j);
  }
  F16 at(size_t j) const { return x[j / 16]; }
};
template <>
struct Held<0> {
  const float* p;
  explicit Held(const float* p) : p(p) {}
  F16 at(size_t j) const { return load16(p + j); }
};

// One row of the rule for 16 SLICES rows of the matrix: to = g from + by k^T with by = beta (v - g from k); y = to q. DK: key_dim, or 0.
// Several slices, since one waits most of the time for its own sums.
template <size_t DK, size_t SLICES>
inline void delta_step(const float* from, float* to, const float* q, const float* k, const float* v, float g, float beta, size_t key_dim, float* y) {
  const size_t dim = DK ? DK : key_dim;
  const Held<DK> keys(k), queries(q);
  const F16 decay = splat(g);
  F16 dots[16];
  alignas(64) float by[16 * SLICES];
  for (size_t s = 0; s < 16 * SLICES; s += 16) {
    for (size_t i = 0; i < 16; ++i) {
      dots[i] = zeros();
      for (size_t j = 0; j < dim; j += 16) dots[i] = fma(load16(from + (s + i) * dim + j), keys.at(j), dots[i]);
    }
    store16(by + s, (load16(v + s) - decay * sum16(dots)) * splat(beta));
  }
  for (size_t s = 0; s < 16 * SLICES; s += 16) {
    for (size_t i = 0; i < 16; ++i) {
      F16 dot = zeros();
      for (size_t j = 0; j < dim; j += 16) {
        const F16 next = fma(splat(by[s + i]), keys.at(j), load16(from + (s + i) * dim + j) * decay);
        store16(to + (s + i) * dim + j, next);
        dot = fma(next, queries.at(j), dot);
      }
      dots[i] = dot;
    }
    store16(y + s, sum16(dots));
  }
}

// All rows of a sequence for 16 SLICES rows of a head's matrix. Between them the matrix is in the first-level cache, in whole cache lines: the
// arrays of MLX begin anywhere.
template <size_t DK, size_t SLICES>
inline void delta_rule(const DeltaNet& a, const DeltaInputs& in, const DeltaSequence& s, size_t head, size_t first) {
  const size_t at = (head * a.value_dim + first) * a.key_dim, key_head = head / (a.value_heads / a.key_heads), bytes = 16 * SLICES * a.key_dim * sizeof(float);
  float *const lines = static_cast<float*>(scratch(bytes)), *to = s.next_matrix + at;
  const float* from = s.matrix + at;
  if (!s.rows && from != to) __builtin_memcpy(to, from, bytes);
  for (size_t row = s.start; row < s.start + s.rows; ++row) {
    const float *q = in.mixed + row * a.channels + key_head * a.key_dim, *k = q + a.key_heads * a.key_dim;
    const float* v = in.mixed + row * a.channels + 2 * a.key_heads * a.key_dim + head * a.value_dim + first;
    const size_t gate = row * a.value_heads + head;
    float *y = a.y + gate * a.value_dim + first, *next = row + 1 < s.start + s.rows ? lines : to;
    delta_step<DK, SLICES>(from, next, q, k, v, in.decay[gate], in.beta[gate], a.key_dim, y);
    from = next;
  }
}

template <size_t DK, size_t SLICES>
inline void delta_rules(const DeltaNet& a, const DeltaInputs& in) {
  const size_t values = 16 * SLICES, pieces = a.value_heads * a.value_dim / values, rows = a.rows / a.num_sequences + 1;
  in_parts(a.num_sequences * pieces, rows * a.key_dim * values * 4, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const size_t value = i % pieces * values;
      delta_rule<DK, SLICES>(a, in, a.sequences[i / pieces], value / a.value_dim, value % a.value_dim);
    }
  });
}

inline void norm_and_gate(const DeltaNet& a, size_t row) {
  for (size_t h = 0; h < a.value_heads; ++h) {
    float* y = a.y + (row * a.value_heads + h) * a.value_dim;
    const float* z = a.projected + row * a.width + a.channels + h * a.value_dim;
    rms_norm_row(y, a.gain, a.value_dim, a.eps, y);
    for (size_t i = 0; i < a.value_dim; i += 16) store16(y + i, load16(y + i) * silu(load16(z + i)));
  }
}

inline void next_tail(const DeltaNet& a, const DeltaSequence& s) {
  for (size_t i = 0; i + 1 < a.conv_width; ++i)
    __builtin_memcpy(s.next_tail + i * a.channels, conv_input(a, s, s.rows + i), a.channels * sizeof(float));
}

inline void delta_net(const DeltaNet& a) {
  float* memory = static_cast<float*>(shared_scratch(a.rows * (a.channels + 2 * a.value_heads) * sizeof(float)));
  const DeltaInputs in{memory, memory + a.rows * a.channels, memory + a.rows * (a.channels + a.value_heads)};
  in_parts(a.rows, a.channels * 8, [&](size_t begin, size_t end) {
    each_row(a, begin, end, [&](const DeltaSequence& s, size_t t) { delta_inputs(a, in, s, t); });
  });
  const bool is_even = a.value_dim % 32 == 0;
  if (is_even && a.key_dim == 64) delta_rules<64, 2>(a, in);
  else if (is_even && a.key_dim == 128) delta_rules<128, 2>(a, in);
  else delta_rules<0, 1>(a, in);
  in_parts(a.rows, a.value_heads * a.value_dim * 8, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) norm_and_gate(a, row);
  });
  for (size_t i = 0; i < a.num_sequences; ++i) next_tail(a, a.sequences[i]);
}
