// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "lowering/op.h"

namespace tpu::lowering {

// torch.promote_types.
DType promote_types(DType a, DType b);

// torch.result_type of the operands of one call: tensors with dimensions rule, then rank-0 tensors,
// then Python numbers (is_weak, and `number`), each only where it is of a higher category.
DType common_dtype(const std::vector<Value>& operands, std::optional<Literal> number = std::nullopt);

// The dtype PyTorch computes this one in: F32 for BF16, F16 and F8, else itself.
DType compute_dtype(DType t);

// bf16, f16, f8 -> f32: what CPU PyTorch accumulates and computes in.
Value accumulate(Value x);

// PyTorch's conversion between dtypes, as `x.to(dtype)`: floats truncate to integers and wrap, NaN
// is true, complex drops the imaginary part.
Value cast(Value x, DType t);

// The dtype a Python number has on its own: PRED, S64, F32 or C64.
DType number_dtype(const Literal& number);

// Options.check of operators that store Scalars in the first tensor's dtype: throws, as CPU PyTorch,
// for those it can't hold. Negative numbers may wrap in unsigned types.
void check_fits(DType t, const std::vector<Literal>& numbers);

// Integers and PRED become the default float type, the rest stays: IntToFloat promotion.
DType int_to_float(DType t);

// PyTorch's name of a dtype in its messages: "Float", "Long".
const char* torch_name(DType t);

}  // namespace tpu::lowering
