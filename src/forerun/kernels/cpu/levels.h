// Values of four bits as weights, for sets without a table of 16 floats in a register.

struct Levels {
  R scale, bias;
};
inline Levels levels(float scale, float bias) { return {all(scale), all(bias)}; }

// fma(q, scale, bias) of 16 integers of which the lowest four bits count.
inline F16 look_up(const Levels& l, const I16& q) {
  F16 out;
  for (int i = 0; i < NUM; ++i) out.r[i] = fma(to_float(both(q.r[i], 15)), l.scale, l.bias);
  return out;
}
