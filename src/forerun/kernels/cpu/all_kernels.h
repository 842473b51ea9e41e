// All kernels, for one instruction set: included inside its namespace after its lanes.

#include "functions.h"
#include "rows.h"
#include "formats.h"
#include "linear.h"
#include "experts.h"
#include "delta_net.h"
#include "attention_inputs.h"
#include "attention.h"
#include "vocabulary.h"

inline constexpr Kernels table(const char* name) {
  return {.name = name,
          .rms_norm = rms_norm,
          .swiglu = swiglu,
          .linear = linear,
          .linear_of_experts = linear_of_experts,
          .matrix_rows = matrix_rows,
          .delta_net = delta_net,
          .attention_inputs = attention_inputs,
          .write_rows = write_rows,
          .attention = attention,
          .sigmoid_gate = sigmoid_gate,
          .log_softmax = log_softmax,
          .top_k = top_k};
}
