// Prints a hash of the bits of each operation of the lanes, and of two kernels, for the same numbers on every machine: the lines must be equal.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "kernels.h"
#include "pool.h"

using forerun::Half;

namespace {

#if defined(__aarch64__)
#include <arm_neon.h>
#include "lanes_neon.h"
#else
#include "lanes_portable.h"
#endif
#include "functions.h"

constexpr size_t COUNT = 1 << 20;

uint64_t state = 1;

uint64_t random_bits() {
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

float of_bits(uint32_t bits) {
  float a;
  __builtin_memcpy(&a, &bits, 4);
  return a;
}

// Between 2^-24 and 2^24 in size, and now and then a zero of either sign. No NaN: its bits are the processor's choice.
float any_number() {
  const uint64_t bits = random_bits();
  const uint32_t sign = uint32_t(bits >> 63) << 31, exponent = 103 + (bits >> 32) % 48;
  return of_bits(bits % 64 ? sign | exponent << 23 | (bits & 0x7fffff) : sign);
}

std::vector<float> numbers(size_t count) {
  std::vector<float> out(count);
  for (float& each : out) each = any_number();
  return out;
}

std::vector<float> evenly(size_t count, float low, float high) {
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = low + float(i) * ((high - low) / float(count));
  return out;
}

void report(const char* name, const std::vector<float>& values) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (float value : values) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    hash = (hash ^ bits) * 0x100000001b3u;
  }
  std::printf("%-10s %016llx\n", name, static_cast<unsigned long long>(hash));
}

// f of three vectors of the same numbers, all along.
template <class Function>
void lanes(const char* name, const std::vector<float>& x, const Function& f) {
  std::vector<float> out(x.size());
  for (size_t i = 0; i < x.size(); i += 16)
    store16(&out[i], f(load16(&x[i]), load16(&x[(i + 16) % x.size()]), load16(&x[(i + 48) % x.size()])));
  report(name, out);
}

void sums() {
  const auto x = numbers(COUNT);
  std::vector<float> one, four, sixteen(COUNT / 16);
  for (size_t i = 0; i < COUNT; i += 256) {
    F16 group[16];
    for (int j = 0; j < 16; ++j) group[j] = load16(&x[i + 16 * j]), one.push_back(sum(group[j]));
    for (int j = 0; j < 16; j += 4) four.resize(four.size() + 4), sum4(group + j, &four[four.size() - 4]);
    store16(&sixteen[i / 16], sum16(group));
  }
  report("sum", one), report("sum4", four), report("sum16", sixteen);
}

void bfloat16() {
  std::vector<float> out(1 << 16);
  std::vector<uint16_t> all(1 << 16);
  for (size_t i = 0; i < all.size(); ++i) all[i] = uint16_t(i);
  for (size_t i = 0; i < all.size(); i += 16) store16(&out[i], load16(&all[i]));
  report("bfloat16", out);
}

void kernels(const forerun::Kernels& set) {
  const size_t rows = 64, width = 1024;
  const auto x = numbers(rows * width), residual = numbers(rows * width), gain = numbers(width), gates = evenly(rows * width, -100, 100);
  std::vector<float> sum(rows * width), y(rows * width), gated(rows * width / 2);
  set.rms_norm({.x = x.data(), .residual = residual.data(), .gain = gain.data(), .sum = sum.data(), .y = y.data(), .rows = rows, .width = width, .eps = 1e-6f});
  set.swiglu({.x = gates.data(), .y = gated.data(), .rows = rows, .width = width / 2});
  report("residual", sum), report("rms_norm", y), report("swiglu", gated);
}

}  // namespace

int main() {
  forerun::set_num_threads(2);
  const auto any = numbers(COUNT), dense = evenly(COUNT, -100, 100);
  lanes("fma", any, [](F16 a, F16 b, F16 c) { return fma(a, b, c); });
  lanes("add", any, [](F16 a, F16 b, F16) { return a + b; });
  lanes("subtract", any, [](F16 a, F16 b, F16) { return a - b; });
  lanes("multiply", any, [](F16 a, F16 b, F16) { return a * b; });
  lanes("divide", any, [](F16 a, F16 b, F16 c) { return a / (b * b + fma(c, c, splat(1.0f))); });
  lanes("least", any, [](F16 a, F16 b, F16) { return least(a, b); });
  lanes("most", any, [](F16 a, F16 b, F16) { return most(a, b); });
  lanes("nearest", any, [](F16 a, F16, F16) { return nearest(a); });
  lanes("exp", dense, [](F16 a, F16, F16) { return exp(a); });
  lanes("sigmoid", dense, [](F16 a, F16, F16) { return sigmoid(a); });
  lanes("silu", dense, [](F16 a, F16, F16) { return silu(a); });
  sums();
  bfloat16();
  kernels(*(forerun::NEON ? forerun::NEON : forerun::PORTABLE));
}
