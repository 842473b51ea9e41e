// Elementary functions of lanes: the same bits on every machine, since no library computes them.

// e^x within 1.5 ulp: x = n ln 2 + r, a polynomial of degree 6 in r, n added to the exponent. Below -87.3 it is e^-87.3, above 88.3 e^88.3.
// NaN stays NaN: `most` and `least` return their second argument then.
inline F16 exp(F16 x) {
  x = least(splat(88.3f), most(splat(-87.3f), x));
  const F16 n = nearest(x * splat(1.44269504088896341f));
  F16 r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  F16 p = splat(1.9875691500e-4f);
  constexpr float COEFFICIENTS[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  for (float c : COEFFICIENTS) p = fma(p, r, splat(c));
  return shifted(fma(p, r * r, r + splat(1.0f)), n);
}

// log(1 + e^x) to a few ulp for every x: max(x, 0) + log1p(u) with u = e^-|x| in (0, 1], log1p(u) = 2 atanh(s) = 2 (s + s^3 / 3 + ...) with
// s = u / (2 + u) <= 1/3.
inline F16 softplus(const F16& x) {
  const F16 u = exp(least(x, zeros() - x)), s = u / (u + splat(2.0f)), square = s * s;
  F16 p = splat(1.0f / 17);
  for (int odd = 15; odd > 0; odd -= 2) p = fma(p, square, splat(1.0f / float(odd)));
  return most(x, zeros()) + splat(2.0f) * s * p;
}

inline F16 sigmoid(const F16& x) { return splat(1.0f) / (splat(1.0f) + exp(zeros() - x)); }
inline F16 silu(const F16& x) { return x / (splat(1.0f) + exp(zeros() - x)); }
