// The Python module: operations, and the choice of instruction set and threads.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "cores.h"
#include "operations.h"
#include "pool.h"

namespace nb = nanobind;

namespace forerun {
namespace {

const Kernels* in_use = nullptr;

bool runs_here(const Kernels* set) {
  if (!set) return false;
#if defined(__x86_64__)
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (set == AVX2) return has_avx2;
  if (set == AVX512) {
    return has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi");
  }
#endif
  return true;
}

// Those that run here, the fastest first.
std::vector<const Kernels*> sets() {
  std::vector<const Kernels*> found;
  for (const Kernels* set : {AVX512, AVX2, NEON, PORTABLE})
    if (runs_here(set)) found.push_back(set);
  return found;
}

void use(const std::string& name) {
  for (const Kernels* set : sets())
    if (name == set->name) {
      in_use = set;
      return;
    }
  throw std::invalid_argument("no such instruction set here: " + name);
}

}  // namespace

const Kernels& kernels() { return *in_use; }

}  // namespace forerun

NB_MODULE(_cpu, m) {
  using namespace forerun;
  using namespace nb::literals;
  nb::module_::import_("mlx.core");  // registers mx.array before the signatures name it
  set_num_threads(num_cores());
  use(sets().front()->name);

  m.attr("MLX_VERSION") = FORERUN_MLX_VERSION;
  m.def("instruction_sets", [] {
    std::vector<std::string> names;
    for (const Kernels* set : sets()) names.push_back(set->name);
    return names;
  });
  m.def("instruction_set", [] { return std::string(kernels().name); });
  m.def("use", &use, "name"_a);
  m.def("num_threads", &num_threads);
  m.def("set_num_threads", &set_num_threads, "threads"_a);

  m.def("rms_norm", &rms_norm, "x"_a, "gain"_a, "eps"_a);
  m.def("add_rms_norm", &add_rms_norm, "x"_a, "residual"_a, "gain"_a, "eps"_a);
  m.def("swiglu", &swiglu, "x"_a);
  m.def("linear", &linear, "x"_a, "w"_a);
  m.def("quantised_linear", &quantised_linear, "x"_a, "packed"_a, "scales"_a, "biases"_a, "bits"_a, "group"_a);
  m.def("block_linear", &block_linear, "x"_a, "blocks"_a, "format"_a);
  m.def("block_rows", &block_rows, "blocks"_a, "ids"_a, "format"_a);
  m.def("block_dequantise", &block_dequantise, "blocks"_a, "format"_a);
  m.def("log_softmax", &log_softmax, "x"_a);
  m.def("top_k", &top_k, "x"_a, "k"_a);
  m.def("linear_of_experts", &linear_of_experts, "x"_a, "w"_a, "experts"_a);
  m.def("quantised_linear_of_experts", &quantised_linear_of_experts, "x"_a, "packed"_a, "scales"_a, "biases"_a, "experts"_a, "bits"_a,
        "group"_a);

  m.def("delta_net", &delta_net, "projected"_a, "tails"_a, "matrices"_a, "spans"_a, "conv"_a, "decay_rate"_a, "dt_bias"_a, "gain"_a, "eps"_a,
        "key_heads"_a, "value_heads"_a);
  m.def("attention_inputs", &attention_inputs, "projected"_a, "q_gain"_a.none(), "k_gain"_a.none(), "eps"_a, "positions"_a, "frequencies"_a, "heads"_a,
        "kv_heads"_a, "head_dim"_a, "is_gated"_a, "is_traditional"_a);
  m.def("write_rows", &write_rows, "keys"_a, "values"_a, "k"_a, "v"_a, "at"_a);
  m.def("attention", &attention, "q"_a, "keys"_a, "values"_a, "blocks"_a, "spans"_a, "positions"_a, "first"_a, "block_tokens"_a);
  m.def("sigmoid_gate", &sigmoid_gate, "y"_a, "projected"_a, "heads"_a, "head_dim"_a);
}
