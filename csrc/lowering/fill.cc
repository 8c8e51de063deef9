// SPDX-License-Identifier: Apache-2.0
#include "lowering/promote.h"

namespace tpu::lowering {

TPU_LOWER({"fill.Scalar", "fill.Tensor"},
          [](Value self, Value value) { return broadcast_to(cast(value, self.dtype()), self.dims()); },
          {.host_scalars = true, .check = check_fits, .overlap_ok = true});

TPU_LOWER("zero", [](Value self) { return zeros_like(self); }, {.overlap_ok = true});

}  // namespace tpu::lowering
