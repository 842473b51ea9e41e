// Matrix products. A tile is a few rows by TILE outputs, whose lanes stay in registers while k passes.
//
// Few rows: memory is the limit, so weights are read once, as they are stored, and widened in registers.
// Many rows: arithmetic is the limit, so rows and widened weights are first laid out in the order in which tiles read them.

constexpr size_t TILE = 4;

// --- Few rows ---

constexpr int MOST_TILE_ROWS = REGISTERS == 32 ? 4 : 3;

// How many of the NUM registers of sixteen lanes a tile of `rows` computes at once; more would not fit in the processor's.
constexpr int at_once(int rows) {
  int registers = NUM;
  while (registers > 1 && int(TILE) * rows * registers > REGISTERS / 2) registers /= 2;
  return registers;
}

// lanes[m * TILE + n]: the lanes of row x[m] with output first + n, of at most `last`.
template <int ROWS, class Source>
inline void lanes_of(const Source& source, size_t first, size_t last, const float* const* x, size_t k, F16* lanes) {
  constexpr int ONCE = at_once(ROWS);
  size_t outputs[TILE];
  for (size_t n = 0; n < TILE; ++n) outputs[n] = first + n < last ? first + n : last;
  for (int h = 0; h < NUM; h += ONCE) {
    R sums[ROWS][TILE][ONCE];
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; ++m)
#pragma GCC unroll 8
      for (size_t n = 0; n < TILE; ++n)
#pragma GCC unroll 8
        for (int i = 0; i < ONCE; ++i) sums[m][n][i] = zero();
    auto add = [&](const F16& w, size_t n, auto&& xs) {
#pragma GCC unroll 8
      for (int m = 0; m < ROWS; ++m)
#pragma GCC unroll 8
        for (int i = 0; i < ONCE; ++i) sums[m][n][i] = fma(w.r[h + i], xs(m, i), sums[m][n][i]);
    };
    const size_t whole = k / Source::BLOCK * Source::BLOCK;
    for (size_t b = 0; b < whole; b += Source::BLOCK) {
      typename Source::At at[TILE];
#pragma GCC unroll 8
      for (size_t n = 0; n < TILE; ++n) at[n] = source.at(outputs[n], b);
#pragma GCC unroll 8
      for (size_t j = 0; j < Source::BLOCK; j += 16) {
        R xs[ROWS][ONCE];
#pragma GCC unroll 8
        for (int m = 0; m < ROWS; ++m)
#pragma GCC unroll 8
          for (int i = 0; i < ONCE; ++i) xs[m][i] = load(x[m] + b + j + (h + i) * WIDTH);
#pragma GCC unroll 8
        for (size_t n = 0; n < TILE; ++n) add(source.get(at[n], j), n, [&](int m, int i) { return xs[m][i]; });
      }
    }
    if constexpr (Source::BLOCK == 16)
      if (k % 16) {
        float xs[ROWS][16] = {};
        for (int m = 0; m < ROWS; ++m) __builtin_memcpy(xs[m], x[m] + whole, k % 16 * sizeof(float));
        for (size_t n = 0; n < TILE; ++n) add(source.rest(outputs[n]), n, [&](int m, int i) { return load(xs[m] + (h + i) * WIDTH); });
      }
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; ++m)
#pragma GCC unroll 8
      for (size_t n = 0; n < TILE; ++n)
#pragma GCC unroll 8
        for (int i = 0; i < ONCE; ++i) lanes[m * TILE + n].r[h + i] = sums[m][n][i];
  }
}

// y[0 .. count]: the sums of TILE lanes.
inline void store_sums(const F16* lanes, float* y, size_t count) {
  if (count >= TILE) return sum4(lanes, y);
  float all[TILE];
  sum4(lanes, all);
  for (size_t n = 0; n < count; ++n) y[n] = all[n];
}

template <int ROWS, class Source>
inline void few_tile(const Source& source, size_t first, size_t stop, const Linear& a, size_t row) {
  const float* x[ROWS];
  for (int m = 0; m < ROWS; ++m) x[m] = a.x + (row + m < a.rows ? row + m : a.rows - 1) * a.matrix.k;
  F16 lanes[ROWS * TILE];
  lanes_of<ROWS>(source, first, stop - 1, x, a.matrix.k, lanes);
#pragma GCC unroll 8
  for (int m = 0; m < ROWS; ++m)
    if (row + m < a.rows) store_sums(lanes + m * TILE, a.y + (row + m) * a.matrix.n + first, stop - first);
}

template <class Source>
inline void few_rows(const Source& source, const Linear& a, size_t start, size_t stop) {
  for (size_t j = start; j < stop; j += TILE)
    for (size_t r = 0; r < a.rows;) {
      const size_t left = a.rows - r;
      if (left == 1) few_tile<1>(source, j, stop, a, r), r += 1;
      else if (left == 2) few_tile<2>(source, j, stop, a, r), r += 2;
      else few_tile<MOST_TILE_ROWS>(source, j, stop, a, r), r += MOST_TILE_ROWS;
    }
}

// --- Many rows ---

constexpr size_t TILE_ROWS = REGISTERS == 32 ? 6 : 3;
constexpr size_t DEPTH = 512, PANEL = 64, BLOCK_ROWS = 96;

inline size_t least(size_t a, size_t b) { return a < b ? a : b; }
inline size_t rounded_up(size_t a, size_t unit) { return (a + unit - 1) / unit * unit; }

// The rows a.x + TILE_ROWS * tile ... of each piece of DEPTH: [pieces][tiles][NUM][depth / 16][TILE_ROWS][WIDTH], the missing ones zeros.
inline void pack_rows(const Linear& a, size_t tile) {
  const size_t k = a.matrix.k, tiles = (a.rows + TILE_ROWS - 1) / TILE_ROWS;
  for (size_t k0 = 0; k0 < k; k0 += DEPTH) {
    const size_t steps = (least(DEPTH, k - k0) + 15) / 16;
    float* to = a.packed + (k0 * tiles + tile * steps * 16) * TILE_ROWS;
    for (size_t m = 0; m < TILE_ROWS; ++m) {
      const size_t row = tile * TILE_ROWS + m;
      for (size_t s = 0; s < steps; ++s) {
        F16 x = zeros();
        if (row < a.rows && k0 + s * 16 + 16 <= k) x = load16(a.x + row * k + k0 + s * 16);
        else if (row < a.rows) x = Plain<float>{a.x, k}.rest(row);
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
      for (size_t n = 0; n < TILE; ++n) ws[n] = load(w + n * WIDTH);
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

// Outputs start .. stop (at most PANEL) of rows row .. row_stop (at most BLOCK_ROWS).
template <class Source>
inline void many_rows(const Source& source, const Linear& a, size_t row, size_t row_stop, size_t start, size_t stop) {
  const size_t k = a.matrix.k, n = a.matrix.n, tiles = (a.rows + TILE_ROWS - 1) / TILE_ROWS;
  float* panel = static_cast<float*>(scratch((PANEL * DEPTH + BLOCK_ROWS * PANEL * 16) * sizeof(float)));
  F16* lanes = reinterpret_cast<F16*>(panel + PANEL * DEPTH);
  for (size_t k0 = 0; k0 < k; k0 += DEPTH) {
    const size_t steps = (least(DEPTH, k - k0) + 15) / 16;
    const bool is_first = k0 == 0, is_last = k0 + DEPTH >= k;
    widen_panel(source, start, stop, k0, k, steps, panel);
    F16* part = lanes;
    for (size_t r = row; r < row_stop; r += TILE_ROWS)
      for (size_t j = start; j < stop; j += TILE) {
        packed_tile(a.packed + (k0 * tiles + r / TILE_ROWS * steps * 16) * TILE_ROWS, panel + (j - start) * steps * 16, steps, is_first, part);
        if (is_last)
          for (size_t m = 0; m < least(TILE_ROWS, row_stop - r); ++m) store_sums(part + m * TILE, a.y + (r + m) * n + j, stop - j);
        if (!(is_first && is_last)) part += TILE_ROWS * TILE;
      }
  }
}

// --- Both ---

// f(i) for i < pieces, shared between threads.
template <class F>
inline void each_piece(size_t pieces, const F& f) {
  run_pieces(pieces, [](const void* f, size_t i) { (*static_cast<const F*>(f))(i); }, &f);
}

template <class Source>
inline void linear_of(const Source& source, const Linear& a) {
  const size_t n = a.matrix.n, k = a.matrix.k;
  if (a.rows <= MOST_FEW_ROWS) {
    const size_t most = n * k * (a.rows + 3) / 4 / 65536 + 1, width = rounded_up((n + least(most, 256) - 1) / least(most, 256), 2 * TILE);
    return each_piece((n + width - 1) / width, [&](size_t i) { few_rows(source, a, i * width, least(n, (i + 1) * width)); });
  }
  const size_t tiles = (a.rows + TILE_ROWS - 1) / TILE_ROWS, blocks = (a.rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
  in_parts(tiles, TILE_ROWS * k / 4, [&](size_t start, size_t stop) {
    for (size_t tile = start; tile < stop; ++tile) pack_rows(a, tile);
  });
  each_piece((n + PANEL - 1) / PANEL * blocks, [&](size_t i) {
    const size_t row = i % blocks * BLOCK_ROWS, start = i / blocks * PANEL;
    many_rows(source, a, row, least(a.rows, row + BLOCK_ROWS), start, least(n, start + PANEL));
  });
}

inline void linear(const Linear& a) {
  if (a.rows == 0 || a.matrix.n == 0) return;
  with_source(a.matrix, [&](const auto& source) { linear_of(source, a); });
}
