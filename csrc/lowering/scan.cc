// SPDX-License-Identifier: Apache-2.0
#include "lowering/reduction.h"

namespace tpu::lowering {
namespace {

// Converted to the result's dtype first, as PyTorch does; a 0-d tensor is its own scan.
Value scan(Value x, Dim dim, Scan kind) {
  Value a = accumulate(cast(x, result_type().dtype));
  if (x.rank() > 0) a = cumulative(a, dim, kind);
  return convert(a, result_type().dtype);
}

}  // namespace

TPU_LOWER("cumsum", [](Value x, Dim dim, std::optional<DType>) { return scan(x, dim, Scan::Sum); });
TPU_LOWER("cumprod", [](Value x, Dim dim, std::optional<DType>) { return scan(x, dim, Scan::Product); });

}  // namespace tpu::lowering
