// GGUF's blocks of quantised weights (ggml-quants.h of llama.cpp, 2024). Every product of a scale and an integer is exact in float32, so a
// weight is rounded once at most and does not depend on how it is computed.

inline float half_at(const uint8_t* p) {
  Half a;
  __builtin_memcpy(&a, p, 2);
  return as_float(a);
}
inline uint32_t word_at(const uint8_t* p) {
  uint32_t a;
  __builtin_memcpy(&a, p, 4);
  return a;
}

// Where the blocks of a matrix lie: WEIGHTS in BYTES each.
template <size_t WEIGHTS, size_t BYTES>
struct Blocks {
  static constexpr bool IS_SLOW = true;
  const uint8_t* blocks;
  size_t k;
  const void* address(size_t n, size_t i) const { return block(n, i) + i % WEIGHTS * BYTES / WEIGHTS; }  // near enough to fetch from
  const uint8_t* block(size_t n, size_t i) const { return blocks + (n * (k / WEIGHTS) + i / WEIGHTS) * BYTES; }
};

struct Q80 : Blocks<32, 34> {
  static constexpr size_t BLOCK = 32;
  struct At {
    const uint8_t* p;
    F16 scale;
  };
  At at(size_t n, size_t i) const { return {block(n, i) + 2, splat(half_at(block(n, i)))}; }
  F16 get(const At& a, size_t j) const { return to_float(signed_bytes16(a.p + j)) * a.scale; }
};

// Low nibbles, then high ones. HAS_MIN: a scale and the least weight; else a scale, and 8 means zero.
template <bool HAS_MIN>
struct Q4 : Blocks<32, HAS_MIN ? 20 : 18> {
  static constexpr size_t BLOCK = 32;
  struct At {
    const uint8_t* p;
    Levels levels;
  };
  At at(size_t n, size_t i) const {
    const uint8_t* p = this->block(n, i);
    const float scale = half_at(p);
    return {p + (HAS_MIN ? 4 : 2), levels(scale, HAS_MIN ? half_at(p + 2) : -8 * scale)};
  }
  F16 get(const At& a, size_t j) const { return look_up(a.levels, shift_right(bytes16(a.p), j ? 4 : 0)); }
};

// As Q4, with a fifth bit of each weight in a word before the nibbles; without a minimum 16 means zero.
template <bool HAS_MIN>
struct Q5 : Blocks<32, HAS_MIN ? 24 : 22> {
  static constexpr size_t BLOCK = 32;
  struct At {
    const uint8_t* p;
    F16 scale, bias;
  };
  At at(size_t n, size_t i) const {
    const uint8_t* p = this->block(n, i);
    const float scale = half_at(p);
    return {p + (HAS_MIN ? 4 : 2), splat(scale), splat(HAS_MIN ? half_at(p + 2) : -16 * scale)};
  }
  F16 get(const At& a, size_t j) const {
    const I16 low = both(shift_right(bytes16(a.p + 4), j ? 4 : 0), 15), high = both(spread16(word_at(a.p) >> j), 1);
    return fma(to_float(either(low, shift_left(high, 4))), a.scale, a.bias);
  }
};

// Scale and minimum `i` of the eight of Q4_K and Q5_K: six bits each.
struct ScaleAndMin {
  float scale, min;
};
inline ScaleAndMin scale_and_min(const uint8_t* p, size_t i) {
  const uint8_t* q = p + 4;
  const int scale = i < 4 ? q[i] & 63 : (q[i + 4] & 15) | q[i - 4] >> 6 << 4, min = i < 4 ? q[i + 4] & 63 : q[i + 4] >> 4 | q[i] >> 6 << 4;
  return {half_at(p) * float(scale), half_at(p + 2) * float(min)};
}

struct Q4K : Blocks<256, 144> {
  static constexpr size_t BLOCK = 64;
  struct At {
    const uint8_t* p;
    Levels low, high;
  };
  At at(size_t n, size_t i) const {
    const uint8_t* p = block(n, i);
    const size_t pair = i % 256 / 64;
    const ScaleAndMin low = scale_and_min(p, 2 * pair), high = scale_and_min(p, 2 * pair + 1);
    return {p + 16 + pair * 32, levels(low.scale, -low.min), levels(high.scale, -high.min)};
  }
  F16 get(const At& a, size_t j) const {
    const I16 pairs = bytes16(a.p + j % 32);
    return j < 32 ? look_up(a.low, pairs) : look_up(a.high, shift_right(pairs, 4));
  }
};

struct Q5K : Blocks<256, 176> {
  static constexpr size_t BLOCK = 64;
  struct At {
    const uint8_t *low, *high;  // high: one byte for each of 32 weights, whose bit 2 * pair is theirs, the next that of the 32 after them
    size_t pair;
    ScaleAndMin of[2];
  };
  At at(size_t n, size_t i) const {
    const uint8_t* p = block(n, i);
    const size_t pair = i % 256 / 64;
    return {p + 48 + pair * 32, p + 16, pair, {scale_and_min(p, 2 * pair), scale_and_min(p, 2 * pair + 1)}};
  }
  F16 get(const At& a, size_t j) const {
    const I16 low = both(shift_right(bytes16(a.low + j % 32), j < 32 ? 0 : 4), 15);
    const I16 high = both(shift_right(bytes16(a.high + j % 32), int(2 * a.pair + j / 32)), 1);
    return fma(to_float(either(low, shift_left(high, 4))), splat(a.of[j / 32].scale), splat(-a.of[j / 32].min));
  }
};

struct Q6K : Blocks<256, 210> {
  static constexpr size_t BLOCK = 128;
  struct At {
    const uint8_t *low, *high, *scales;
    float scale;
  };
  At at(size_t n, size_t i) const {
    const uint8_t* p = block(n, i);
    const size_t half = i % 256 / 128;
    return {p + half * 64, p + 128 + half * 32, p + 192 + half * 8, half_at(p + 208)};
  }
  F16 get(const At& a, size_t j) const {
    const size_t quarter = j / 32;
    const I16 low = both(shift_right(bytes16(a.low + j % 64), quarter < 2 ? 0 : 4), 15);
    const I16 high = both(shift_right(bytes16(a.high + j % 32), int(2 * quarter)), 3);
    const float scale = a.scale * float(int8_t(a.scales[j / 16]));
    return fma(to_float(either(low, shift_left(high, 4))), splat(scale), splat(-32 * scale));
  }
};

struct Q2K : Blocks<256, 84> {
  static constexpr size_t BLOCK = 128;
  struct At {
    const uint8_t *scales, *p;
    float scale, min;
  };
  At at(size_t n, size_t i) const {
    const uint8_t* p = block(n, i);
    const size_t half = i % 256 / 128;
    return {p + half * 8, p + 16 + half * 32, half_at(p + 80), half_at(p + 82)};
  }
  F16 get(const At& a, size_t j) const {
    const I16 q = both(shift_right(bytes16(a.p + j % 32), int(j / 32 * 2)), 3);
    const uint8_t both_scales = a.scales[j / 16];
    return fma(to_float(q), splat(a.scale * float(both_scales & 15)), splat(-a.min * float(both_scales >> 4)));
  }
};

struct Q3K : Blocks<256, 110> {
  static constexpr size_t BLOCK = 128;
  struct At {
    const uint8_t *high, *low, *scales;
    size_t half;
    float scale;
  };
  At at(size_t n, size_t i) const {
    const uint8_t* p = block(n, i);
    const size_t half = i % 256 / 128;
    return {p, p + 32 + half * 32, p + 96, half, half_at(p + 108)};
  }
  F16 get(const At& a, size_t j) const {
    const I16 low = both(shift_right(bytes16(a.low + j % 32), int(j / 32 * 2)), 3);
    const I16 high = both(shift_right(bytes16(a.high + j % 32), int(4 * a.half + j / 32)), 1);
    const size_t i = 8 * a.half + j / 16;  // of 16 scales, six bits each: four of byte i % 8, two of byte 8 + i % 4
    const int six = (a.scales[i % 8] >> (i < 8 ? 0 : 4) & 15) | (a.scales[8 + i % 4] >> (2 * (i / 4)) & 3) << 4;
    const float scale = a.scale * float(six - 32);
    return fma(to_float(either(low, shift_left(high, 2))), splat(scale), splat(-4 * scale));
  }
};

template <class F>
inline void with_blocks(const Matrix& m, const F& f) {
  const auto blocks = static_cast<const uint8_t*>(m.weights);
  switch (m.format) {
    case Format::Q8_0: return f(Q80{{blocks, m.k}});
    case Format::Q4_0: return f(Q4<false>{{blocks, m.k}});
    case Format::Q4_1: return f(Q4<true>{{blocks, m.k}});
    case Format::Q5_0: return f(Q5<false>{{blocks, m.k}});
    case Format::Q5_1: return f(Q5<true>{{blocks, m.k}});
    case Format::Q2_K: return f(Q2K{{blocks, m.k}});
    case Format::Q3_K: return f(Q3K{{blocks, m.k}});
    case Format::Q4_K: return f(Q4K{{blocks, m.k}});
    case Format::Q5_K: return f(Q5K{{blocks, m.k}});
    default: return f(Q6K{{blocks, m.k}});
  }
}
