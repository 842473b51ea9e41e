// Runs the body of a CUDA kernel on the CPU, so that a test can check its arithmetic without a device: every thread of a block is a fibre,
// a barrier yields until all have come, and what lanes exchange goes through a board of the warp. One block after another.
// Stands in for device.cuh; the matrix product follows the PTX manual's layout of mma.m16n8k16.
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))

struct Index { int x, y, z; };
static Index threadIdx, blockIdx, gridDim;

inline uint32_t bits_of(float value) { uint32_t bits; std::memcpy(&bits, &value, 4); return bits; }
inline float float_of(uint32_t bits) { float value; std::memcpy(&value, &bits, 4); return value; }
struct __nv_bfloat16 {
  uint16_t bits;
  __nv_bfloat16() = default;
  explicit __nv_bfloat16(float value) : bits((bits_of(value) + 0x7fff + ((bits_of(value) >> 16) & 1)) >> 16) {}
  explicit operator float() const { return float_of(uint32_t(bits) << 16); }
};
inline __nv_bfloat16 __float2bfloat16(float value) { return __nv_bfloat16(value); }
inline int min(int a, int b) { return a < b ? a : b; }

class Fibres {
 public:
  template <typename Body>
  void run(int threads, Body body) {
    fibres_.clear();
    for (int i = 0; i < threads; ++i) fibres_.push_back(std::make_unique<Fibre>());
    body_ = body;
    for (int i = 0; i < threads; ++i) {
      getcontext(&fibres_[i]->context);
      fibres_[i]->context.uc_stack = {fibres_[i]->stack, 0, sizeof fibres_[i]->stack};
      fibres_[i]->context.uc_link = &home_;
      makecontext(&fibres_[i]->context, reinterpret_cast<void (*)()>(&Fibres::start), 0);
    }
    for (int left = threads; left;) {
      left = 0;
      for (now_ = 0; now_ < threads; ++now_) {
        if (fibres_[now_]->is_done) continue;
        threadIdx = {now_, 0};
        swapcontext(&home_, &fibres_[now_]->context);
        left += !fibres_[now_]->is_done;
      }
    }
  }
  // Waits until all of the `size` threads of this thread's group have come here as often.
  void meet(int size) {
    Fibre& self = *fibres_[now_];
    int& mine = size == 32 ? self.warp_meetings : self.block_meetings;
    ++mine;
    const int first = threadIdx.x / size * size;
    for (bool waits = true; waits;) {
      waits = false;
      for (int i = first; i < first + size; ++i) {
        Fibre& other = *fibres_[i];
        waits |= !other.is_done && (size == 32 ? other.warp_meetings : other.block_meetings) < mine;
      }
      if (waits) swapcontext(&self.context, &home_);
    }
  }
  // All lanes' words, until the next exchange but one.
  const uint32_t (*exchange(std::initializer_list<uint32_t> words))[6] {
    Fibre& self = *fibres_[now_];
    Board& board = boards_[threadIdx.x / 32][self.warp_meetings % 2];
    std::copy(words.begin(), words.end(), board.words[threadIdx.x % 32]);
    meet(32);
    return board.words;
  }

 private:
  struct Fibre {
    ucontext_t context;
    int warp_meetings = 0, block_meetings = 0;
    bool is_done = false;
    alignas(64) char stack[1 << 17];
  };
  struct Board { uint32_t words[32][6]; };
  static void start();
  std::vector<std::unique_ptr<Fibre>> fibres_;
  Board boards_[32][2];
  ucontext_t home_;
  int now_ = 0;
  void (*body_)() = nullptr;
};
static Fibres fibres;
void Fibres::start() {
  fibres.body_();
  fibres.fibres_[fibres.now_]->is_done = true;
}
inline void __syncthreads() { fibres.meet(128); }

namespace forerun {
template <int count>
struct alignas(4 * count) Words { unsigned word[count]; };
template <int count, typename T>
Words<count> load(const T* from) {
  if (reinterpret_cast<uintptr_t>(from) % (4 * count)) throw "a load that is not aligned";
  Words<count> words;
  std::memcpy(&words, from, sizeof words);
  return words;
}
template <typename T>
void load_eight(const T* from, float (&to)[8]) {
  if (reinterpret_cast<uintptr_t>(from) % 16) throw "a load that is not aligned";
  for (int i = 0; i < 8; ++i) to[i] = float(from[i]);
}
inline void store_eight(const float (&from)[8], float* to) {
  if (reinterpret_cast<uintptr_t>(to) % 16) throw "a store that is not aligned";
  std::memcpy(to, from, sizeof from);
}
inline float low_half(unsigned both) { return float_of(both << 16); }
inline float high_half(unsigned both) { return float_of(both & 0xffff0000u); }
inline unsigned low_halves(unsigned a, unsigned b) { return (a & 0xffff) | b << 16; }
inline unsigned high_halves(unsigned a, unsigned b) { return a >> 16 | (b & 0xffff0000u); }
inline unsigned pack(float low, float high) { return __float2bfloat16(low).bits | unsigned(__float2bfloat16(high).bits) << 16; }
inline unsigned multiply_add(unsigned a, unsigned b, unsigned c) {
  return pack(low_half(a) * low_half(b) + low_half(c), high_half(a) * high_half(b) + high_half(c));
}
inline int from_lane(int value, int lane) { return int(fibres.exchange({uint32_t(value)})[lane][0]); }
inline float across(float value, int distance) {
  return float_of(fibres.exchange({bits_of(value)})[(threadIdx.x % 32) ^ distance][0]);
}
inline void multiply(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  const auto* words = fibres.exchange({a0, a1, a2, a3, b0, b1});
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
    for (int k = 0; k < 16; ++k) {
      const uint32_t a = words[4 * (row % 8) + k % 8 / 2][row / 8 + 2 * (k / 8)], b = words[4 * column + k % 8 / 2][4 + k / 8];
      sums[i] += k % 2 ? high_half(a) * high_half(b) : low_half(a) * low_half(b);
    }
  }
}
}  // namespace forerun
