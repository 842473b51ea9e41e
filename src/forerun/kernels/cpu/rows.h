// Functions of each row alone: norms and activations.

// f(begin, end) over parts of 0 .. n of which each is worth about `cost` operations an element: small jobs stay on the calling thread.
template <class F>
inline void in_parts(size_t n, size_t cost, const F& f) {
  const size_t limit = n * cost / 16384 + 1, pieces = n < limit ? n : limit < 64 ? limit : 64;
  struct Job {
    const F& f;
    size_t n, pieces;
  } job{f, n, pieces};
  run_pieces(
      pieces,
      [](const void* at, size_t i) {
        const Job& job = *static_cast<const Job*>(at);
        job.f(i * job.n / job.pieces, (i + 1) * job.n / job.pieces);
      },
      &job);
}

// f(i) for i < pieces, shared between threads.
template <class F>
inline void each_piece(size_t pieces, const F& f) {
  run_pieces(pieces, [](const void* f, size_t i) { (*static_cast<const F*>(f))(i); }, &f);
}

inline void rms_norm_row(const float* x, const float* gain, size_t width, float eps, float* y) {
  F16 squares = zeros();
  for (size_t i = 0; i < width; i += 16) squares = fma(load16(x + i), load16(x + i), squares);
  const F16 scale = splat(1.0f / __builtin_sqrtf(sum(squares) / float(width) + eps));
  for (size_t i = 0; i < width; i += 16) store16(y + i, load16(x + i) * scale * load16(gain + i));
}

inline void rms_norm(const RmsNorm& a) {
  in_parts(a.rows, a.width, [&](size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) {
      const float* x = a.x + r * a.width;
      if (a.residual) {
        for (size_t i = 0; i < a.width; i += 16) store16(a.sum + r * a.width + i, load16(x + i) + load16(a.residual + r * a.width + i));
        x = a.sum + r * a.width;
      }
      rms_norm_row(x, a.gain, a.width, a.eps, a.y + r * a.width);
    }
  });
}

inline void swiglu(const SwiGlu& a) {
  in_parts(a.rows, a.width * 8, [&](size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) {
      const float *gate = a.x + r * 2 * a.width, *up = gate + a.width;
      for (size_t i = 0; i < a.width; i += 16) store16(a.y + r * a.width + i, silu(load16(gate + i)) * load16(up + i));
    }
  });
}
