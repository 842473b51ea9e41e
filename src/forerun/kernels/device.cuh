// Device functions of the kernels. Tests replace this file with tests/kernels/cuda_on_cpu.h.
#include <cuda_bf16.h>

namespace forerun {

// `count` 32-bit words, of two bfloat16 each or of packed weights, read from memory at once.
template <int count>
struct alignas(4 * count) Words {
  unsigned word[count];
};

template <int count, typename T>
__device__ inline Words<count> load(const T* from) {
  return *reinterpret_cast<const Words<count>*>(from);
}

// Eight adjacent numbers, read at once; in memory the first is at a multiple of their bytes, 16 at most.
__device__ inline void load_eight(const float* from, float (&to)[8]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 four = reinterpret_cast<const float4*>(from)[i];
    to[4 * i] = four.x, to[4 * i + 1] = four.y, to[4 * i + 2] = four.z, to[4 * i + 3] = four.w;
  }
}

__device__ inline void load_eight(const __nv_bfloat16* from, float (&to)[8]) {
  const Words<4> words = load<4>(from);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = __uint_as_float(words.word[i] << 16);
    to[2 * i + 1] = __uint_as_float(words.word[i] & 0xffff0000u);
  }
}

__device__ inline void store_eight(const float (&from)[8], float* to) {
#pragma unroll
  for (int i = 0; i < 2; ++i)
    reinterpret_cast<float4*>(to)[i] = make_float4(from[4 * i], from[4 * i + 1], from[4 * i + 2], from[4 * i + 3]);
}

// sums [16, 8] += a [16, 16] b [16, 8], spread over the warp as the instruction requires: in each lane, with row = lane / 4 and
// pair = 2 (lane % 4), sums hold (row, pair) (row, pair + 1) (row + 8, pair) (row + 8, pair + 1); a the pairs (row, pair) (row + 8, pair)
// (row, pair + 8) (row + 8, pair + 8); b the pairs (pair, row) and (pair + 8, row) down its column.
__device__ inline void multiply(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ inline unsigned pack(float low, float high) {
  __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<unsigned*>(&both);
}

// a b + c of pairs, each rounded once.
__device__ inline unsigned multiply_add(unsigned a, unsigned b, unsigned c) {
  auto pair = [](unsigned& both) { return *reinterpret_cast<__nv_bfloat162*>(&both); };
  __nv_bfloat162 sum = __hfma2(pair(a), pair(b), pair(c));
  return *reinterpret_cast<unsigned*>(&sum);
}

__device__ inline float low_half(unsigned both) {
  return __uint_as_float(both << 16);
}

__device__ inline float high_half(unsigned both) {
  return __uint_as_float(both & 0xffff0000u);
}

__device__ inline unsigned low_halves(unsigned first, unsigned second) {
  return __byte_perm(first, second, 0x5410);
}

__device__ inline unsigned high_halves(unsigned first, unsigned second) {
  return __byte_perm(first, second, 0x7632);
}

__device__ inline int from_lane(int value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}

__device__ inline float across(float value, int distance) {
  return __shfl_xor_sync(0xffffffffu, value, distance);
}

}  // namespace forerun
