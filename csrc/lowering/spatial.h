// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lowering/op.h"

// Small helpers of the operators that slide windows or resample: convolution, pooling, padding.
namespace tpu::lowering {

inline size_t at(int64_t i) { return static_cast<size_t>(i); }

// PyTorch lets one number stand for every spatial dimension.
inline Dims expanded(const Dims& dims, size_t rank) { return dims.size() == 1 ? Dims(rank, dims[0]) : dims; }

// Sizes of dimensions `first`, `first` + 1, ...
inline Dims sizes_from(Value x, int64_t first) { return {x.dims().begin() + first, x.dims().end()}; }

// [1, C, 1, ...]: how a vector of channels stands beside [N, C, ...].
inline Dims channel_dims(Value x) {
  Dims dims(at(x.rank()), 1);
  dims[1] = x.dim(1);
  return dims;
}

inline std::string join(const Dims& dims, const char* separator = ", ") {
  std::string out;
  for (size_t i = 0; i < dims.size(); ++i) out += (i == 0 ? "" : separator) + std::to_string(dims[i]);
  return out;
}

}  // namespace tpu::lowering
