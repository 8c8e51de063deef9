// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "lowering/promote.h"
#include "lowering/spatial.h"

// Windows that slide over the last dimensions: what pooling and im2col share.
namespace tpu::lowering {

// Windows over the last dimensions of an input, one entry each.
struct Windows {
  Dims kernel, stride, padding, dilation, in, out;
  int64_t first = 0;  // dimension of the input that kernel[0] slides over
  size_t rank() const { return kernel.size(); }
  int64_t count() const { return numel(kernel); }
};

// Unrolled up to this many window places; beyond, reduce_window and scatter.
constexpr int64_t kMostPlaces = 64;

inline Windows windows(size_t n, const Dims& in, const Dims& out, const Dims& kernel, const Dims& stride,
                       const Dims& padding, const Dims& dilation) {
  Windows w;
  w.kernel = expanded(kernel, n);
  w.stride = stride.empty() ? w.kernel : expanded(stride, n);
  w.padding = expanded(padding, n);
  w.dilation = expanded(dilation, n);
  w.first = static_cast<int64_t>(in.size() - n);
  w.in = {in.begin() + w.first, in.end()};
  w.out = {out.begin() + w.first, out.end()};
  return w;
}

// All places of a window, row-major.
inline std::vector<Dims> places(const Dims& kernel) {
  std::vector<Dims> out{{}};
  for (int64_t k : kernel) {
    std::vector<Dims> longer;
    for (const Dims& p : out) {
      for (int64_t j = 0; j < k; ++j) {
        longer.push_back(p);
        longer.back().push_back(j);
      }
    }
    out = std::move(longer);
  }
  return out;
}

// Padded so that every window lies inside, cropped where none reaches.
inline Value padded_for(Value x, const Windows& w, Value padding_value) {
  const Dims zeros(at(x.rank()), 0);
  Dims low = zeros, high = zeros;
  for (size_t i = 0; i < w.rank(); ++i) {
    const size_t d = at(w.first) + i;
    const int64_t reach = (w.out[i] - 1) * w.stride[i] + (w.kernel[i] - 1) * w.dilation[i] + 1;
    low[d] = w.padding[i];
    high[d] = reach - w.in[i] - low[d];
  }
  return pad(x, padding_value, low, high, zeros);
}

// What stands at `place` of each window: the output's shape.
inline Value at_place(Value padded, const Windows& w, const Dims& place) {
  Dims starts(at(padded.rank()), 0), limits = padded.dims(), strides(at(padded.rank()), 1);
  for (size_t i = 0; i < w.rank(); ++i) {
    const size_t d = at(w.first) + i;
    starts[d] = place[i] * w.dilation[i];
    limits[d] = starts[d] + (w.out[i] - 1) * w.stride[i] + 1;
    strides[d] = w.stride[i];
  }
  return slice(padded, starts, limits, strides);
}

// How many strides a window reaches over: one entry a dimension.
inline Dims overlaps(const Windows& w) {
  Dims out;
  for (size_t i = 0; i < w.rank(); ++i) {
    const int64_t reach = (w.kernel[i] - 1) * w.dilation[i] + 1;
    out.push_back((reach + w.stride[i] - 1) / w.stride[i]);
  }
  return out;
}

// Max pooling and its gradient in pooling.cc; `index` is flat in the input's plane.
Extreme max_pool(Value x, const Windows& w, const Dims& dims);
Value max_pool_gradient(Value dy, Value x, Value index, const Windows& w);

// dx.flat[plane, index] += dy; the plane is the last n dimensions.
inline Value scatter_to_plane(Value dy, Value index, const Dims& dims, size_t n) {
  const auto first = static_cast<int64_t>(dims.size() - n);
  const Dims plane(dims.begin() + first, dims.end()), outer(dims.begin(), dims.begin() + first);
  const int64_t rows = numel(outer), size = numel(plane), each = dy.numel() / std::max<int64_t>(rows, 1);
  Value g = accumulate(dy);
  ScatterDims dimensions{.inserted_window_dims = {1},
                         .input_batching_dims = {0},
                         .scatter_indices_batching_dims = {0},
                         .scatter_dims_to_operand_dims = {1},
                         .index_vector_dim = 2};
  Value out = scatter(full(graph(), {g.dtype(), {rows, size}}, 0), reshape(index, {rows, each}),
                      reshape(g, {rows, each}), dimensions, [](Value a, Value b) { return a + b; });
  return reshape(out, dims);
}

}  // namespace tpu::lowering
