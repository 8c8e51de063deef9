// SPDX-License-Identifier: Apache-2.0
#include "lowering/convolution.h"
#include "lowering/promote.h"

namespace tpu::lowering {
namespace {

// Of a transposed convolution the roles of x and dy change places: its input gradient is a plain
// convolution of dy, its weight gradient that of the convolution that leads from dy to x.
TPU_LOWER("convolution_backward",
          [](Value dy, Value x, Value w, Unused, Dims stride, Dims padding, Dims dilation, bool transposed, Unused,
             int64_t groups, std::vector<bool> mask) {
            const size_t n = at(x.rank()) - 2;
            const ConvGeometry g{expanded(stride, n), expanded(padding, n), expanded(dilation, n), groups};
            Value dx, dw, db;
            if (mask[0]) {
              dx =
                  transposed ? convolve(dy, w, g, spatial_dims(x)) : convolve_input_gradient(dy, w, g, spatial_dims(x));
              dx = convert(dx, x.dtype());
            }
            if (mask[1]) {
              dw = transposed ? convolve_weight_gradient(x, dy, g, spatial_dims(w))
                              : convolve_weight_gradient(dy, x, g, spatial_dims(w));
              dw = convert(dw, w.dtype());
            }
            if (mask[2]) {
              Dims dims = all_dims(dy);
              dims.erase(dims.begin() + 1);
              db = convert(sum(accumulate(dy), dims), dy.dtype());
            }
            return Values{dx, dw, db};
          },
          {.products = true, .no_meta = true});

}  // namespace
}  // namespace tpu::lowering
