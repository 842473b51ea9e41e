// Attention with an online softmax. A row's bits depend on its own keys alone: they are taken in absolute blocks of BLOCK_KEYS positions, the
// sums are rescaled between blocks, and absolute partitions of PARTITION_KEYS are joined in order. A masked key has weight 0.

constexpr size_t BLOCK_KEYS = 64, PARTITION_KEYS = 512, TILE_QUERIES = 64;
constexpr int FEW = WIDTH == 8 ? 2 : 4;  // queries whose sums fit in the registers
constexpr float LOWEST = -3e38f;         // of no key: differences to it are finite

template <int N>
struct Few {
  static constexpr int num = N;
};

// f(Few<n>, i) for the elements i .. i + n of 0 .. num.
template <class F>
inline void each_few(size_t num, const F& f) {
  for (size_t i = 0; i < num; i += FEW) {
    const size_t n = num - i;
    if (n >= FEW) f(Few<FEW>{}, i);
    else if (n == 3) f(Few<3>{}, i);
    else if (n == 2) f(Few<2>{}, i);
    else f(Few<1>{}, i);
  }
}

// Rows of one sequence and all query heads of a key head: query i is of row start + i / group. Some row sees first .. stop.
struct QueryTile {
  const AttentionSequence* sequence;
  size_t kv_head, start, rows, num, first, stop;
  float *queries, *scores;  // [num, dim] scaled, [num, BLOCK_KEYS]
};

// What a query has seen: sums of weighted values [dim], sums of weights in 16 lanes, the largest score.
inline size_t state_size(const Attention& a) { return a.dim + 32; }
inline void clear(const Attention& a, float* state) {
  for (size_t i = 0; i < a.dim + 16; i += 16) store16(state + i, zeros());
  state[a.dim + 16] = LOWEST;
}

inline void join(const Attention& a, float* state, const float* other) {
  float &top = state[a.dim + 16], largest = top > other[a.dim + 16] ? top : other[a.dim + 16];
  const F16 scale = exp(splat(top - largest)), by = exp(splat(other[a.dim + 16] - largest));
  for (size_t i = 0; i < a.dim + 16; i += 16) store16(state + i, fma(load16(other + i), by, load16(state + i) * scale));
  top = largest;
}

inline void finish(const Attention& a, const float* state, float* out) {
  const F16 weight = splat(sum(load16(state + a.dim)));
  for (size_t i = 0; i < a.dim; i += 16) store16(out + i, (load16(state + i) + zeros()) / weight);  // + 0: a masked key may turn -0 into 0
}

// Where positions start .. start + num of a key head lie; the last also stands for those up to the next 16.
inline void locate(const Attention& a, const AttentionSequence& s, const float* base, size_t start, size_t num, const float** at) {
  for (size_t i = 0; i < num;) {
    const size_t position = start + i, page = s.blocks ? position / a.block_tokens : 0, in_page = position - page * a.block_tokens;
    const float* from = base + (s.blocks ? size_t(s.blocks[page]) * a.block_tokens + in_page : position) * a.dim;
    for (size_t left = s.blocks ? a.block_tokens - in_page : num; left && i < num; --left, from += a.dim) at[i++] = from;
  }
  for (size_t i = num; i % 16; ++i) at[i] = at[num - 1];
}

// Scores of N queries and 16 keys.
template <int N>
inline void score(const float* queries, const float* const* keys, size_t dim, float* scores) {
  F16 lanes[N][16];
  for (int k = 0; k < 16; k += 4)
    for (int h = 0; h < NUM; ++h) {
      R total[N][4];
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n)
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) total[n][i] = zero();
      for (size_t d = h * WIDTH; d < dim; d += 16) {
        R key[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) key[i] = load(keys[k + i] + d);
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) {
          const R query = load(queries + n * dim + d);
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) total[n][i] = fma(query, key[i], total[n][i]);
        }
      }
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n)
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) lanes[n][k + i].r[h] = total[n][i];
    }
  for (int n = 0; n < N; ++n) store16(scores + n * BLOCK_KEYS, sum16(lanes[n]));
}

// states[:, WIDTH D lanes] of N queries = states * scale + the weighted values of num keys, key after key.
template <int N, int D>
inline void add_values(const float* weights, const float* scales, const float* const* values, size_t at, size_t num, float* states, size_t stride) {
  R total[N][D];
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n)
#pragma GCC unroll 4
    for (int d = 0; d < D; ++d) total[n][d] = mul(load(states + n * stride + at + d * WIDTH), all(scales[n]));
  for (size_t k = 0; k < num; ++k) {
    R value[D];
#pragma GCC unroll 4
    for (int d = 0; d < D; ++d) value[d] = load(values[k] + at + d * WIDTH);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      const R weight = all(weights[n * BLOCK_KEYS + k]);
#pragma GCC unroll 4
      for (int d = 0; d < D; ++d) total[n][d] = fma(weight, value[d], total[n][d]);
    }
  }
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n)
#pragma GCC unroll 4
    for (int d = 0; d < D; ++d) store(states + n * stride + at + d * WIDTH, total[n][d]);
}

// Those of `count` elements that are not begin .. end get the value.
inline void fill_outside(float* x, size_t count, size_t begin, size_t end, float value) {
  for (size_t i = 0; i < begin; ++i) x[i] = value;
  for (size_t i = end; i < count; ++i) x[i] = value;
}

// The keys that a row sees (from a.first to its own, and its own always) among start .. start + BLOCK_KEYS, relative to start.
struct Visible {
  size_t begin, end;
  Visible(const Attention& a, size_t row, size_t start) {
    const size_t own = size_t(a.positions[row]), first = least(a.first, own), stop = start + BLOCK_KEYS;
    begin = first > start ? least(first, stop) - start : 0;
    end = own < start ? begin : least(own + 1, stop) - start;
  }
};

// The scores of a block become weights relative to the largest score so far; scales: by what each query's earlier sums shrink.
inline void softmax(const Attention& a, const QueryTile& t, size_t start, float* states, float* scales) {
  const size_t group = a.heads / a.kv_heads;
  for (size_t i = 0; i < t.num; ++i) {
    float *scores = t.scores + i * BLOCK_KEYS, &top = states[i * state_size(a) + a.dim + 16];
    const Visible seen(a, t.start + i / group, start);
    fill_outside(scores, BLOCK_KEYS, seen.begin, seen.end, LOWEST);
    F16 tops = load16(scores);
    for (size_t k = 16; k < BLOCK_KEYS; k += 16) tops = most(tops, load16(scores + k));
    const float before = top, of_block = largest(tops);
    top = before > of_block ? before : of_block;
    scales[i] = before - top;
  }
  for (size_t i = 0; i < t.num; i += 16) store16(scales + i, exp(load16(scales + i)));
  for (size_t i = 0; i < t.num; ++i) {
    float *scores = t.scores + i * BLOCK_KEYS, *state = states + i * state_size(a);
    const Visible seen(a, t.start + i / group, start);
    const F16 top = splat(state[a.dim + 16]);
    for (size_t k = 0; k < BLOCK_KEYS; k += 16) store16(scores + k, exp(load16(scores + k) - top));
    fill_outside(scores, BLOCK_KEYS, seen.begin, seen.end, 0.0f);
    F16 lanes = load16(state + a.dim) * splat(scales[i]);
    for (size_t k = 0; k < BLOCK_KEYS; k += 16) lanes = lanes + load16(scores + k);
    store16(state + a.dim, lanes);
  }
}

inline void attend_to_block(const Attention& a, const QueryTile& t, size_t start, float* states) {
  const AttentionSequence& s = *t.sequence;
  const size_t num = least(t.stop - start, BLOCK_KEYS), stride = state_size(a);
  const float *keys[BLOCK_KEYS], *values[BLOCK_KEYS];
  alignas(64) float scales[TILE_QUERIES];
  locate(a, s, s.keys + t.kv_head * s.keys_head, start, num, keys);
  locate(a, s, s.values + t.kv_head * s.values_head, start, num, values);
  for (size_t k = 0; k < num; k += 16)
    each_few(t.num, [&](auto few, size_t i) { score<few.num>(t.queries + i * a.dim, keys + k, a.dim, t.scores + i * BLOCK_KEYS + k); });
  softmax(a, t, start, states, scales);
  for (size_t d = 0; d < a.dim; d += d + 4 * WIDTH <= a.dim ? 4 * WIDTH : WIDTH)
    each_few(t.num, [&](auto few, size_t i) {
      const auto add = d + 4 * WIDTH <= a.dim ? add_values<few.num, 4> : add_values<few.num, 1>;
      add(t.scores + i * BLOCK_KEYS, scales + i, values, d, num, states + i * stride, stride);
    });
}

inline void attend_to_partition(const Attention& a, const QueryTile& t, size_t partition, float* states) {
  for (size_t i = 0; i < t.num; ++i) clear(a, states + i * state_size(a));
  const size_t begin = partition * PARTITION_KEYS, end = least(begin + PARTITION_KEYS, t.stop);
  for (size_t start = begin; start < end; start += BLOCK_KEYS)
    if (start + BLOCK_KEYS > t.first) attend_to_block(a, t, start, states);
}

// How the rows of a sequence are divided: into tiles of rows, or, if they are one tile, into the partitions of their keys.
struct AttentionPlan {
  size_t tile_rows, tiles, first, stop;
  size_t pieces, first_piece;  // pieces of each key head; the number of the first of all heads
  size_t parts;                // where the states of partitions begin, [kv_heads, pieces, rows * group]

  size_t first_partition() const { return first / PARTITION_KEYS; }
  bool has_parts() const { return tiles == 1 && pieces > 1; }
};

// The keys that some of the rows see.
inline void visible(const Attention& a, size_t start, size_t rows, size_t& first, size_t& stop) {
  first = a.first, stop = 0;
  for (size_t row = start; row < start + rows; ++row) {
    const size_t own = size_t(a.positions[row]);
    first = least(first, own);
    stop = own + 1 > stop ? own + 1 : stop;
  }
}

inline AttentionPlan plan(const Attention& a, const AttentionSequence& s) {
  const size_t group = a.heads / a.kv_heads;
  AttentionPlan p{};
  p.tile_rows = TILE_QUERIES / group;
  p.tiles = p.pieces = (s.rows + p.tile_rows - 1) / p.tile_rows;
  visible(a, s.start, s.rows, p.first, p.stop);
  if (p.tiles == 1) p.pieces = (p.stop - 1) / PARTITION_KEYS - p.first_partition() + 1;
  return p;
}

inline QueryTile tile_of(const Attention& a, const AttentionSequence& s, const AttentionPlan& p, size_t kv_head, size_t tile, float* memory) {
  const size_t group = a.heads / a.kv_heads, row = tile * p.tile_rows, rows = least(s.rows - row, p.tile_rows), num = rows * group;
  QueryTile t{&s, kv_head, s.start + row, rows, num, 0, 0, memory, memory + num * a.dim};
  visible(a, t.start, rows, t.first, t.stop);
  const F16 scale = splat(1.0f / __builtin_sqrtf(float(a.dim)));
  for (size_t i = 0; i < num; ++i) {
    const float* q = a.q + ((t.start + i / group) * a.heads + kv_head * group + i % group) * a.dim;
    for (size_t d = 0; d < a.dim; d += 16) store16(t.queries + i * a.dim + d, load16(q + d) * scale);
  }
  return t;
}

inline float* output(const Attention& a, const QueryTile& t, size_t i) {
  const size_t group = a.heads / a.kv_heads;
  return a.out + ((t.start + i / group) * a.heads + t.kv_head * group + i % group) * a.dim;
}

// A tile and all its partitions.
inline void attend_tile(const Attention& a, const QueryTile& t, float* memory) {
  const size_t stride = state_size(a);
  float *totals = memory, *states = memory + t.num * stride;
  for (size_t i = 0; i < t.num; ++i) clear(a, totals + i * stride);
  for (size_t p = t.first / PARTITION_KEYS; p * PARTITION_KEYS < t.stop; ++p) {
    attend_to_partition(a, t, p, states);
    for (size_t i = 0; i < t.num; ++i) join(a, totals + i * stride, states + i * stride);
  }
  for (size_t i = 0; i < t.num; ++i) finish(a, totals + i * stride, output(a, t, i));
}

struct AttentionJob {
  const Attention& a;
  const AttentionPlan* plans;
  float* parts;

  float* part(size_t sequence, size_t kv_head, size_t piece) const {
    const size_t num = a.sequences[sequence].rows * (a.heads / a.kv_heads);
    return parts + plans[sequence].parts + (kv_head * plans[sequence].pieces + piece) * num * state_size(a);
  }
};

inline void attend_to_piece(const AttentionJob& job, size_t sequence, size_t kv_head, size_t piece) {
  const Attention& a = job.a;
  const AttentionPlan& p = job.plans[sequence];
  const size_t space = TILE_QUERIES * (a.dim + BLOCK_KEYS);
  float* memory = static_cast<float*>(scratch((space + 2 * TILE_QUERIES * state_size(a)) * sizeof(float)));
  const QueryTile t = tile_of(a, a.sequences[sequence], p, kv_head, p.tiles == 1 ? 0 : piece, memory);
  if (p.has_parts()) attend_to_partition(a, t, p.first_partition() + piece, job.part(sequence, kv_head, piece));
  else attend_tile(a, t, memory + space);
}

// Joins the partitions of the only tile of a sequence.
inline void join_parts(const AttentionJob& job, size_t sequence, size_t kv_head) {
  const Attention& a = job.a;
  const AttentionSequence& s = a.sequences[sequence];
  const size_t stride = state_size(a), num = s.rows * (a.heads / a.kv_heads);
  const QueryTile t{&s, kv_head, s.start, s.rows, num, 0, 0, nullptr, nullptr};
  float* total = static_cast<float*>(scratch(stride * sizeof(float)));
  for (size_t i = 0; i < num; ++i) {
    clear(a, total);
    for (size_t p = 0; p < job.plans[sequence].pieces; ++p) join(a, total, job.part(sequence, kv_head, p) + i * stride);
    finish(a, total, output(a, t, i));
  }
}

// The plans of all sequences, and what they come to.
struct AttentionTotals {
  size_t pieces = 0, parts = 0, keys = 0;
};
inline AttentionTotals plan_all(const Attention& a, AttentionPlan* plans) {
  AttentionTotals totals;
  for (size_t i = 0; i < a.num_sequences; ++i) {
    AttentionPlan p = plan(a, a.sequences[i]);
    p.first_piece = totals.pieces, p.parts = totals.parts;
    if (plans) plans[i] = p;
    totals.pieces += a.kv_heads * p.pieces;
    totals.keys += a.sequences[i].rows * p.stop;
    if (p.has_parts()) totals.parts += p.pieces * a.sequences[i].rows * a.heads * state_size(a);
  }
  return totals;
}

inline void attention(const Attention& a) {
  const size_t space = (a.num_sequences * sizeof(AttentionPlan) + 63) / 64 * 64, parts = plan_all(a, nullptr).parts;
  char* memory = static_cast<char*>(shared_scratch(space + parts * sizeof(float)));
  AttentionPlan* plans = reinterpret_cast<AttentionPlan*>(memory);
  const AttentionJob job{a, plans, reinterpret_cast<float*>(memory + space)};
  const AttentionTotals totals = plan_all(a, plans);
  in_parts(totals.pieces, totals.keys * a.heads * a.dim * 2 / (totals.pieces + 1), [&](size_t begin, size_t end) {
    for (size_t i = begin, s = 0; i < end; ++i) {
      while (i >= plans[s].first_piece + a.kv_heads * plans[s].pieces) ++s;
      const size_t piece = i - plans[s].first_piece;
      attend_to_piece(job, s, piece / plans[s].pieces, piece % plans[s].pieces);
    }
  });
  in_parts(a.num_sequences * a.kv_heads, totals.parts / (a.num_sequences * a.kv_heads), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i)
      if (plans[i / a.kv_heads].has_parts()) join_parts(job, i / a.kv_heads, i % a.kv_heads);
  });
}
