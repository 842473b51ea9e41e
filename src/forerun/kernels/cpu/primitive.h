// What all primitives share: memory of inputs and outputs, and checks of arguments.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <vector>

#include "kernels.h"
#include "mlx/allocator.h"
#include "mlx/array.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"

namespace forerun {

namespace mx = mlx::core;
using Arrays = std::vector<mx::array>;

// The instruction set in use.
const Kernels& kernels();

inline void require(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
}

inline mx::Stream cpu() { return mx::default_stream(mx::Device::cpu); }

// The data of `a` in row-major order: its own, or that of a temporary which a task fills before whatever is dispatched next.
const void* row_major(const mx::array& a, mx::cpu::CommandEncoder& encoder);

template <class T>
const T* row_major(const mx::array& a, mx::cpu::CommandEncoder& encoder) {
  return static_cast<const T*>(row_major(a, encoder));
}

template <class T>
T* allocated(mx::array& a, mx::cpu::CommandEncoder& encoder) {
  a.set_data(mx::allocator::malloc(a.nbytes()));
  encoder.set_output_array(a);
  return a.data<T>();
}

// For primitives with several outputs, before they ask what is donatable: each output holds all inputs, and only one of them needs to.
void release_from_siblings(const Arrays& in, Arrays& out);

// Memory for `count` elements, aligned to 64, until the tasks dispatched for this primitive are done.
template <class T>
T* temporary(size_t count, mx::cpu::CommandEncoder& encoder) {
  mx::array memory({int(count * sizeof(T) / 64 + 2), 64}, mx::uint8, nullptr, {});
  memory.set_data(mx::allocator::malloc(memory.nbytes()));
  encoder.add_temporary(memory);
  return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(memory.data<char>()) + 63) / 64 * 64);
}

// `out` in the memory of `in` where nobody else holds it, else with memory of its own into which a task copies `in`.
void* taken_over(const mx::array& in, mx::array& out, mx::cpu::CommandEncoder& encoder);

// A primitive whose parameters are the tuple that `parameters` returns.
template <class Derived>
struct CpuPrimitive : mx::Primitive {
  CpuPrimitive() : mx::Primitive(cpu()) {}
  void eval_gpu(const Arrays&, Arrays&) override { throw std::runtime_error("forerun's CPU kernels run on the CPU only"); }
  const char* name() const override { return Derived::NAME; }
  bool is_equivalent(const mx::Primitive& other) const override {
    return typeid(*this) == typeid(other) &&
           static_cast<const Derived&>(*this).parameters() == static_cast<const Derived&>(other).parameters();
  }
};

}  // namespace forerun
