// SPDX-License-Identifier: Apache-2.0
#include "lowering/op.h"

namespace tpu::lowering {

TPU_LOWER("add.Tensor", [](Value a, Value b, Scale alpha) {
  const DType t = result_type().dtype;
  Value x = convert(a, t), y = convert(b, t);
  if (alpha.zero) y = y * 0;
  else if (!alpha.one) y = y * convert(alpha.value, t);
  return x + y;
}, {.host_scalars = true});

}  // namespace tpu::lowering
