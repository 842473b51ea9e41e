#include <numeric>

#include "operations.h"

namespace forerun {
namespace {

struct AttentionInputsOp : CpuPrimitive<AttentionInputsOp> {
  static constexpr const char* NAME = "forerun::AttentionInputs";
  float eps;
  int heads, kv_heads, head_dim;
  bool is_gated, is_traditional, has_q_gain, has_k_gain;
  AttentionInputsOp(float eps, int heads, int kv_heads, int head_dim, bool is_gated, bool is_traditional, bool has_q_gain, bool has_k_gain)
      : eps(eps), heads(heads), kv_heads(kv_heads), head_dim(head_dim), is_gated(is_gated), is_traditional(is_traditional), has_q_gain(has_q_gain),
        has_k_gain(has_k_gain) {}
  auto parameters() const { return std::tuple(eps, heads, kv_heads, head_dim, is_gated, is_traditional, has_q_gain, has_k_gain); }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    return {{in[0].shape(0), heads, head_dim}, {in[0].shape(0), kv_heads, head_dim}};
  }

  // in: projected, positions, frequencies, then the gains that there are; out: q, k.
  void eval_cpu(const Arrays& in, Arrays& out) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    AttentionInputs job{.projected = row_major<float>(in[0], encoder),
                        .q_gain = has_q_gain ? row_major<float>(in[3], encoder) : nullptr,
                        .k_gain = has_k_gain ? row_major<float>(in.back(), encoder) : nullptr,
                        .frequencies = row_major<float>(in[2], encoder),
                        .positions = row_major<int32_t>(in[1], encoder),
                        .q = allocated<float>(out[0], encoder),
                        .k = allocated<float>(out[1], encoder),
                        .rows = size_t(in[0].shape(0)),
                        .width = size_t(in[0].shape(1)),
                        .heads = size_t(heads),
                        .kv_heads = size_t(kv_heads),
                        .head_dim = size_t(head_dim),
                        .half = size_t(in[2].shape(0)),
                        .eps = eps,
                        .is_gated = is_gated,
                        .is_traditional = is_traditional};
    encoder.dispatch([job] { kernels().attention_inputs(job); });
  }
};

// [a, b, dim] with the elements of dim side by side: read where they are, with strides in elements.
struct Strided {
  const float* data;
  size_t first, second;
};
Strided strided(const mx::array& a, mx::cpu::CommandEncoder& encoder) {
  encoder.set_input_array(a);
  if (a.strides(2) == 1 && a.strides(0) >= 0 && a.strides(1) >= 0) return {a.data<float>(), size_t(a.strides(0)), size_t(a.strides(1))};
  return {row_major<float>(a, encoder), size_t(a.shape(1)) * a.shape(2), size_t(a.shape(2))};
}

// One buffer a primitive: MLX holds all outputs of a primitive but one until its tasks are done, and what is held is copied.
struct WriteRowsOp : CpuPrimitive<WriteRowsOp> {
  static constexpr const char* NAME = "forerun::WriteRows";
  auto parameters() const { return std::tuple(); }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override { return {in[0].shape()}; }

  // in: the buffer, rows, at.
  void eval_cpu(const Arrays& in, Arrays& out) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    if (!in[0].is_donatable()) mx::synchronize(stream());  // an earlier task of this stream may hold the buffer: cheaper than a copy
    const Strided rows = strided(in[1], encoder);
    WriteRows job{.buffer = static_cast<float*>(taken_over(in[0], out[0], encoder)),
                  .x = rows.data,
                  .at = row_major<int32_t>(in[2], encoder),
                  .rows = size_t(in[2].shape(0)),
                  .kv_heads = size_t(in[0].shape(0)),
                  .capacity = size_t(in[0].shape(1)),
                  .dim = size_t(in[0].shape(2)),
                  .x_row = rows.first,
                  .x_head = rows.second};
    encoder.dispatch([job] { kernels().write_rows(job); });
  }
};

struct AttentionOp : CpuPrimitive<AttentionOp> {
  static constexpr const char* NAME = "forerun::Attention";
  std::vector<int> spans;
  std::vector<bool> has_blocks;
  int first, block_tokens;
  AttentionOp(std::vector<int> spans, std::vector<bool> has_blocks, int first, int block_tokens)
      : spans(std::move(spans)), has_blocks(std::move(has_blocks)), first(first), block_tokens(block_tokens) {}
  auto parameters() const { return std::tuple(spans, has_blocks, first, block_tokens); }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override { return {in[0].shape()}; }

  // in: q, positions, the keys and then the values of each sequence, the block tables that there are.
  void eval_cpu(const Arrays& in, Arrays& out) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    Attention job{.q = row_major<float>(in[0], encoder),
                  .positions = row_major<int32_t>(in[1], encoder),
                  .out = allocated<float>(out[0], encoder),
                  .sequences = nullptr,
                  .num_sequences = spans.size(),
                  .heads = size_t(in[0].shape(1)),
                  .kv_heads = size_t(in[2].shape(0)),
                  .dim = size_t(in[0].shape(2)),
                  .first = size_t(first),
                  .block_tokens = size_t(block_tokens)};
    encoder.dispatch([job, sequences = sequences_of(in, encoder)]() mutable {
      job.sequences = sequences.data();
      kernels().attention(job);
    });
  }

  std::vector<AttentionSequence> sequences_of(const Arrays& in, mx::cpu::CommandEncoder& encoder) {
    std::vector<AttentionSequence> sequences;
    size_t start = 0, table = 2 + 2 * spans.size();
    for (size_t i = 0; i < spans.size(); start += spans[i++]) {
      const Strided keys = rows_of(in[2 + i], encoder), values = rows_of(in[2 + spans.size() + i], encoder);
      const int32_t* blocks = has_blocks[i] ? row_major<int32_t>(in[table++], encoder) : nullptr;
      sequences.push_back({keys.data, values.data, blocks, keys.first, values.first, start, size_t(spans[i])});
    }
    return sequences;
  }

  // The rows of a head lie end to end, also in the first part of a larger array.
  static Strided rows_of(const mx::array& a, mx::cpu::CommandEncoder& encoder) {
    const Strided rows = strided(a, encoder);
    if (rows.second == size_t(a.shape(2)) || a.shape(1) < 2) return rows;
    return {row_major<float>(a, encoder), size_t(a.shape(1)) * a.shape(2), size_t(a.shape(2))};
  }
};

struct SigmoidGateOp : CpuPrimitive<SigmoidGateOp> {
  static constexpr const char* NAME = "forerun::SigmoidGate";
  auto parameters() const { return std::tuple(); }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override { return {{in[0].shape(0), in[0].shape(1) * in[0].shape(2)}}; }

  void eval_cpu(const Arrays& in, Arrays& out) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    SigmoidGate job{.y = row_major<float>(in[0], encoder),
                    .projected = row_major<float>(in[1], encoder),
                    .out = allocated<float>(out[0], encoder),
                    .rows = size_t(in[0].shape(0)),
                    .width = size_t(in[1].shape(1)),
                    .heads = size_t(in[0].shape(1)),
                    .head_dim = size_t(in[0].shape(2))};
    encoder.dispatch([job] { kernels().sigmoid_gate(job); });
  }
};

bool is_rows_of_heads(const mx::array& a) { return a.dtype() == mx::float32 && a.ndim() == 3 && a.shape(2) > 0 && a.shape(2) % 16 == 0; }

bool is_int32_vector(const mx::array& a) { return a.dtype() == mx::int32 && a.ndim() == 1; }

void check_gain(const std::optional<mx::array>& gain, int head_dim) {
  require(!gain || (gain->dtype() == mx::float32 && gain->shape() == mx::Shape{head_dim}), "attention_inputs: gains [head_dim] float32");
}

}  // namespace

std::pair<mx::array, mx::array> attention_inputs(const mx::array& projected, const std::optional<mx::array>& q_gain,
                                                 const std::optional<mx::array>& k_gain, float eps, const mx::array& positions,
                                                 const mx::array& frequencies, int heads, int kv_heads, int head_dim, bool is_gated,
                                                 bool is_traditional) {
  require(head_dim > 0 && head_dim % 16 == 0, "attention_inputs: head_dim is a multiple of 16");
  require(projected.dtype() == mx::float32 && projected.ndim() == 2, "attention_inputs: projected [rows, ...] float32");
  require(projected.shape(1) >= ((is_gated ? 2 : 1) * heads + kv_heads) * head_dim, "attention_inputs: projected holds queries and keys");
  require(is_int32_vector(positions) && positions.shape(0) == projected.shape(0), "attention_inputs: positions [rows] int32");
  require(frequencies.dtype() == mx::float32 && frequencies.ndim() == 1 && 2 * frequencies.shape(0) <= head_dim,
          "attention_inputs: frequencies [dims / 2] float32, at most head_dim / 2");
  check_gain(q_gain, head_dim);
  check_gain(k_gain, head_dim);
  Arrays in{projected, positions, frequencies};
  for (const auto& gain : {q_gain, k_gain})
    if (gain) in.push_back(*gain);
  auto op = std::make_shared<AttentionInputsOp>(eps, heads, kv_heads, head_dim, is_gated, is_traditional, q_gain.has_value(), k_gain.has_value());
  const auto out = mx::array::make_arrays(op->output_shapes(in), {mx::float32, mx::float32}, op, in);
  return {out[0], out[1]};
}

std::pair<mx::array, mx::array> write_rows(const mx::array& keys, const mx::array& values, const mx::array& k, const mx::array& v,
                                           const mx::array& at) {
  require(is_rows_of_heads(keys) && is_rows_of_heads(values) && keys.shape() == values.shape(), "write_rows: keys, values [kv_heads, capacity, dim] float32");
  require(is_int32_vector(at), "write_rows: at [rows] int32");
  for (const auto& rows : {k, v})
    require(rows.dtype() == mx::float32 && rows.shape() == mx::Shape{at.shape(0), keys.shape(0), keys.shape(2)},
            "write_rows: k, v [rows, kv_heads, dim] float32");
  auto write = [&](const mx::array& buffer, const mx::array& rows) {
    return mx::array(buffer.shape(), mx::float32, std::make_shared<WriteRowsOp>(), {buffer, rows, at});
  };
  return {write(keys, k), write(values, v)};
}

mx::array attention(const mx::array& q, const Arrays& keys, const Arrays& values, const std::vector<std::optional<mx::array>>& blocks,
                    const std::vector<int>& spans, const mx::array& positions, int first, int block_tokens) {
  require(is_rows_of_heads(q), "attention: q [rows, heads, dim] float32, dim a multiple of 16");
  require(!spans.empty() && keys.size() == spans.size() && values.size() == spans.size() && blocks.size() == spans.size(),
          "attention: keys, values, blocks and a span per sequence");
  for (int rows : spans) require(rows >= 0, "attention: spans count rows");
  require(std::accumulate(spans.begin(), spans.end(), 0) == q.shape(0), "attention: the spans cover the rows");
  require(is_int32_vector(positions) && positions.shape(0) == q.shape(0), "attention: positions [rows] int32");
  require(first >= 0, "attention: first is a position");
  const int kv_heads = keys[0].ndim() == 3 ? keys[0].shape(0) : 0;
  require(kv_heads > 0 && q.shape(1) % kv_heads == 0 && q.shape(1) / kv_heads <= 64, "attention: heads is a multiple of kv_heads, at most 64 times");
  for (const Arrays* each : {&keys, &values})
    for (const auto& a : *each)
      require(is_rows_of_heads(a) && a.shape(0) == kv_heads && a.shape(2) == q.shape(2), "attention: keys, values [kv_heads, capacity, dim] float32");
  Arrays in{q, positions};
  in.insert(in.end(), keys.begin(), keys.end());
  in.insert(in.end(), values.begin(), values.end());
  std::vector<bool> has_blocks;
  for (const auto& table : blocks) {
    has_blocks.push_back(table.has_value());
    if (!table) continue;
    require(is_int32_vector(*table) && block_tokens > 0, "attention: blocks [n] int32, of block_tokens rows each");
    in.push_back(*table);
  }
  return mx::array(q.shape(), mx::float32, std::make_shared<AttentionOp>(spans, has_blocks, first, block_tokens), in);
}

mx::array sigmoid_gate(const mx::array& y, const mx::array& projected, int heads, int head_dim) {
  require(is_rows_of_heads(y) && y.shape(1) == heads && y.shape(2) == head_dim, "sigmoid_gate: y [rows, heads, head_dim] float32");
  require(projected.dtype() == mx::float32 && projected.ndim() == 2 && projected.shape(0) == y.shape(0) && projected.shape(1) >= 2 * heads * head_dim,
          "sigmoid_gate: projected [rows, 2 heads head_dim, ...] float32");
  return mx::array({y.shape(0), heads * head_dim}, mx::float32, std::make_shared<SigmoidGateOp>(), {y, projected});
}

}  // namespace forerun
