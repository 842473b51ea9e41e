  // One warp per row and head of q, k or v: each lane has DIM / 32 of the head's channels.
  //
  // x [rows, CHANNELS], sequence j from starts[j] to starts[j + 1]; tail and after [sequences, WIDTH - 1, CHANNELS]; weight [WIDTH, CHANNELS];
  // q, k [rows, KEY_HEADS, DIM]; v [rows, VALUE_HEADS, DIM].
  using forerun::across;
  constexpr int HEADS = 2 * KEY_HEADS + VALUE_HEADS, CHANNELS = HEADS * DIM, PARTS = DIM / 32;
  const int lane = threadIdx.x % 32, item = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
  const int row = item / HEADS, head = item % HEADS;
  if (row >= x_shape[0]) return;
  int sequence = 0;
  while (row >= starts[sequence + 1]) ++sequence;
  const int first = starts[sequence], rows = starts[sequence + 1] - first, own_row = row - first;
  const size_t own_tail = (size_t)sequence * (WIDTH - 1);

  // Of the sequence's tail followed by its x.
  auto taken = [&](int at, int channel) {
    return at < WIDTH - 1 ? tail[(own_tail + at) * CHANNELS + channel] : x[(size_t)(first + at - WIDTH + 1) * CHANNELS + channel];
  };

  float made[PARTS], square = 0.0f;
#pragma unroll
  for (int i = 0; i < PARTS; ++i) {
    const int channel = head * DIM + 32 * i + lane;
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) sum += float(taken(own_row + j, channel)) * float(weight[j * CHANNELS + channel]);
    made[i] = sum / (1.0f + expf(-sum));
    square += made[i] * made[i];
    for (int at = own_row; at < WIDTH - 1; at += rows) after[(own_tail + at) * CHANNELS + channel] = taken(rows + at, channel);
  }
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) square += across(square, distance);

  const bool is_query = head < KEY_HEADS, is_value = head >= 2 * KEY_HEADS;
  const float length = sqrtf(square + 1.0f / ONE_OVER_EPS), scale = is_query ? 1.0f / (length * sqrtf((float)DIM)) : 1.0f / length;
  T* to = is_query ? q + ((size_t)row * KEY_HEADS + head) * DIM
      : is_value   ? v + ((size_t)row * VALUE_HEADS + head - 2 * KEY_HEADS) * DIM
                   : k + ((size_t)row * KEY_HEADS + head - KEY_HEADS) * DIM;
#pragma unroll
  for (int i = 0; i < PARTS; ++i) to[32 * i + lane] = T(is_value ? made[i] : made[i] * scale);
