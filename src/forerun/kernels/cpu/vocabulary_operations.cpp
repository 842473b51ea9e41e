#include "operations.h"

namespace forerun {
namespace {

struct LogSoftmaxOp : CpuPrimitive<LogSoftmaxOp> {
  static constexpr const char* NAME = "forerun::LogSoftmax";
  auto parameters() const { return std::tuple(); }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override { return {in[0].shape()}; }

  void eval_cpu(const Arrays& in, Arrays& out) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    const size_t rows = in[0].shape(0), n = in[0].shape(1);
    float* memory = temporary<float>(rows * (n / 4096 + 3), encoder);
    LogSoftmax job{.x = row_major<float>(in[0], encoder),
                   .y = allocated<float>(out[0], encoder),
                   .largest = memory,
                   .logs = memory + rows,
                   .parts = memory + 2 * rows,
                   .rows = rows,
                   .n = n};
    encoder.dispatch([job] { kernels().log_softmax(job); });
  }
};

struct TopKOp : CpuPrimitive<TopKOp> {
  static constexpr const char* NAME = "forerun::TopK";
  int k;
  explicit TopKOp(int k) : k(k) {}
  auto parameters() const { return std::tuple(k); }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override { return std::vector<mx::Shape>(2, {in[0].shape(0), k}); }

  void eval_cpu(const Arrays& in, Arrays& out) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    TopK job{.x = row_major<float>(in[0], encoder),
             .values = allocated<float>(out[0], encoder),
             .indices = allocated<uint32_t>(out[1], encoder),
             .rows = size_t(in[0].shape(0)),
             .n = size_t(in[0].shape(1)),
             .k = size_t(k)};
    encoder.dispatch([job] { kernels().top_k(job); });
  }
};

}  // namespace

mx::array log_softmax(const mx::array& x) {
  require(x.ndim() == 2 && x.dtype() == mx::float32, "log_softmax: x [rows, n] float32");
  return mx::array(x.shape(), mx::float32, std::make_shared<LogSoftmaxOp>(), {x});
}

std::pair<mx::array, mx::array> top_k(const mx::array& x, int k) {
  require(x.ndim() == 2 && x.dtype() == mx::float32, "top_k: x [rows, n] float32");
  require(0 <= k && k <= x.shape(1), "top_k: k is at most the length of a row");
  const mx::Shape shape{x.shape(0), k};
  const auto out = mx::array::make_arrays({shape, shape}, {mx::float32, mx::uint32}, std::make_shared<TopKOp>(k), {x});
  return {out[0], out[1]};
}

}  // namespace forerun
