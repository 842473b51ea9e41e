#include "kernels.h"
#include "pool.h"

namespace forerun {
namespace portable {
namespace {
#include "lanes_portable.h"
#include "all_kernels.h"
constexpr Kernels KERNELS = table("portable");
}  // namespace
}  // namespace portable
const Kernels* const PORTABLE = &portable::KERNELS;
}  // namespace forerun
