#include "operations.h"

namespace forerun {
namespace {

Format format_of(mx::Dtype dtype) {
  if (dtype == mx::float32) return Format::F32;
  if (dtype == mx::bfloat16) return Format::BF16;
  if (dtype == mx::float16) return Format::F16;
  throw std::invalid_argument("linear: weights, scales and biases are float32, bfloat16 or float16");
}

struct BlockFormat {
  const char* name;
  Format format;
  int weights, bytes;  // of a block
};
constexpr BlockFormat BLOCK_FORMATS[] = {
    {"q8_0", Format::Q8_0, 32, 34},  {"q4_0", Format::Q4_0, 32, 18},   {"q4_1", Format::Q4_1, 32, 20},   {"q5_0", Format::Q5_0, 32, 22},
    {"q5_1", Format::Q5_1, 32, 24},  {"q2_k", Format::Q2_K, 256, 84},  {"q3_k", Format::Q3_K, 256, 110}, {"q4_k", Format::Q4_K, 256, 144},
    {"q5_k", Format::Q5_K, 256, 176}, {"q6_k", Format::Q6_K, 256, 210}};

const BlockFormat& block_format(const std::string& name) {
  for (const BlockFormat& each : BLOCK_FORMATS)
    if (name == each.name) return each;
  throw std::invalid_argument("no such format of blocks: " + name);
}

// The weights in a row of `blocks`.
int row_weights(const mx::array& blocks, const BlockFormat& format) {
  require(blocks.ndim() == 2 && blocks.dtype() == mx::uint8, "blocks are [n, bytes of a row] uint8");
  require(blocks.shape(1) % format.bytes == 0, "a row of blocks has a whole number of them");
  return blocks.shape(1) / format.bytes * format.weights;
}

// How a matrix is stored. group: of affine formats.
struct Storage {
  Format format;
  int group = 0;
  bool operator==(const Storage&) const = default;
};

// in: the weights, and scales and biases if the format has them.
Matrix matrix(const Storage& storage, size_t n, size_t k, const mx::array* in, mx::cpu::CommandEncoder& encoder) {
  Matrix m{.format = storage.format, .weights = row_major(in[0], encoder), .n = n, .k = k};
  if (!storage.group) return m;
  m.scales = row_major(in[1], encoder), m.biases = row_major(in[2], encoder);
  m.scale_format = format_of(in[1].dtype()), m.group = size_t(storage.group);
  return m;
}

// in: x, and as for `matrix`.
struct LinearOp : CpuPrimitive<LinearOp> {
  static constexpr const char* NAME = "forerun::Linear";
  Storage storage;
  explicit LinearOp(const Storage& storage) : storage(storage) {}
  auto parameters() const { return storage; }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override { return {{in[0].shape(0), in[1].shape(0)}}; }

  void eval_cpu(const Arrays& in, Arrays& out) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    const size_t rows = in[0].shape(0), k = in[0].shape(1);
    Linear job{.matrix = matrix(storage, in[1].shape(0), k, &in[1], encoder),
               .x = row_major<float>(in[0], encoder),
               .y = allocated<float>(out[0], encoder),
               .packed = rows > MOST_FEW_ROWS ? temporary<float>(packed_floats(rows, k), encoder) : nullptr,
               .rows = rows};
    encoder.dispatch([job] { kernels().linear(job); });
  }
};

// in: x, experts, and as for `matrix`.
struct LinearOfExpertsOp : CpuPrimitive<LinearOfExpertsOp> {
  static constexpr const char* NAME = "forerun::LinearOfExperts";
  Storage storage;
  explicit LinearOfExpertsOp(const Storage& storage) : storage(storage) {}
  auto parameters() const { return storage; }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override { return {{in[1].shape(0), in[1].shape(1), in[2].shape(1)}}; }

  void eval_cpu(const Arrays& in, Arrays& out) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    const size_t rows = in[1].size(), k = in[0].shape(2), num_experts = in[2].shape(0);
    const size_t packed = rows > MOST_FEW_ROWS ? packed_floats(rows, k, std::min(rows, num_experts)) : 0;
    ExpertsLinear job{.all = {.matrix = matrix(storage, in[2].shape(1), k, &in[2], encoder),
                              .x = row_major<float>(in[0], encoder),
                              .y = allocated<float>(out[0], encoder),
                              .packed = temporary<float>(packed, encoder),
                              .rows = rows,
                              .share = in[0].shape(1) == in[1].shape(1) ? 1 : size_t(in[1].shape(1))},
                      .experts = row_major<uint32_t>(in[1], encoder),
                      .num_experts = num_experts,
                      .ids = temporary<uint32_t>(rows, encoder),
                      .parts = temporary<ExpertsLinear::Part>(num_experts, encoder)};
    encoder.dispatch([job] { kernels().linear_of_experts(job); });
  }
};

// in: blocks, and ids unless all rows are meant.
struct BlockRowsOp : CpuPrimitive<BlockRowsOp> {
  static constexpr const char* NAME = "forerun::BlockRows";
  const BlockFormat* format;
  explicit BlockRowsOp(const BlockFormat& format) : format(&format) {}
  auto parameters() const { return std::tuple(format); }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override { return {{in.back().shape(0), row_weights(in[0], *format)}}; }

  void eval_cpu(const Arrays& in, Arrays& out) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    MatrixRows job{.matrix = matrix({format->format}, in[0].shape(0), out[0].shape(1), &in[0], encoder),
                   .ids = in.size() > 1 ? row_major<uint32_t>(in[1], encoder) : nullptr,
                   .y = allocated<float>(out[0], encoder),
                   .rows = size_t(out[0].shape(0))};
    encoder.dispatch([job] { kernels().matrix_rows(job); });
  }
};

// The storage of affine weights.
Storage affine(const mx::array& packed, const mx::array& scales, const mx::array& biases, int k, int bits, int group) {
  require(bits == 4 || bits == 8, "quantised_linear: 4 or 8 bits");
  require(group == 32 || group == 64 || group == 128, "quantised_linear: groups of 32, 64 or 128");
  require(packed.dtype() == mx::uint32 && packed.shape(-1) * 32 / bits == k && k % group == 0,
          "quantised_linear: packed [..., n, k * bits / 32] uint32, k a multiple of the group");
  mx::Shape groups = packed.shape();
  groups.back() = k / group;
  require(scales.shape() == groups && biases.shape() == groups, "quantised_linear: scales and biases [..., n, k / group]");
  require(scales.dtype() == biases.dtype(), "quantised_linear: scales and biases have one dtype");
  format_of(scales.dtype());
  return {bits == 4 ? Format::AFFINE4 : Format::AFFINE8, group};
}

void check_rows(const mx::array& x, const mx::array& w) {
  require(x.ndim() == 2 && w.ndim() == 2 && x.dtype() == mx::float32, "linear: x [rows, k] float32, and a matrix");
}

void check_experts(const mx::array& x, const mx::array& w, const mx::array& experts) {
  require(x.ndim() == 3 && w.ndim() == 3 && x.dtype() == mx::float32, "linear_of_experts: x [rows, chosen or 1, k] float32, and a stack of matrices");
  require(experts.ndim() == 2 && (experts.dtype() == mx::uint32 || experts.dtype() == mx::int32),
          "linear_of_experts: experts [rows, chosen] int32 or uint32");
  require(x.shape(0) == experts.shape(0) && (x.shape(1) == 1 || x.shape(1) == experts.shape(1)) && w.shape(0) > 0,
          "linear_of_experts: x and experts have the same rows and chosen");
}

mx::array product(const Storage& storage, const Arrays& in) {
  return mx::array({in[0].shape(0), in[1].shape(0)}, mx::float32, std::make_shared<LinearOp>(storage), in);
}

mx::array product_of_experts(const Storage& storage, const Arrays& in) {
  return mx::array({in[1].shape(0), in[1].shape(1), in[2].shape(1)}, mx::float32, std::make_shared<LinearOfExpertsOp>(storage), in);
}

}  // namespace

mx::array linear(const mx::array& x, const mx::array& w) {
  check_rows(x, w);
  require(x.shape(1) == w.shape(1), "linear: x [rows, k], w [n, k]");
  return product({format_of(w.dtype())}, {x, w});
}

mx::array quantised_linear(const mx::array& x, const mx::array& packed, const mx::array& scales, const mx::array& biases, int bits, int group) {
  check_rows(x, packed);
  return product(affine(packed, scales, biases, x.shape(1), bits, group), {x, packed, scales, biases});
}

mx::array block_linear(const mx::array& x, const mx::array& blocks, const std::string& format) {
  const BlockFormat& stored = block_format(format);
  check_rows(x, blocks);
  require(x.shape(1) == row_weights(blocks, stored), "block_linear: x [rows, k], k the weights in a row of blocks");
  return product({stored.format}, {x, blocks});
}

mx::array linear_of_experts(const mx::array& x, const mx::array& w, const mx::array& experts) {
  check_experts(x, w, experts);
  require(x.shape(2) == w.shape(2), "linear_of_experts: x [rows, chosen or 1, k], w [experts, n, k]");
  return product_of_experts({format_of(w.dtype())}, {x, experts, w});
}

mx::array quantised_linear_of_experts(const mx::array& x, const mx::array& packed, const mx::array& scales, const mx::array& biases,
                                      const mx::array& experts, int bits, int group) {
  check_experts(x, packed, experts);
  return product_of_experts(affine(packed, scales, biases, x.shape(2), bits, group), {x, experts, packed, scales, biases});
}

mx::array block_rows(const mx::array& blocks, const mx::array& ids, const std::string& format) {
  const BlockFormat& stored = block_format(format);
  require(ids.ndim() == 1 && (ids.dtype() == mx::uint32 || ids.dtype() == mx::int32), "block_rows: ids [rows] int32 or uint32");
  require(blocks.ndim() == 2 && blocks.shape(0) > 0, "block_rows: blocks [n, bytes of a row]");
  return mx::array({ids.shape(0), row_weights(blocks, stored)}, mx::float32, std::make_shared<BlockRowsOp>(stored), {blocks, ids});
}

mx::array block_dequantise(const mx::array& blocks, const std::string& format) {
  const BlockFormat& stored = block_format(format);
  const int k = row_weights(blocks, stored);
  return mx::array({blocks.shape(0), k}, mx::float32, std::make_shared<BlockRowsOp>(stored), {blocks});
}

}  // namespace forerun
