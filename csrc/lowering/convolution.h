// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lowering/spatial.h"

namespace tpu::lowering {

// The geometry of  y[n, o, i] = sum_{c, j} x[n, c, i stride - padding + j dilation] w[o, c, j].
// x is [N, C, ...], w [O, C / groups, ...], y [N, O, ...]. One entry a spatial dimension.
struct ConvGeometry {
  Dims stride, padding, dilation;
  int64_t groups = 1;
};

// The three products of a convolution; bf16 and f16 give f32, yet to be rounded. The spatial sizes of the result are
// given.
Value convolve(Value x, Value w, const ConvGeometry& g, const Dims& out);
Value convolve_input_gradient(Value dy, Value w, const ConvGeometry& g, const Dims& in);
Value convolve_weight_gradient(Value dy, Value x, const ConvGeometry& g, const Dims& kernel);

inline Dims spatial_dims(Value x) { return sizes_from(x, 2); }

// hlo::convolution for element types that the target's convolution does not take.
Value convolution_by_sums(Value x, Value w, const ConvDims& dims, const ConvOptions& options);

}  // namespace tpu::lowering
