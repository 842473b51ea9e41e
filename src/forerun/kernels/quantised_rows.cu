  // y [ROWS, out] = x [ROWS, inner] times a quantised weight [out, inner], on the tensor cores: 16 outputs of all rows per block, whose warps
  // split the inner dimension and add up in order, so that a row's bits do not depend on the others.
  //
  // packed [out, inner * BITS / 32] unsigned, the first weight in the lowest bits; scales, biases [out, inner / GROUP]; y [ROWS, out].
  // out is a multiple of 16, inner of 4 * TAKEN. A lane takes 16 bytes of weights, all of one group.
  using forerun::high_halves, forerun::load, forerun::low_halves, forerun::multiply_add;
  constexpr int WARPS = THREADS / 32, TAKEN = 128 / BITS, MAX_ROWS = 8;
  constexpr unsigned ONE = 0x3f803f80u, MINUS_128 = 0xc300c300u;  // pairs of bfloat16
  const int inner = x_shape[1], out = packed_shape[0], first = blockIdx.x * 16;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, place = lane / 4, part = lane % 4;
  __shared__ float by_warp[WARPS][16][MAX_ROWS];

  float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 2
  for (int at = (4 * warp + part) * TAKEN; at < inner; at += 4 * WARPS * TAKEN) {
    forerun::Words<4> taken[2];
    unsigned scales_of[2], biases_of[2];  // twice, as a pair
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const size_t weight = (size_t)(first + place + 8 * half) * inner + at;
      taken[half] = load<4>(packed + weight * BITS / 32);
      const float scale = float(scales[weight / GROUP]), bias = float(biases[weight / GROUP]);
      scales_of[half] = forerun::pack(scale, scale), biases_of[half] = forerun::pack(bias, bias);
    }
#pragma unroll
    for (int piece = 0; piece < TAKEN / 8; ++piece) {
      forerun::Words<4> values = {{0u, 0u, 0u, 0u}};
      if (place < ROWS) values = load<4>(x + (size_t)place * inner + at + 8 * piece);
      unsigned pairs[2][4];
      if constexpr (BITS == 4) {
        // Weight i and weight i + 4 of a word at once: after 0x4300 the bits of q are those of 128 + q. The values are paired in the same way.
        const auto [a, b, c, d] = values.word;
        values = {{low_halves(a, c), high_halves(a, c), low_halves(b, d), high_halves(b, d)}};
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const unsigned above = taken[half].word[piece] >> 4 * i & 0x000f000fu | 0x43004300u;
            const unsigned integers = multiply_add(above, ONE, MINUS_128);
            pairs[half][i] = multiply_add(integers, scales_of[half], biases_of[half]);
          }
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const unsigned both = taken[half].word[2 * piece + i / 2] >> 16 * (i % 2);
            const float scale = forerun::low_half(scales_of[half]), bias = forerun::low_half(biases_of[half]);
            pairs[half][i] = forerun::pack(scale * (both & 255) + bias, scale * (both >> 8 & 255) + bias);
          }
      }
      forerun::multiply(sums, pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1], values.word[0], values.word[1]);
      forerun::multiply(sums, pairs[0][2], pairs[1][2], pairs[0][3], pairs[1][3], values.word[2], values.word[3]);
    }
  }

#pragma unroll
  for (int i = 0; i < 4; ++i) by_warp[warp][place + 8 * (i / 2)][2 * part + i % 2] = sums[i];
  __syncthreads();
  for (int i = threadIdx.x; i < 16 * ROWS; i += THREADS) {
    const int row = i / 16, output = i % 16;
    float sum = 0.0f;
#pragma unroll
    for (int other = 0; other < WARPS; ++other) sum += by_warp[other][output][row];
    y[(size_t)row * out + first + output] = __nv_bfloat16(sum);
  }
