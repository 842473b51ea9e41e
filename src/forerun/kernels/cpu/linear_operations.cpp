#include "operations.h"

namespace forerun {
namespace {

Format format_of(mx::Dtype dtype) {
  if (dtype == mx::float32) return Format::F32;
  if (dtype == mx::bfloat16) return Format::BF16;
  if (dtype == mx::float16) return Format::F16;
  throw std::invalid_argument("linear: weights, scales and biases are float32, bfloat16 or float16");
}

// in: x, the weights, and scales and biases if the format has them.
struct LinearOp : CpuPrimitive<LinearOp> {
  static constexpr const char* NAME = "forerun::Linear";
  Format format;
  int group;
  LinearOp(Format format, int group) : format(format), group(group) {}
  auto parameters() const { return std::tuple(format, group); }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override { return {{in[0].shape(0), in[1].shape(0)}}; }

  Matrix matrix(const Arrays& in, mx::cpu::CommandEncoder& encoder) const {
    Matrix m{.format = format, .weights = row_major(in[1], encoder), .n = size_t(in[1].shape(0)), .k = size_t(in[0].shape(-1))};
    if (in.size() == 2) return m;
    m.scales = row_major(in[2], encoder), m.biases = row_major(in[3], encoder);
    m.scale_format = format_of(in[2].dtype()), m.group = size_t(group);
    return m;
  }

  void eval_cpu(const Arrays& in, Arrays& out) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    const size_t rows = in[0].shape(0), k = in[0].shape(1);
    Linear job{matrix(in, encoder), row_major<float>(in[0], encoder), allocated<float>(out[0], encoder), nullptr, rows};
    if (rows > MOST_FEW_ROWS) job.packed = temporary<float>(packed_floats(rows, k), encoder);
    encoder.dispatch([job] { kernels().linear(job); });
  }
};

}  // namespace

mx::array linear(const mx::array& x, const mx::array& w) {
  require(x.ndim() == 2 && w.ndim() == 2 && x.shape(1) == w.shape(1), "linear: x [rows, k], w [n, k]");
  require(x.dtype() == mx::float32, "linear: x is float32");
  return mx::array({x.shape(0), w.shape(0)}, mx::float32, std::make_shared<LinearOp>(format_of(w.dtype()), 0), {x, w});
}

mx::array quantised_linear(const mx::array& x, const mx::array& packed, const mx::array& scales, const mx::array& biases, int bits, int group) {
  require(bits == 4 || bits == 8, "quantised_linear: 4 or 8 bits");
  require(group == 32 || group == 64 || group == 128, "quantised_linear: groups of 32, 64 or 128");
  require(x.ndim() == 2 && packed.ndim() == 2 && x.shape(1) == packed.shape(1) * 32 / bits && x.shape(1) % group == 0,
          "quantised_linear: x [rows, k], packed [n, k * bits / 32], k a multiple of the group");
  require(scales.shape() == mx::Shape{packed.shape(0), x.shape(1) / group} && biases.shape() == scales.shape(),
          "quantised_linear: scales and biases [n, k / group]");
  require(x.dtype() == mx::float32 && packed.dtype() == mx::uint32, "quantised_linear: x is float32, packed is uint32");
  require(scales.dtype() == biases.dtype(), "quantised_linear: scales and biases have one dtype");
  format_of(scales.dtype());
  const Format format = bits == 4 ? Format::AFFINE4 : Format::AFFINE8;
  return mx::array({x.shape(0), packed.shape(0)}, mx::float32, std::make_shared<LinearOp>(format, group), {x, packed, scales, biases});
}

}  // namespace forerun
