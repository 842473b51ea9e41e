  // One warp per row and head of q, k or v: each lane has DIM / 32 of the head's channels.
  //
  // x [rows, CHANNELS], tail and after [WIDTH - 1, CHANNELS]; weight [WIDTH, CHANNELS]; q, k [rows, KEY_HEADS, DIM]; v [rows, VALUE_HEADS, DIM].
  using forerun::across;
  constexpr int HEADS = 2 * KEY_HEADS + VALUE_HEADS, CHANNELS = HEADS * DIM, PARTS = DIM / 32;
  const int lane = threadIdx.x % 32, item = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
  const int rows = x_shape[0], row = item / HEADS, head = item % HEADS;
  if (row >= rows) return;

  // Of the tail followed by x.
  auto taken = [&](int at, int channel) {
    return at < WIDTH - 1 ? tail[(size_t)at * CHANNELS + channel] : x[(size_t)(at - WIDTH + 1) * CHANNELS + channel];
  };

  float made[PARTS], square = 0.0f;
#pragma unroll
  for (int i = 0; i < PARTS; ++i) {
    const int channel = head * DIM + 32 * i + lane;
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) sum += float(taken(row + j, channel)) * float(weight[j * CHANNELS + channel]);
    made[i] = sum / (1.0f + expf(-sum));
    square += made[i] * made[i];
    for (int at = row; at < WIDTH - 1; at += rows) after[(size_t)at * CHANNELS + channel] = taken(rows + at, channel);
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
