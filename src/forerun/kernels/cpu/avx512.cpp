#include "kernels.h"
#include "pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
namespace forerun {
namespace avx512 {
namespace {
#include "lanes_avx512.h"
#include "all_kernels.h"
constexpr Kernels KERNELS = table("avx512");
}  // namespace
}  // namespace avx512
const Kernels* const AVX512 = &avx512::KERNELS;
}  // namespace forerun
#else
namespace forerun {
const Kernels* const AVX512 = nullptr;
}
#endif
