  // The gated delta rule, row after row. LANES threads share a value row of the state, S[value] of S [VALUE_DIM, KEY_DIM], and hold it in
  // registers; a thread block has THREADS / LANES value rows of a head. Each lane has groups of eight keys of a value row, LANES groups apart.
  // The next row's inputs are loaded while a row is computed.
  //
  // q, k [rows, KEY_HEADS, KEY_DIM]; v, y [rows, VALUE_HEADS, VALUE_DIM]; g, beta [rows, VALUE_HEADS]; state, after [sequences, VALUE_HEADS,
  // VALUE_DIM, KEY_DIM]. Sequence j has the rows from starts[j] to starts[j + 1].
  using forerun::across, forerun::load_eight, forerun::store_eight;
  constexpr int LANES = 8, EIGHTS = KEY_DIM / (8 * LANES);
  const int head = blockIdx.y, key_head = head / (VALUE_HEADS / KEY_HEADS);
  const int lane = threadIdx.x % LANES, value = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
  const int first = starts[blockIdx.z], stop = starts[blockIdx.z + 1];

  struct Row {
    float q[EIGHTS][8], k[EIGHTS][8], v, g, beta;
  };
  auto load_row = [&](int row) {
    Row read;
    const size_t keys = ((size_t)row * KEY_HEADS + key_head) * KEY_DIM + 8 * lane, at = (size_t)row * VALUE_HEADS + head;
#pragma unroll
    for (int e = 0; e < EIGHTS; ++e) {
      load_eight(q + keys + 8 * LANES * e, read.q[e]);
      load_eight(k + keys + 8 * LANES * e, read.k[e]);
    }
    read.v = float(v[at * VALUE_DIM + value]);
    read.g = float(g[at]);
    read.beta = float(beta[at]);
    return read;
  };
  auto sum_of_lanes = [](float part) {
    part += across(part, 1);
    part += across(part, 2);
    return part + across(part, 4);
  };

  const size_t own = (((size_t)blockIdx.z * VALUE_HEADS + head) * VALUE_DIM + value) * KEY_DIM + 8 * lane;
  float s[EIGHTS][8];
#pragma unroll
  for (int e = 0; e < EIGHTS; ++e) load_eight(state + own + 8 * LANES * e, s[e]);

  Row now = load_row(first);
  for (int row = first; row < stop; ++row) {
    const Row next = load_row(min(row + 1, stop - 1));
    float known = 0.0f, read = 0.0f;
#pragma unroll
    for (int e = 0; e < EIGHTS; ++e)
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        s[e][i] *= now.g;
        known += s[e][i] * now.k[e][i];
      }
    const float change = now.beta * (now.v - sum_of_lanes(known));
#pragma unroll
    for (int e = 0; e < EIGHTS; ++e)
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        s[e][i] += change * now.k[e][i];
        read += s[e][i] * now.q[e][i];
      }
    read = sum_of_lanes(read);
    if (lane == 0) y[((size_t)row * VALUE_HEADS + head) * VALUE_DIM + value] = T(read);
    now = next;
  }

#pragma unroll
  for (int e = 0; e < EIGHTS; ++e) store_eight(s[e], after + own + 8 * LANES * e);
