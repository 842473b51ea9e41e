// The operations of the extension, as Python sees them. Each checks its arguments: errors reach the caller, not the evaluation.
#pragma once
#include <optional>

#include "primitive.h"

namespace forerun {

// x [..., width] float32, gain [width] float32: RMS norm of the last axis.
mx::array rms_norm(const mx::array& x, const mx::array& gain, float eps);

// (x + residual, its RMS norm), both in the shape of x.
std::pair<mx::array, mx::array> add_rms_norm(const mx::array& x, const mx::array& residual, const mx::array& gain, float eps);

// x [rows, 2 width] float32: silu of the first half times the second half, [rows, width].
mx::array swiglu(const mx::array& x);

}  // namespace forerun
