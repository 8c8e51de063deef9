// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "lowering/promote.h"
#include "lowering/resample.h"
#include "lowering/windows.h"

// Padding with a value or from the border, and the unfolding of windows into columns.
namespace tpu::lowering {
namespace {

// `padding` is (low, high) of the last dimension, then of the one before, ...
TPU_LOWER("constant_pad_nd",
          [](Value x, Dims padding, Value value) {
            TPU_CHECK(padding.size() % 2 == 0, "Length of pad must be even but instead it equals ", padding.size());
            TPU_CHECK(
                x.rank() * 2 >= static_cast<int64_t>(padding.size()),
                "Length of pad should be no more than twice the number of dimensions of the input. Pad length is ",
                padding.size(), "while the input has ", x.rank(), "dimensions.");
            const Dims zeros(at(x.rank()), 0);
            Dims low = zeros, high = zeros;
            for (size_t i = 0; i < padding.size() / 2; ++i) {
              const size_t d = at(x.rank()) - 1 - i;
              low[d] = padding[2 * i];
              high[d] = padding[2 * i + 1];
              TPU_CHECK(x.dims()[d] + low[d] + high[d] >= 0, "The input size ", x.dims()[d], ", plus negative padding ",
                        low[d], " and ", high[d],
                        " resulted in a negative output size, which is invalid. Check dimension ", d,
                        " of your input.");
            }
            return pad(x, cast(value, x.dtype()), low, high, zeros);
          },
          {.no_meta = true});

enum class Border { Reflect, Replicate };

Taps border_taps(Border border, int64_t in, int64_t low, int64_t high) {
  Taps taps{in, {}};
  for (int64_t o = 0; o < in + low + high; ++o) {
    int64_t i = o - low;
    if (border == Border::Replicate) {
      i = std::clamp<int64_t>(i, 0, in - 1);
    } else {
      if (i < 0) i = -i;
      if (i >= in) i = 2 * (in - 1) - i;
    }
    taps.rows.push_back({{i, 1.0}});
  }
  return taps;
}

Value border_pad(Value x, const Dims& padding, Border border) {
  for (size_t i = 0; i < padding.size() / 2; ++i) {
    const int64_t d = x.rank() - 1 - static_cast<int64_t>(i);
    x = apply(border_taps(border, x.dim(d), padding[2 * i], padding[2 * i + 1]), x, d);
  }
  return x;
}

Value border_pad_backward(Value dy, Value x, const Dims& padding, Border border) {
  Value g = accumulate(dy);
  for (size_t i = 0; i < padding.size() / 2; ++i) {
    const int64_t d = x.rank() - 1 - static_cast<int64_t>(i);
    g = apply(transposed(border_taps(border, x.dim(d), padding[2 * i], padding[2 * i + 1])), g, d);
  }
  return convert(g, x.dtype());
}

TPU_LOWER({"reflection_pad1d", "reflection_pad2d", "reflection_pad3d"},
          [](Value x, Dims padding) { return border_pad(x, padding, Border::Reflect); });
TPU_LOWER({"replication_pad1d", "replication_pad2d", "replication_pad3d"},
          [](Value x, Dims padding) { return border_pad(x, padding, Border::Replicate); });
TPU_LOWER({"reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward"},
          [](Value dy, Value x, Dims padding) { return border_pad_backward(dy, x, padding, Border::Reflect); });
TPU_LOWER({"replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward"},
          [](Value dy, Value x, Dims padding) { return border_pad_backward(dy, x, padding, Border::Replicate); });

// ---- Columns: [N, C, H, W] <-> [N, C kh kw, L] ---------------------------------------------------

Dims steps(const Dims& in, const Dims& kernel, const Dims& dilation, const Dims& padding, const Dims& stride) {
  Dims out;
  for (size_t i = 0; i < 2; ++i) {
    out.push_back((in[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) / stride[i] + 1);
  }
  return out;
}

TPU_LOWER("im2col", [](Value x, Dims kernel, Dims dilation, Dims padding, Dims stride) {
  const Dims& result = result_type().dims;
  const Dims in = sizes_from(x, x.rank() - 2), out = steps(in, kernel, dilation, padding, stride);
  const int64_t c = x.dim(x.rank() - 3), n = x.rank() == 4 ? x.dim(0) : 1;
  if (numel(result) == 0) return full(graph(), {x.dtype(), result}, 0);
  const Windows w = windows(2, {n, c, in[0], in[1]}, {n, c, out[0], out[1]}, kernel, stride, padding, dilation);
  Value padded = padded_for(reshape(x, {n, c, in[0], in[1]}), w, scalar(graph(), x.dtype(), 0));
  Values columns;
  for (const Dims& place : places(kernel)) columns.push_back(at_place(padded, w, place));
  return reshape(stack(columns, 2), result);
});

TPU_LOWER("col2im", [](Value x, Dims size, Dims kernel, Dims dilation, Dims padding, Dims stride) {
  const Dims& result = result_type().dims;
  const Dims out = steps(size, kernel, dilation, padding, stride);
  const int64_t k = numel(kernel), c = x.dim(x.rank() - 2) / k, n = x.rank() == 3 ? x.dim(0) : 1;
  if (x.numel() == 0) return full(graph(), {x.dtype(), result}, 0);
  Value columns = reshape(accumulate(x), {n, c, k, out[0], out[1]});
  Value zero = scalar(graph(), columns.dtype(), 0), total;
  int64_t j = 0;
  for (const Dims& place : places(kernel)) {
    Dims low{0, 0}, high{0, 0}, interior{0, 0};
    for (size_t i = 0; i < 2; ++i) {
      low.push_back(place[i] * dilation[i] - padding[i]);
      interior.push_back(stride[i] - 1);
      high.push_back(size[i] - low.back() - ((out[i] - 1) * stride[i] + 1));
    }
    Value v = pad(select_dim(columns, 2, j++), zero, low, high, interior);
    total = total ? total + v : v;
  }
  return convert(reshape(total, result), x.dtype());
});

}  // namespace
}  // namespace tpu::lowering
