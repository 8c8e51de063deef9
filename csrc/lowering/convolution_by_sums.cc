// SPDX-License-Identifier: Apache-2.0
#include "lowering/convolution.h"
#include "lowering/promote.h"
#include "lowering/spatial.h"

namespace tpu::lowering {

// y[b, o, p] = sum over places k and channels c of x[b, c, s p + k] w[o, c, k]: a product and a sum for each place.
Value convolution_by_sums(Value x, Value w, const ConvDims& d, const ConvOptions& o) {
  TPU_CHECK(o.batch_groups == 1, "a convolution in groups of the batch needs a floating dtype");
  const size_t n = d.input_spatial.size();
  const auto arranged = [](Value v, int64_t first, int64_t second, const Dims& rest) {
    Dims order{first, second};
    order.insert(order.end(), rest.begin(), rest.end());
    return transpose(v, order);
  };
  x = arranged(x, d.input_batch, d.input_feature, d.input_spatial);
  w = arranged(w, d.kernel_output_feature, d.kernel_input_feature, d.kernel_spatial);
  const auto entry = [](const Dims& list, size_t i) { return list.empty() ? 1 : list[i]; };
  Dims low(n + 2, 0), high(n + 2, 0), inner(n + 2, 0), out, kernel;
  Dims reversed;
  for (size_t i = 0; i < n; ++i) {
    if (!o.padding.empty()) std::tie(low[i + 2], high[i + 2]) = o.padding[i];
    inner[i + 2] = entry(o.lhs_dilation, i) - 1;
    kernel.push_back(w.dim(static_cast<int64_t>(i) + 2));
    if (!o.reversal.empty() && o.reversal[i]) reversed.push_back(static_cast<int64_t>(i) + 2);
  }
  if (!reversed.empty()) w = reverse(w, reversed);
  x = pad(x, scalar(graph(), x.dtype(), 0), low, high, inner);
  for (size_t i = 0; i < n; ++i) {
    const int64_t reach = (kernel[i] - 1) * entry(o.rhs_dilation, i);
    out.push_back((x.dim(static_cast<int64_t>(i) + 2) - reach - 1) / entry(o.strides, i) + 1);
  }
  const int64_t groups = o.feature_groups, batch = x.dim(0), channels = x.dim(1) / groups, each = w.dim(0) / groups;
  Value total;
  for (int64_t k = 0; k < numel(kernel); ++k) {
    Dims from{0, 0}, to{x.dim(0), x.dim(1)}, step{1, 1}, w_from{0, 0}, w_to{w.dim(0), w.dim(1)};
    int64_t rest = k;
    Dims place(n);
    for (size_t i = n; i-- > 0; rest /= kernel[i]) place[i] = rest % kernel[i];
    for (size_t i = 0; i < n; ++i) {
      const int64_t start = place[i] * entry(o.rhs_dilation, i), stride = entry(o.strides, i);
      from.push_back(start);
      to.push_back(start + (out[i] - 1) * stride + 1);
      step.push_back(stride);
      w_from.push_back(place[i]);
      w_to.push_back(place[i] + 1);
    }
    Dims x_shape{batch, groups, 1, channels}, w_shape{1, groups, each, channels};
    x_shape.insert(x_shape.end(), out.begin(), out.end());
    w_shape.insert(w_shape.end(), n, 1);
    Value part =
        sum(reshape(slice(x, from, to, step), x_shape) * reshape(slice(w, w_from, w_to, Dims(n + 2, 1)), w_shape), 3);
    total = total ? total + part : part;
  }
  Dims shape{batch, groups * each};
  shape.insert(shape.end(), out.begin(), out.end());
  total = reshape(total, shape);
  Dims back(n + 2);
  back[static_cast<size_t>(d.output_batch)] = 0;
  back[static_cast<size_t>(d.output_feature)] = 1;
  for (size_t i = 0; i < n; ++i) back[static_cast<size_t>(d.output_spatial[i])] = static_cast<int64_t>(i) + 2;
  return transpose(total, back);
}

}  // namespace tpu::lowering
