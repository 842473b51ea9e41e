// Products of rows with matrices of their own: rows of one expert are computed together, so that its weights are read once.

// a.ids and the parts of experts that have rows. Returns how many those are.
inline size_t sort_by_expert(const ExpertsLinear& a) {
  const auto expert = [&](size_t id) { return least(a.experts[id], a.num_experts - 1); };
  for (size_t e = 0; e < a.num_experts; ++e) a.parts[e].linear = a.all, a.parts[e].linear.rows = 0;
  for (size_t id = 0; id < a.all.rows; ++id) ++a.parts[expert(id)].linear.rows;
  size_t before = 0;
  for (size_t e = 0; e < a.num_experts; before += a.parts[e++].linear.rows) {
    a.parts[e].linear.ids = a.ids + before;
    a.parts[e].linear.first = e * a.all.matrix.n;
    a.parts[e].first_piece = before;  // for now: where its next row goes
  }
  for (size_t id = 0; id < a.all.rows; ++id) a.ids[a.parts[expert(id)].first_piece++] = uint32_t(id);
  size_t num = 0;
  for (size_t e = 0; e < a.num_experts; ++e)
    if (a.parts[e].linear.rows) a.parts[num++] = a.parts[e];
  return num;
}

// The last of `num` parts of which `first` is at most i.
inline const ExpertsLinear::Part& part_of(const ExpertsLinear& a, size_t num, size_t ExpertsLinear::Part::* first, size_t i) {
  size_t low = 0;
  for (size_t high = num; high - low > 1;) {
    const size_t middle = (low + high) / 2;
    (a.parts[middle].*first <= i ? low : high) = middle;
  }
  return a.parts[low];
}

inline void linear_of_experts(const ExpertsLinear& a) {
  if (a.all.rows == 0 || a.all.matrix.n == 0) return;
  const size_t num = sort_by_expert(a);
  size_t tiles = 0, pieces = 0;
  for (size_t p = 0; p < num; ++p) {
    auto& [linear, first_tile, first_piece] = a.parts[p];
    first_tile = tiles, first_piece = pieces;
    linear.packed = a.all.packed + tiles * TILE_ROWS * rounded_up(linear.matrix.k, 16);
    tiles += is_few(linear) ? 0 : row_tiles(linear), pieces += num_pieces(linear);
  }
  in_parts(tiles, TILE_ROWS * a.all.matrix.k / 4, [&](size_t start, size_t stop) {
    for (size_t tile = start; tile < stop; ++tile) {
      const auto& part = part_of(a, num, &ExpertsLinear::Part::first_tile, tile);
      pack_rows(part.linear, tile - part.first_tile);
    }
  });
  with_source(a.all.matrix, [&](const auto& source) {
    each_piece(pieces, [&](size_t i) {
      const auto& part = part_of(a, num, &ExpertsLinear::Part::first_piece, i);
      compute_piece(source, part.linear, i - part.first_piece);
    });
  });
}
