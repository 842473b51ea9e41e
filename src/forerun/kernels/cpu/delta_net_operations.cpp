#include <numeric>

#include "operations.h"

namespace forerun {
namespace {

enum { PROJECTED, CONV, DECAY_RATE, DT_BIAS, GAIN, FIRST_TAIL };

// in: as listed, then the tails, then the matrices; out: y, the next tails, the next matrices.
struct DeltaNetOp : CpuPrimitive<DeltaNetOp> {
  static constexpr const char* NAME = "forerun::DeltaNet";
  std::vector<int> spans;
  float eps;
  int key_heads, value_heads;
  DeltaNetOp(std::vector<int> spans, float eps, int key_heads, int value_heads)
      : spans(std::move(spans)), eps(eps), key_heads(key_heads), value_heads(value_heads) {}
  auto parameters() const { return std::tuple(spans, eps, key_heads, value_heads); }

  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    std::vector<mx::Shape> shapes{{in[PROJECTED].shape(0), value_heads * in[GAIN].shape(0)}};
    for (size_t i = FIRST_TAIL; i < in.size(); ++i) shapes.push_back(in[i].shape());
    return shapes;
  }

  void eval_cpu(const Arrays& in, Arrays& out) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    release_from_siblings(in, out);
    DeltaNet job = job_of(in, encoder);
    job.y = allocated<float>(out[0], encoder);
    encoder.dispatch([job, sequences = sequences_of(in, out, encoder)]() mutable {
      job.sequences = sequences.data();
      kernels().delta_net(job);
    });
  }

  DeltaNet job_of(const Arrays& in, mx::cpu::CommandEncoder& encoder) {
    const size_t channels = in[CONV].shape(1), value_dim = in[GAIN].shape(0);
    return {.projected = row_major<float>(in[PROJECTED], encoder),
            .conv = row_major<float>(in[CONV], encoder),
            .decay_rate = row_major<float>(in[DECAY_RATE], encoder),
            .dt_bias = row_major<float>(in[DT_BIAS], encoder),
            .gain = row_major<float>(in[GAIN], encoder),
            .y = nullptr,
            .sequences = nullptr,
            .num_sequences = spans.size(),
            .rows = size_t(in[PROJECTED].shape(0)),
            .width = size_t(in[PROJECTED].shape(1)),
            .channels = channels,
            .conv_width = size_t(in[CONV].shape(0)),
            .key_heads = size_t(key_heads),
            .value_heads = size_t(value_heads),
            .key_dim = (channels - value_heads * value_dim) / (2 * key_heads),
            .value_dim = value_dim,
            .eps = eps};
  }

  // A matrix that nobody else holds is replaced in place: a slice of it is read before it is written.
  std::vector<DeltaSequence> sequences_of(const Arrays& in, Arrays& out, mx::cpu::CommandEncoder& encoder) {
    std::vector<DeltaSequence> sequences;
    size_t start = 0;
    for (size_t i = 0; i < spans.size(); start += spans[i++]) {
      const mx::array &tail = in[FIRST_TAIL + i], &matrix = in[FIRST_TAIL + spans.size() + i];
      mx::array &next_tail = out[1 + i], &next_matrix = out[1 + spans.size() + i];
      const float* from = row_major<float>(matrix, encoder);
      const bool in_place = matrix.is_donatable() && matrix.flags().row_contiguous;
      if (in_place) next_matrix.copy_shared_buffer(matrix);
      float* to = in_place ? next_matrix.data<float>() : allocated<float>(next_matrix, encoder);
      sequences.push_back({row_major<float>(tail, encoder), from, allocated<float>(next_tail, encoder), to, start, size_t(spans[i])});
    }
    return sequences;
  }
};

void check_sequences(const Arrays& tails, const Arrays& matrices, const std::vector<int>& spans, const mx::Shape& tail, const mx::Shape& matrix) {
  require(!spans.empty() && tails.size() == spans.size() && matrices.size() == spans.size(), "delta_net: a tail, a matrix and a span per sequence");
  for (const auto& a : tails) require(a.dtype() == mx::float32 && a.shape() == tail, "delta_net: tails [width - 1, channels] float32");
  for (const auto& a : matrices)
    require(a.dtype() == mx::float32 && a.shape() == matrix, "delta_net: matrices [value_heads, value_dim, key_dim] float32");
}

}  // namespace

std::tuple<mx::array, Arrays, Arrays> delta_net(const mx::array& projected, const Arrays& tails, const Arrays& matrices, const std::vector<int>& spans,
                                                const mx::array& conv, const mx::array& decay_rate, const mx::array& dt_bias,
                                                const mx::array& gain, float eps, int key_heads, int value_heads) {
  for (const auto& a : {projected, conv, decay_rate, dt_bias, gain}) require(a.dtype() == mx::float32, "delta_net: float32");
  require(projected.ndim() == 2 && conv.ndim() == 2 && gain.ndim() == 1, "delta_net: projected [rows, ...], conv [width, channels], gain [value_dim]");
  require(key_heads > 0 && value_heads > 0 && value_heads % key_heads == 0, "delta_net: value_heads is a multiple of key_heads");
  const int value_width = value_heads * gain.shape(0), channels = conv.shape(1), key_dim = (channels - value_width) / (2 * key_heads);
  require(key_dim > 0 && key_dim % 16 == 0 && gain.shape(0) % 16 == 0 && 2 * key_heads * key_dim + value_width == channels,
          "delta_net: channels = 2 key_heads key_dim + value_heads value_dim, dims multiples of 16");
  require(projected.shape(1) == channels + value_width + 2 * value_heads, "delta_net: projected holds qkv, z, b, a");
  require(decay_rate.shape() == mx::Shape{value_heads} && dt_bias.shape() == mx::Shape{value_heads}, "delta_net: decay_rate, dt_bias [value_heads]");
  check_sequences(tails, matrices, spans, {conv.shape(0) - 1, channels}, {value_heads, gain.shape(0), key_dim});
  for (int rows : spans) require(rows >= 0, "delta_net: spans count rows");
  require(std::accumulate(spans.begin(), spans.end(), 0) == projected.shape(0), "delta_net: the spans cover the rows");

  Arrays in{projected, conv, decay_rate, dt_bias, gain};
  in.insert(in.end(), tails.begin(), tails.end());
  in.insert(in.end(), matrices.begin(), matrices.end());
  auto op = std::make_shared<DeltaNetOp>(spans, eps, key_heads, value_heads);
  const auto out = mx::array::make_arrays(op->output_shapes(in), std::vector(in.size() - FIRST_TAIL + 1, mx::float32), op, in);
  const auto matrices_from = out.begin() + 1 + tails.size();
  return {out[0], Arrays(out.begin() + 1, matrices_from), Arrays(matrices_from, out.end())};
}

}  // namespace forerun
