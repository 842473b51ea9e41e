#include "kernels.h"
#include "pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
namespace forerun {
namespace avx2 {
namespace {
#include "lanes_avx2.h"
#include "all_kernels.h"
constexpr Kernels KERNELS = table("avx2");
}  // namespace
}  // namespace avx2
const Kernels* const AVX2 = &avx2::KERNELS;
}  // namespace forerun
#else
namespace forerun {
const Kernels* const AVX2 = nullptr;
}
#endif
