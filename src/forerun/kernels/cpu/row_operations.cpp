#include "operations.h"

namespace forerun {
namespace {

struct RmsNormOp : CpuPrimitive<RmsNormOp> {
  static constexpr const char* NAME = "forerun::RmsNorm";
  float eps;
  explicit RmsNormOp(float eps) : eps(eps) {}
  auto parameters() const { return std::tuple(eps); }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override { return std::vector<mx::Shape>(in.size() - 1, in[0].shape()); }

  // in: x, gain, and residual if there is one; out: the sum if there is one, the norm.
  void eval_cpu(const Arrays& in, Arrays& out) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    const size_t width = in[0].shape(-1);
    RmsNorm job{.x = row_major<float>(in[0], encoder),
                .residual = in.size() > 2 ? row_major<float>(in[2], encoder) : nullptr,
                .gain = row_major<float>(in[1], encoder),
                .sum = in.size() > 2 ? allocated<float>(out[0], encoder) : nullptr,
                .y = allocated<float>(out.back(), encoder),
                .rows = in[0].size() / width,
                .width = width,
                .eps = eps};
    encoder.dispatch([job] { kernels().rms_norm(job); });
  }
};

mx::Shape halved(mx::Shape shape) {
  shape.back() /= 2;
  return shape;
}

struct SwiGluOp : CpuPrimitive<SwiGluOp> {
  static constexpr const char* NAME = "forerun::SwiGlu";
  auto parameters() const { return std::tuple(); }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override { return {halved(in[0].shape())}; }

  void eval_cpu(const Arrays& in, Arrays& out) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    const size_t width = out[0].shape(-1);
    SwiGlu job{row_major<float>(in[0], encoder), allocated<float>(out[0], encoder), out[0].size() / width, width};
    encoder.dispatch([job] { kernels().swiglu(job); });
  }
};

void check_norm(const mx::array& x, const mx::array& gain) {
  require(x.dtype() == mx::float32 && gain.dtype() == mx::float32, "rms_norm: x and gain are float32");
  require(x.ndim() > 0 && gain.ndim() == 1 && x.shape(-1) == gain.shape(0), "rms_norm: x [..., width], gain [width]");
  require(gain.shape(0) % 16 == 0, "rms_norm: the width is a multiple of 16");
}

}  // namespace

mx::array rms_norm(const mx::array& x, const mx::array& gain, float eps) {
  check_norm(x, gain);
  return mx::array(x.shape(), mx::float32, std::make_shared<RmsNormOp>(eps), {x, gain});
}

std::pair<mx::array, mx::array> add_rms_norm(const mx::array& x, const mx::array& residual, const mx::array& gain, float eps) {
  check_norm(x, gain);
  require(x.shape() == residual.shape() && residual.dtype() == mx::float32, "add_rms_norm: residual is like x");
  const auto out = mx::array::make_arrays({x.shape(), x.shape()}, {mx::float32, mx::float32}, std::make_shared<RmsNormOp>(eps), {x, gain, residual});
  return {out[0], out[1]};
}

mx::array swiglu(const mx::array& x) {
  require(x.ndim() > 0 && x.dtype() == mx::float32 && x.shape(-1) > 0 && x.shape(-1) % 32 == 0, "swiglu: x [..., 2 width] float32, width a multiple of 16");
  return mx::array(halved(x.shape()), mx::float32, std::make_shared<SwiGluOp>(), {x});
}

}  // namespace forerun
