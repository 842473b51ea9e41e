// All kernels, for one instruction set: included inside its namespace after its lanes.

#include "functions.h"
#include "rows.h"
#include "delta_net.h"
#include "attention_inputs.h"
#include "attention.h"

inline constexpr Kernels table(const char* name) {
  return {.name = name,
          .rms_norm = rms_norm,
          .swiglu = swiglu,
          .delta_net = delta_net,
          .attention_inputs = attention_inputs,
          .write_rows = write_rows,
          .attention = attention,
          .sigmoid_gate = sigmoid_gate};
}
