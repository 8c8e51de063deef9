// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lowering/op.h"

namespace tpu::lowering {

// The product of two values of one dtype over the contracting dimensions -> batch, lhs free, rhs
// free, in the compute dtype (f32 for bf16 and f16), at the precision of the call. Operators that
// use it have Options.products.
Value product(Value a, Value b, DotDims dims);

// [..., m, k] x [..., k, n], batch dimensions equal; as product().
Value matmul(Value a, Value b);

// The last two dimensions exchanged, and conjugated where complex.
Value transposed(Value a);
Value adjoint(Value a);
Value conj(Value a);

}  // namespace tpu::lowering
