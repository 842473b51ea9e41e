#include "kernels.h"
#include "pool.h"

#if defined(__aarch64__)
#include <arm_neon.h>
namespace forerun {
namespace neon {
namespace {
#include "lanes_neon.h"
#include "all_kernels.h"
constexpr Kernels KERNELS = table("neon");
}  // namespace
}  // namespace neon
const Kernels* const NEON = &neon::KERNELS;
}  // namespace forerun
#else
namespace forerun {
const Kernels* const NEON = nullptr;
}
#endif
