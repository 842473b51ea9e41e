// Matrix products. A tile is a few rows by TILE outputs, whose lanes stay in registers while k passes.
//
// Few rows: memory is the limit, so weights are read once, as they are stored, and widened in registers.
// Many rows: arithmetic is the limit, so rows and widened weights are first laid out in the order in which tiles read them.

constexpr size_t TILE = 4;

// --- Few rows ---

// How many of the NUM registers of sixteen lanes a tile of so many sums computes at once; more would not fit in the processor's.
constexpr int at_once(int sums) {
  int registers = NUM;
  while (registers > 1 && sums * registers > REGISTERS / 2) registers /= 2;
  return registers;
}

// lanes[m * OUTPUTS + n]: the lanes of row m with output outputs[n]. x: ROWS rows `stride` apart, zeros after the k-th.
template <int ROWS, int OUTPUTS, class Source>
inline void lanes_of(const Source& source, const size_t* outputs, const float* x, size_t stride, size_t k, F16* lanes) {
  constexpr int ONCE = at_once(ROWS * OUTPUTS);
  for (int h = 0; h < NUM; h += ONCE) {
    R sums[ROWS][OUTPUTS][ONCE];
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; ++m)
#pragma GCC unroll 8
      for (int n = 0; n < OUTPUTS; ++n)
#pragma GCC unroll 8
        for (int i = 0; i < ONCE; ++i) sums[m][n][i] = zero();
    const auto add_sixteen = [&](size_t at, auto&& weights) {
      R xs[ROWS][ONCE];
#pragma GCC unroll 8
      for (int m = 0; m < ROWS; ++m)
#pragma GCC unroll 8
        for (int i = 0; i < ONCE; ++i) xs[m][i] = load(x + m * stride + at + (h + i) * WIDTH);
#pragma GCC unroll 8
      for (int n = 0; n < OUTPUTS; ++n) {
        const F16 w = weights(n);
#pragma GCC unroll 8
        for (int m = 0; m < ROWS; ++m)
#pragma GCC unroll 8
          for (int i = 0; i < ONCE; ++i) sums[m][n][i] = fma(w.r[h + i], xs[m][i], sums[m][n][i]);
      }
    };
    const size_t whole = k / Source::BLOCK * Source::BLOCK;
    for (size_t b = 0; b < whole; b += Source::BLOCK) {
      typename Source::At at[OUTPUTS];
#pragma GCC unroll 8
      for (int n = 0; n < OUTPUTS; ++n) {
        at[n] = source.at(outputs[n], b);
        if constexpr (Source::BLOCK == 16) source.fetch(at[n], TILE);
        else __builtin_prefetch(source.address(outputs[n] + 2 * TILE, b));
      }
#pragma GCC unroll 8
      for (size_t j = 0; j < Source::BLOCK; j += 16) add_sixteen(b + j, [&](int n) { return source.get(at[n], j); });
    }
    if constexpr (Source::BLOCK == 16)
      if (whole < k) add_sixteen(whole, [&](int n) { return source.rest(outputs[n]); });
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; ++m)
#pragma GCC unroll 8
      for (int n = 0; n < OUTPUTS; ++n)
#pragma GCC unroll 8
        for (int i = 0; i < ONCE; ++i) lanes[m * OUTPUTS + n].r[h + i] = sums[m][n][i];
  }
}

// y[0 .. count] of OUTPUTS sums, all if there are fewer.
template <size_t OUTPUTS>
inline void store_first(const float* sums, float* y, size_t count) {
  if (count >= OUTPUTS) __builtin_memcpy(y, sums, OUTPUTS * sizeof(float));
  else __builtin_memcpy(y, sums, count * sizeof(float));
}

inline size_t least(size_t a, size_t b) { return a < b ? a : b; }
inline size_t rounded_up(size_t a, size_t unit) { return (a + unit - 1) / unit * unit; }

inline const float* x_row(const Linear& a, size_t i) { return a.x + (a.ids ? a.ids[i] / a.share : i) * a.matrix.k; }
inline float* y_row(const Linear& a, size_t i) { return a.y + (a.ids ? a.ids[i] : i) * a.matrix.n; }

// Row i up to the next multiple of 16, with zeros at its end.
inline void copy_row(const Linear& a, size_t i, float* to) {
  const size_t k = a.matrix.k;
  const Plain<float> row{x_row(a, i), k};
  for (size_t j = 0; j + 16 <= k; j += 16) store16(to + j, row.get(row.at(0, j), 0));
  if (k % 16) store16(to + k / 16 * 16, row.rest(0));
}

// Rows row .. row + ROWS, copied to x, and outputs j .. j + OUTPUTS, without those from a.rows and from `stop` on.
template <int ROWS, int OUTPUTS, class Source>
inline void few_tile(const Source& source, const Linear& a, const float* x, size_t row, size_t j, size_t stop) {
  size_t outputs[OUTPUTS];
#pragma GCC unroll 8
  for (int n = 0; n < OUTPUTS; ++n) outputs[n] = a.first + least(j + n, stop - 1);
  const size_t stride = rounded_up(a.matrix.k, 16);
  F16 lanes[ROWS * OUTPUTS];
  lanes_of<ROWS, OUTPUTS>(source, outputs, x + row * stride, stride, a.matrix.k, lanes);
  float sums[ROWS * OUTPUTS];
#pragma GCC unroll 8
  for (int i = 0; i < ROWS * OUTPUTS; i += 4) sum4(lanes + i, sums + i);
  for (size_t m = 0; m < least(ROWS, a.rows - row); ++m) store_first<OUTPUTS>(sums + m * OUTPUTS, y_row(a, row + m) + j, stop - j);
}

// Outputs j .. j + TILE of some rows from `row` on. Returns how many.
template <class Source>
inline size_t few_tiles(const Source& source, const Linear& a, const float* x, size_t row, size_t j, size_t stop) {
  const size_t left = a.rows - row;
  if (left == 1) return few_tile<1, TILE>(source, a, x, row, j, stop), 1;
  if (left == 2) return few_tile<2, TILE>(source, a, x, row, j, stop), 2;
  if constexpr (REGISTERS < 32) return few_tile<3, TILE>(source, a, x, row, j, stop), 3;
  if constexpr (Source::IS_SLOW)
    if (left > 6) {
      for (size_t i = j; i < least(stop, j + TILE); i += 2) few_tile<8, 2>(source, a, x, row, i, stop);
      return 8;
    }
  return few_tile<4, TILE>(source, a, x, row, j, stop), 4;
}

// Outputs start .. stop of all rows.
template <class Source>
inline void few_rows(const Source& source, const Linear& a, size_t start, size_t stop) {
  const size_t stride = rounded_up(a.matrix.k, 16);
  float* x = static_cast<float*>(scratch(rounded_up(a.rows, 8) * stride * sizeof(float)));  // nothing is stored of rows after the last
  for (size_t r = 0; r < a.rows; ++r) copy_row(a, r, x + r * stride);
  for (size_t j = start; j < stop; j += TILE)
    for (size_t r = 0; r < a.rows;) r += few_tiles(source, a, x, r, j, stop);
}

// --- Many rows ---

constexpr size_t TILE_ROWS = REGISTERS == 32 ? 6 : 3;
constexpr size_t DEPTH = 512, PANEL = 64, BLOCK_ROWS = 96, STEPS_AHEAD = 4;

inline size_t row_tiles(const Linear& a) { return (a.rows + TILE_ROWS - 1) / TILE_ROWS; }

// Rows TILE_ROWS * tile ... of each piece of DEPTH: [pieces][tiles][NUM][depth / 16][TILE_ROWS][WIDTH], the missing ones zeros.
inline void pack_rows(const Linear& a, size_t tile) {
  const size_t k = a.matrix.k, tiles = row_tiles(a);
  for (size_t k0 = 0; k0 < k; k0 += DEPTH) {
    const size_t steps = (least(DEPTH, k - k0) + 15) / 16;
    float* to = a.packed + (k0 * tiles + tile * steps * 16) * TILE_ROWS;
    for (size_t m = 0; m < TILE_ROWS; ++m) {
      const size_t row = tile * TILE_ROWS + m;
      for (size_t s = 0; s < steps; ++s) {
        F16 x = zeros();
        if (row < a.rows && k0 + s * 16 + 16 <= k) x = load16(x_row(a, row) + k0 + s * 16);
        else if (row < a.rows) x = Plain<float>{x_row(a, row), k}.rest(0);
        for (int h = 0; h < NUM; ++h) store(to + ((h * steps + s) * TILE_ROWS + m) * WIDTH, x.r[h]);
      }
    }
  }
}

// Weights k0 .. k0 + 16 * steps of outputs start .. stop: [tiles][NUM][steps][TILE][WIDTH].
template <class Source>
inline void widen_panel(const Source& source, size_t start, size_t stop, size_t k0, size_t k, size_t steps, float* panel) {
  for (size_t j = start; j < rounded_up(stop - start, TILE) + start; ++j) {
    const size_t output = least(j, stop - 1);
    float* to = panel + (j - start) / TILE * steps * TILE * 16 + (j - start) % TILE * WIDTH;
    auto put = [&](size_t s, const F16& w) {
      for (int h = 0; h < NUM; ++h) store(to + (h * steps + s) * TILE * WIDTH, w.r[h]);
    };
    const size_t end = least(steps * 16, (k - k0) / Source::BLOCK * Source::BLOCK);
    for (size_t i = 0; i < end; i += Source::BLOCK) {
      const auto at = source.at(output, k0 + i);
#pragma GCC unroll 8
      for (size_t l = 0; l < Source::BLOCK; l += 16) put((i + l) / 16, source.get(at, l));
    }
    if constexpr (Source::BLOCK == 16)
      if (end < steps * 16) put(steps - 1, source.rest(output));
  }
}

// `lanes` [TILE_ROWS * TILE] of a tile: from zero if is_first, else of what they hold.
inline void packed_tile(const float* x, const float* w, size_t steps, bool is_first, F16* lanes) {
  for (int h = 0; h < NUM; ++h) {
    R sums[TILE_ROWS][TILE];
#pragma GCC unroll 8
    for (size_t m = 0; m < TILE_ROWS; ++m)
#pragma GCC unroll 8
      for (size_t n = 0; n < TILE; ++n) sums[m][n] = is_first ? zero() : lanes[m * TILE + n].r[h];
    for (size_t s = 0; s < steps; ++s, x += TILE_ROWS * WIDTH, w += TILE * WIDTH) {
      R ws[TILE];
#pragma GCC unroll 8
      for (size_t n = 0; n < TILE; ++n) {
        ws[n] = load(w + n * WIDTH);
        __builtin_prefetch(w + (STEPS_AHEAD * TILE + n) * WIDTH);
      }
#pragma GCC unroll 8
      for (size_t m = 0; m < TILE_ROWS; ++m) {
        const R one = load(x + m * WIDTH);
#pragma GCC unroll 8
        for (size_t n = 0; n < TILE; ++n) sums[m][n] = fma(ws[n], one, sums[m][n]);
      }
    }
#pragma GCC unroll 8
    for (size_t m = 0; m < TILE_ROWS; ++m)
#pragma GCC unroll 8
      for (size_t n = 0; n < TILE; ++n) lanes[m * TILE + n].r[h] = sums[m][n];
  }
}

// Part `part` of `parts` of the memory start .. stop, which is needed soon.
inline void fetch(const void* start, const void* stop, size_t part, size_t parts) {
  const char* from = static_cast<const char*>(start);
  const size_t lines = (static_cast<const char*>(stop) - from + 63) / 64;
  for (size_t i = lines * part / parts; i < lines * (part + 1) / parts; ++i) __builtin_prefetch(from + i * 64, 0, 2);
}

// Outputs start .. stop (at most PANEL) of rows row .. row_stop (at most BLOCK_ROWS). Each tile fetches a little of what comes next: of the rows
// of the next tiles, and of the weights of the next DEPTH.
template <class Source>
inline void many_rows(const Source& source, const Linear& a, size_t row, size_t row_stop, size_t start, size_t stop) {
  constexpr size_t TILES = PANEL / TILE, FETCHES = BLOCK_ROWS / TILE_ROWS * TILES / PANEL;
  const size_t k = a.matrix.k, tiles = row_tiles(a);
  float* panel = static_cast<float*>(scratch((PANEL * DEPTH + BLOCK_ROWS * PANEL * 16) * sizeof(float)));
  F16* part = reinterpret_cast<F16*>(panel + PANEL * DEPTH);
  for (size_t k0 = 0; k0 < k; k0 += DEPTH) {
    const size_t steps = (least(DEPTH, k - k0) + 15) / 16, next = least(k0 + DEPTH, k);
    const bool is_first = k0 == 0, is_last = next == k;
    widen_panel(source, a.first + start, a.first + stop, k0, k, steps, panel);
    for (size_t r = row; r < row_stop; r += TILE_ROWS) {
      const float *x = a.packed + (k0 * tiles + r / TILE_ROWS * steps * 16) * TILE_ROWS, *next_x = x + steps * 16 * TILE_ROWS;
      for (size_t j = start; j < stop; j += TILE) {
        const size_t tile = (r - row) / TILE_ROWS * TILES + (j - start) / TILE, output = a.first + least(start + tile / FETCHES, stop - 1);
        fetch(next_x, next_x + steps * 16 * TILE_ROWS, (j - start) / TILE, TILES);
        if (!is_last) fetch(source.address(output, next), source.address(output, least(next + DEPTH, k)), tile % FETCHES, FETCHES);
        F16* lanes = part + (is_first && is_last ? 0 : tile * TILE_ROWS * TILE);
        packed_tile(x, panel + (j - start) * steps * 16, steps, is_first, lanes);
        if (is_last)
          for (size_t m = 0; m < least(TILE_ROWS, row_stop - r); ++m) {
            float sums[TILE];
            sum4(lanes + m * TILE, sums);
            store_first<TILE>(sums, y_row(a, r + m) + j, stop - j);
          }
      }
    }
  }
}

// --- Both ---

inline bool is_few(const Linear& a) { return a.rows <= MOST_FEW_ROWS; }

// A piece is some outputs of all rows if rows are few (so many that a thread has some microseconds of work), else a panel of
// BLOCK_ROWS rows: all panels of the same rows follow each other, since these come from a cache then.
inline size_t piece_outputs(const Linear& a) {
  if (!is_few(a)) return PANEL;
  const size_t pieces = least(a.matrix.n * a.matrix.k * (a.rows + 3) / 4 / 65536 + 1, 256);
  return rounded_up((a.matrix.n + pieces - 1) / pieces, 2 * TILE);
}
inline size_t output_blocks(const Linear& a) { return (a.matrix.n + piece_outputs(a) - 1) / piece_outputs(a); }
inline size_t num_pieces(const Linear& a) { return output_blocks(a) * (is_few(a) ? 1 : (a.rows + BLOCK_ROWS - 1) / BLOCK_ROWS); }

template <class Source>
inline void compute_piece(const Source& source, const Linear& a, size_t i) {
  const size_t blocks = output_blocks(a), row = i / blocks * BLOCK_ROWS, start = i % blocks * piece_outputs(a);
  const size_t stop = least(a.matrix.n, start + piece_outputs(a));
  if (is_few(a)) return few_rows(source, a, start, stop);
  many_rows(source, a, row, least(a.rows, row + BLOCK_ROWS), start, stop);
}

inline void linear(const Linear& a) {
  if (a.rows == 0 || a.matrix.n == 0) return;
  if (!is_few(a))
    in_parts(row_tiles(a), TILE_ROWS * a.matrix.k / 4, [&](size_t start, size_t stop) {
      for (size_t tile = start; tile < stop; ++tile) pack_rows(a, tile);
    });
  with_source(a.matrix, [&](const auto& source) { each_piece(num_pieces(a), [&](size_t i) { compute_piece(source, a, i); }); });
}

inline void matrix_rows(const MatrixRows& a) {
  const size_t k = a.matrix.k;
  with_source(a.matrix, [&]<class Source>(const Source& source) {
    in_parts(a.rows, k / 4, [&](size_t start, size_t stop) {
      for (size_t r = start; r < stop; ++r)
        for (size_t i = 0; i < k; i += Source::BLOCK) {
          const auto at = source.at(least(a.ids ? a.ids[r] : r, a.matrix.n - 1), i);
#pragma GCC unroll 8
          for (size_t j = 0; j < Source::BLOCK; j += 16) store16(a.y + r * k + i + j, source.get(at, j));
        }
    });
  });
}
