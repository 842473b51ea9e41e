  // One thread block: all query rows of a sequence and key head against one partition of its keys, TILE_KEYS at a time, with running maxima.
  // Each warp computes the scores of 8 keys of a tile, and a quarter of the dims of the weighted sum of values.
  // Dims, keys and columns may be permuted if both factors are permuted alike, so that every load is of whole words.
  //
  // q [rows, HEADS, DIM], at most ROWS of each sequence, from starts[j] to starts[j + 1]; keys, values [KV_HEADS, pool rows, DIM]; blocks
  // [sequences, pages]; partial [PARTS, rows, HEADS, DIM] and scale [PARTS, rows, HEADS, 2]: sums of exp2(score - scale[0]) * value, and
  // scale[1], the sum of the weights alone. A partition without keys writes scale only.
  using forerun::across, forerun::from_lane, forerun::high_half, forerun::high_halves, forerun::load, forerun::low_half;
  using forerun::low_halves, forerun::multiply, forerun::pack, forerun::Words;
  constexpr int TILE_KEYS = 32, WARPS = 4, GROUP = HEADS / KV_HEADS, MMA_ROWS = 16 * TILES;
  constexpr int CHUNKS = DIM / 32;           // of a key's dims; of each a lane holds 8
  constexpr int WARP_DIMS = DIM / WARPS;
  constexpr int LANE_DIMS = WARP_DIMS / 8;   // adjacent dims of a value per lane
  constexpr float LOWEST = -1e30f, MASKED = -3e38f;  // exp2 of their difference is 0; infinities would give NaN
  const int part = blockIdx.x, kv_head = blockIdx.y, first_row = starts[blockIdx.z], rows = starts[blockIdx.z + 1] - first_row;
  const size_t all_rows = q_shape[0];
  const int* pages = blocks + blockIdx.z * blocks_shape[1];
  if (rows == 0) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, lane_row = lane / 4, lane_pair = lane % 4;

  const size_t head_places = keys_shape[1];
  const __nv_bfloat16* head_keys = keys + kv_head * head_places * DIM;
  const __nv_bfloat16* head_values = values + kv_head * head_places * DIM + warp * WARP_DIMS + lane_row * LANE_DIMS;
  const int stop = positions[first_row + rows - 1] + 1;
  const int tiles = (stop + TILE_KEYS - 1) / TILE_KEYS, part_tiles = (tiles + PARTS - 1) / PARTS;
  const int first_tile = part * part_tiles, last_tile = min(first_tile + part_tiles, tiles);

  // Index of query row `row` of this sequence and key head in [rows, HEADS].
  auto place_of_row = [&](int row) { return (first_row + row / GROUP) * HEADS + kv_head * GROUP + row % GROUP; };
  // Pool row of the key that this lane looks up for its warp.
  auto place_in_tile = [&](int tile) {
    const int key = min(tile * TILE_KEYS + lane, stop - 1);
    return pages[key / BLOCK_TOKENS] * BLOCK_TOKENS + key % BLOCK_TOKENS;
  };

  if (first_tile >= last_tile) {
    for (int row = threadIdx.x; row < rows * GROUP; row += 32 * WARPS) {
      float* to = scale + 2 * ((size_t)part * all_rows * HEADS + place_of_row(row));
      to[0] = LOWEST;
      to[1] = 0.0f;
    }
    return;
  }

  __shared__ __align__(16) __nv_bfloat16 queries[MMA_ROWS][DIM + 32];  // rows 64 bytes apart modulo 128: no bank conflicts
  __shared__ __align__(16) __nv_bfloat16 weights[MMA_ROWS][TILE_KEYS + 8];
  __shared__ float by_warp[WARPS][MMA_ROWS];
  for (int i = threadIdx.x; i < MMA_ROWS * DIM / 8; i += 32 * WARPS) {
    const int row = i / (DIM / 8), dim = i % (DIM / 8) * 8;
    Words<4> eight = {};
    if (row < rows * GROUP) eight = load<4>(q + (size_t)place_of_row(row) * DIM + dim);
    *reinterpret_cast<Words<4>*>(&queries[row][dim]) = eight;
  }

  int row_position[TILES][2];
  float highest[TILES][2], total[TILES][2], sums[TILES][LANE_DIMS][4];
#pragma unroll
  for (int m = 0; m < TILES; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 16 * m + 8 * half + lane_row;
      row_position[m][half] = row < rows * GROUP ? positions[first_row + row / GROUP] : -1;
      highest[m][half] = LOWEST;
      total[m][half] = 0.0f;
    }
#pragma unroll
    for (int j = 0; j < LANE_DIMS; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[m][j][i] = 0.0f;
  }

  Words<4> key_words[CHUNKS];
  auto load_keys = [&](int place) {
    const __nv_bfloat16* from = head_keys + (size_t)from_lane(place, 8 * warp + lane_row) * DIM + 8 * lane_pair;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) key_words[c] = load<4>(from + 32 * c);
  };
  int place = place_in_tile(first_tile);
  load_keys(place);
  __syncthreads();

  for (int tile = first_tile; tile < last_tile; ++tile) {
    const int next_place = place_in_tile(min(tile + 1, last_tile - 1));
    Words<LANE_DIMS / 2> value_words[2][4];
#pragma unroll
    for (int step = 0; step < 2; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = 16 * step + 2 * lane_pair + i % 2 + 8 * (i / 2);
        value_words[step][i] = load<LANE_DIMS / 2>(head_values + (size_t)from_lane(place, key) * DIM);
      }

    float scores[TILES][4] = {};
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
      const unsigned* key = key_words[c].word;
#pragma unroll
      for (int m = 0; m < TILES; ++m) {
        const Words<4> upper = load<4>(&queries[16 * m + lane_row][32 * c + 8 * lane_pair]);
        const Words<4> lower = load<4>(&queries[16 * m + 8 + lane_row][32 * c + 8 * lane_pair]);
        multiply(scores[m], upper.word[0], lower.word[0], upper.word[1], lower.word[1], key[0], key[1]);
        multiply(scores[m], upper.word[2], lower.word[2], upper.word[3], lower.word[3], key[2], key[3]);
      }
    }
    load_keys(next_place);  // loaded while this tile is finished
    place = next_place;

    const int lane_key = tile * TILE_KEYS + 8 * warp + 2 * lane_pair;
    const float to_log2 = 1.44269504f / sqrtf((float)DIM);
#pragma unroll
    for (int m = 0; m < TILES; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int position = row_position[m][half];
        float most = MASKED;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& score = scores[m][2 * half + i];
          const bool is_visible = lane_key + i <= position && lane_key + i >= min(FIRST, position);
          score = is_visible ? score * to_log2 : MASKED;
          most = fmaxf(most, score);
        }
        most = fmaxf(most, across(most, 1));
        most = fmaxf(most, across(most, 2));
        if (lane_pair == 0) by_warp[warp][16 * m + 8 * half + lane_row] = most;
      }
    __syncthreads();

#pragma unroll
    for (int m = 0; m < TILES; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * m + 8 * half + lane_row;
        float most = highest[m][half];
#pragma unroll
        for (int w = 0; w < WARPS; ++w) most = fmaxf(most, by_warp[w][row]);
        const float fade = exp2f(highest[m][half] - most);
        highest[m][half] = most;
        const unsigned pair = pack(exp2f(scores[m][2 * half] - most), exp2f(scores[m][2 * half + 1] - most));
        *reinterpret_cast<unsigned*>(&weights[row][8 * warp + 2 * lane_pair]) = pair;
        total[m][half] = total[m][half] * fade + low_half(pair) + high_half(pair);
#pragma unroll
        for (int j = 0; j < LANE_DIMS; ++j) {
          sums[m][j][2 * half] *= fade;
          sums[m][j][2 * half + 1] *= fade;
        }
      }
    __syncthreads();

#pragma unroll
    for (int step = 0; step < 2; ++step)
#pragma unroll
      for (int w = 0; w < LANE_DIMS / 2; ++w) {
        const unsigned v0 = value_words[step][0].word[w], v1 = value_words[step][1].word[w];
        const unsigned v2 = value_words[step][2].word[w], v3 = value_words[step][3].word[w];
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
          unsigned a[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const __nv_bfloat16* from = &weights[16 * m + 8 * (i % 2) + lane_row][16 * step + 8 * (i / 2) + 2 * lane_pair];
            a[i] = *reinterpret_cast<const unsigned*>(from);
          }
          multiply(sums[m][2 * w], a[0], a[1], a[2], a[3], low_halves(v0, v1), low_halves(v2, v3));
          multiply(sums[m][2 * w + 1], a[0], a[1], a[2], a[3], high_halves(v0, v1), high_halves(v2, v3));
        }
      }
  }

#pragma unroll
  for (int m = 0; m < TILES; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 16 * m + 8 * half + lane_row;
      float sum = total[m][half];
      sum += across(sum, 1);
      sum += across(sum, 2);
      if (lane_pair == 0) by_warp[warp][row] = sum;
      if (row >= rows * GROUP) continue;
      const size_t at = (size_t)part * all_rows * HEADS + place_of_row(row);
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < LANE_DIMS; ++j)
          partial[at * DIM + warp * WARP_DIMS + (2 * lane_pair + i) * LANE_DIMS + j] = sums[m][j][2 * half + i];
      if (warp == 0 && lane_pair == 0) scale[2 * at] = highest[m][half];
    }
  __syncthreads();
  for (int row = threadIdx.x; row < rows * GROUP; row += 32 * WARPS) {
    float sum = 0.0f;
    for (int w = 0; w < WARPS; ++w) sum += by_warp[w][row];
    scale[2 * ((size_t)part * all_rows * HEADS + place_of_row(row)) + 1] = sum;
  }
