  // One thread block per query row and head, one thread per dim: the partitions' sums on a common scale, in order.
  // partial [PARTS, rows * heads, DIM]; scale [PARTS, rows * heads, 2]; out [rows * heads, DIM].
  float highest = -1e30f, sum = 0.0f, total = 0.0f;
  for (int part = 0; part < PARTS; ++part) highest = fmaxf(highest, scale[2 * ((size_t)part * gridDim.x + blockIdx.x)]);
#pragma unroll 4
  for (int part = 0; part < PARTS; ++part) {
    const size_t at = (size_t)part * gridDim.x + blockIdx.x;
    const float weight = exp2f(scale[2 * at] - highest);
    if (scale[2 * at + 1] == 0.0f) continue;  // nothing was written
    sum += weight * partial[at * DIM + threadIdx.x];
    total += weight * scale[2 * at + 1];
  }
  out[(size_t)blockIdx.x * DIM + threadIdx.x] = __float2bfloat16(sum / total);
