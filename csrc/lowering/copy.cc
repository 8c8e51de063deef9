// SPDX-License-Identifier: Apache-2.0
#include "lowering/promote.h"

namespace tpu::lowering {

// The views of both sides are read and written by the kernel; what is left is the conversion.
TPU_LOWER("tpu::copy_", [](Value self, Value src) { return cast(broadcast_to(src, self.dims()), self.dtype()); },
          {.host_scalars = true, .no_meta = true});

}  // namespace tpu::lowering
