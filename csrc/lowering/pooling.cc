// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "lowering/promote.h"
#include "lowering/windows.h"

// Max and average pooling over the last two or three dimensions. Windows are walked as shifted,
// strided slices, which fuse; large ones as reduce_window. Gradients compare each place with the
// index its window chose: no scatter.
namespace tpu::lowering {
namespace {

// Flat offset in the input plane from a window's corner to `place`.
int64_t offset_of(const Windows& w, const Dims& place) {
  int64_t offset = 0;
  for (size_t i = 0; i < w.rank(); ++i) offset = offset * w.in[i] + place[i] * w.dilation[i];
  return offset;
}

// Flat index of each window's corner (which may lie in the padding), or of its first place inside.
Value corner(const Windows& w, const Dims& dims, bool inside) {
  Value flat = full(graph(), {S64, dims}, 0);
  for (size_t i = 0; i < w.rank(); ++i) {
    std::vector<int64_t> starts;
    for (int64_t o = 0; o < w.out[i]; ++o) {
      int64_t start = o * w.stride[i] - w.padding[i];
      while (inside && start < 0) start += w.dilation[i];
      starts.push_back(start);
    }
    Value along = constant(graph(), {S64, {w.out[i]}}, starts);
    flat = flat * w.in[i] + broadcast_along(along, dims, w.first + static_cast<int64_t>(i));
  }
  return flat;
}

// ---- Max ---------------------------------------------------------------------------------------

// CPU PyTorch walks the window in order and takes a value that is larger, or NaN: the first of
// equals, the last NaN.
Extreme max_by_places(Value x, const Windows& w, const Dims& dims) {
  Value padded = padded_for(x, w, lowest(graph(), x.dtype()));
  Value best = broadcast_to(lowest(graph(), x.dtype()), dims);
  Value base = corner(w, dims, false);
  Value offset = convert(corner(w, dims, true) - base, S32);  // half the width of the index
  for (const Dims& place : places(w.kernel)) {
    Value v = at_place(padded, w, place);
    Value wins = is_floating(x.dtype()) ? gt(v, best) | is_nan(v) : gt(v, best);
    best = select(wins, v, best);
    offset = where(wins, offset_of(w, place), offset);
  }
  return {best, base + convert(offset, S64)};
}

// The windows as StableHLO has them.
Window window_of(const Windows& w) {
  const Dims ones(at(w.first), 1);
  Window window{.dims = ones, .strides = ones, .window_dilations = ones, .padding = Padding(at(w.first), {0, 0})};
  for (size_t i = 0; i < w.rank(); ++i) {
    window.dims.push_back(w.kernel[i]);
    window.strides.push_back(w.stride[i]);
    window.window_dilations.push_back(w.dilation[i]);
    const int64_t reach = (w.out[i] - 1) * w.stride[i] + (w.kernel[i] - 1) * w.dilation[i] + 1;
    window.padding.emplace_back(w.padding[i], std::max<int64_t>(reach - w.in[i] - w.padding[i], 0));
  }
  return window;
}

Extreme max_by_window(Value x, const Windows& w) {
  Dims plane(w.in);
  Value index = reshape(iota(graph(), {S64, {numel(plane)}}, 0), plane);
  index = broadcast_to(index, x.dims());
  Values out = reduce_window({x, index}, {lowest(graph(), x.dtype()), highest(graph(), S64)}, window_of(w),
                             [&](const Values& a, const Values& b) {
                               Value first = gt(a[0], b[0]) | (eq(a[0], b[0]) & lt(a[1], b[1]));
                               if (is_floating(x.dtype())) {
                                 Value nan_a = is_nan(a[0]), number_b = !is_nan(b[0]);
                                 first = (first & number_b) | (nan_a & (number_b | gt(a[1], b[1])));
                               }
                               return Values{select(first, a[0], b[0]), select(first, a[1], b[1])};
                             });
  return {out[0], out[1]};
}

}  // namespace

Extreme max_pool(Value x, const Windows& w, const Dims& dims) {
  if (numel(dims) == 0) return {full(graph(), {x.dtype(), dims}, 0), full(graph(), {S64, dims}, 0)};
  Extreme best = w.count() <= kMostPlaces ? max_by_places(x, w, dims) : max_by_window(x, w);
  // In a larger program the index is often not needed: the value must stand without it.
  if (!call().target->walked_windows) {
    best.value =
        reduce_window(x, lowest(graph(), x.dtype()), window_of(w), [](Value a, Value b) { return maximum(a, b); });
  }
  return best;
}

namespace {

// Lays one value a window over the `stride` places that follow its corner, shifted on by `shift`
// strides: [.., out, ..] -> [.., in, ..]. The rest gets `rest`.
Value spread(Value v, const Windows& w, const Dims& shift, Literal rest) {
  Dims split, joined, kept;
  for (int64_t d = 0; d < v.rank(); ++d) {
    kept.push_back(static_cast<int64_t>(split.size()));
    split.push_back(v.dim(d));
    joined.push_back(v.dim(d));
    if (d < w.first) continue;
    split.push_back(w.stride[at(d - w.first)]);
    joined.back() *= split.back();
  }
  v = reshape(broadcast_in_dim(v, split, kept), joined);
  const Dims zeros(at(v.rank()), 0);
  Dims low = zeros, high = zeros;
  for (size_t i = 0; i < w.rank(); ++i) {
    const size_t d = at(w.first) + i;
    low[d] = shift[i] * w.stride[i] - w.padding[i];
    high[d] = w.in[i] - joined[d] - low[d];
  }
  return pad(v, scalar(graph(), v.dtype(), rest), low, high, zeros);
}

}  // namespace

// Adds up dy where a window chose this place.
Value max_pool_gradient(Value dy, Value x, Value index, const Windows& w) {
  const Dims& dims = x.dims();
  if (dy.numel() == 0) return full(graph(), {compute_dtype(dy.dtype()), dims}, 0);
  const bool dilated = std::any_of(w.dilation.begin(), w.dilation.end(), [](int64_t d) { return d != 1; });
  // A TPU has no select_and_scatter of 64-bit numbers.
  const bool wide = x.dtype() == F64 || x.dtype() == S64;
  if (!call().target->walked_windows && !dilated && !wide) {
    const DType t = compute_dtype(x.dtype());
    return select_and_scatter(
        convert(x, t), convert(dy, t), scalar(graph(), t, 0), window_of(w), [](Value a, Value b) { return ge(a, b); },
        [](Value a, Value b) { return a + b; });
  }
  if (numel(overlaps(w)) > kMostPlaces) return scatter_to_plane(dy, index, dims, w.rank());
  Value g = accumulate(dy);
  Value place = full(graph(), {S64, w.in}, 0);
  for (size_t i = 0; i < w.rank(); ++i) {
    place = place * w.in[i] + iota(graph(), {S64, w.in}, static_cast<int64_t>(i));
  }
  place = broadcast_to(place, dims);
  Value total;
  for (const Dims& shift : places(overlaps(w))) {
    Value part = where(eq(spread(index, w, shift, -1), place), spread(g, w, shift, 0), 0);
    total = total ? total + part : part;
  }
  return total;
}

namespace {

Values max_pool_any(size_t n, Value x, const Dims& kernel, const Dims& stride, const Dims& padding,
                    const Dims& dilation) {
  const Dims& out = result_type(0).dims;
  Extreme best = max_pool(x, windows(n, x.dims(), out, kernel, stride, padding, dilation), out);
  return {best.value, best.index};
}

Value max_pool_backward(size_t n, Value dy, Value x, const Dims& kernel, const Dims& stride, const Dims& padding,
                        const Dims& dilation, Value index) {
  const Windows w = windows(n, x.dims(), dy.dims(), kernel, stride, padding, dilation);
  return convert(max_pool_gradient(dy, x, index, w), x.dtype());
}

TPU_LOWER("max_pool2d_with_indices",
          [](Value x, Dims kernel, Dims stride, Dims padding, Dims dilation, [[maybe_unused]] bool ceil_mode) {
            return max_pool_any(2, x, kernel, stride, padding, dilation);
          });
TPU_LOWER("max_pool2d_with_indices_backward",
          [](Value dy, Value x, Dims kernel, Dims stride, Dims padding, Dims dilation, Unused, Value index) {
            return max_pool_backward(2, dy, x, kernel, stride, padding, dilation, index);
          });
TPU_LOWER("max_pool3d_with_indices",
          [](Value x, Dims kernel, Dims stride, Dims padding, Dims dilation, [[maybe_unused]] bool ceil_mode) {
            return max_pool_any(3, x, kernel, stride, padding, dilation);
          });
TPU_LOWER("max_pool3d_with_indices_backward",
          [](Value dy, Value x, Dims kernel, Dims stride, Dims padding, Dims dilation, Unused, Value index) {
            return max_pool_backward(3, dy, x, kernel, stride, padding, dilation, index);
          });

// ---- Average -----------------------------------------------------------------------------------

// Sums of windows along one dimension.
Value window_sum(Value x, const Windows& w, size_t i) {
  const int64_t d = w.first + static_cast<int64_t>(i), k = w.kernel[i], s = w.stride[i], out = w.out[i];
  const int64_t reach = (out - 1) * s + k;
  x = pad_dim(x, d, w.padding[i], reach - w.in[i] - w.padding[i]);
  if (out == 1 || s == k) {  // side by side: a reduction
    Dims split = x.dims();
    split[at(d)] = k;
    split.insert(split.begin() + d, out);
    return sum(reshape(x, split), d + 1);
  }
  if (k <= kMostPlaces) {
    Value total;
    for (int64_t j = 0; j < k; ++j) {
      Value v = slice_dim(x, d, j, j + (out - 1) * s + 1, s);
      total = total ? total + v : v;
    }
    return total;
  }
  const Dims ones(at(x.rank()), 1);
  Window window{.dims = ones, .strides = ones};
  window.dims[at(d)] = k;
  window.strides[at(d)] = s;
  return reduce_window(x, scalar(graph(), x.dtype(), 0), window, [](Value a, Value b) { return a + b; });
}

// The transpose of window_sum: every place gets the sum of the windows it belongs to.
Value window_spread(Value g, const Windows& w, size_t i) {
  const int64_t d = w.first + static_cast<int64_t>(i), k = w.kernel[i], s = w.stride[i], out = w.out[i],
                p = w.padding[i];
  if (out == 1 || s == k) {
    Dims split = g.dims(), joined = g.dims(), from;
    split.insert(split.begin() + d + 1, k);
    joined[at(d)] *= k;
    for (int64_t j = 0; j < g.rank(); ++j) from.push_back(j <= d ? j : j + 1);
    return pad_dim(reshape(broadcast_in_dim(g, split, from), joined), d, -p, w.in[i] - out * k + p);
  }
  if (k <= kMostPlaces) {
    Value total;
    for (int64_t j = 0; j < k; ++j) {
      Value v = pad_dim(g, d, j - p, w.in[i] - (j - p) - ((out - 1) * s + 1), 0, s - 1);
      total = total ? total + v : v;
    }
    return total;
  }
  const Dims ones(at(g.rank()), 1);
  Window window{.dims = ones, .base_dilations = ones, .padding = Padding(at(g.rank()), {0, 0})};
  window.dims[at(d)] = k;
  window.base_dilations[at(d)] = s;
  window.padding[at(d)] = {k - 1 - p, w.in[i] + p - ((out - 1) * s + 1)};
  return reduce_window(g, scalar(graph(), g.dtype(), 0), window, [](Value a, Value b) { return a + b; });
}

// How many places each window counts: a product of one factor a dimension.
Value divide_by_size(Value v, const Windows& w, bool count_include_pad, std::optional<int64_t> divisor) {
  const bool whole = is_integer(v.dtype());
  if (divisor) return v / *divisor;
  Value size = full(graph(), {v.dtype(), v.dims()}, 1);
  for (size_t i = 0; i < w.rank(); ++i) {
    std::vector<int64_t> sizes;
    for (int64_t o = 0; o < w.out[i]; ++o) {
      const int64_t start = o * w.stride[i] - w.padding[i], end = std::min(start + w.kernel[i], w.in[i] + w.padding[i]);
      sizes.push_back(count_include_pad ? end - start : std::min(end, w.in[i]) - std::max<int64_t>(start, 0));
    }
    Value along = convert(constant(graph(), {S64, {w.out[i]}}, sizes), v.dtype());
    size = size * broadcast_along(along, v.dims(), w.first + static_cast<int64_t>(i));
  }
  return whole ? v / maximum(size, 1) : v / size;
}

Value avg_pool(size_t n, Value x, const Dims& kernel, const Dims& stride, const Dims& padding, bool count_include_pad,
               std::optional<int64_t> divisor) {
  const Dims& out = result_type().dims;
  if (numel(out) == 0) return full(graph(), {x.dtype(), out}, 0);
  const Windows w = windows(n, x.dims(), out, kernel, stride, padding, {1});
  Value v = accumulate(x);
  for (size_t i = w.rank(); i-- > 0;) v = window_sum(v, w, i);
  return convert(divide_by_size(v, w, count_include_pad, divisor), x.dtype());
}

Value avg_pool_backward(size_t n, Value dy, Value x, const Dims& kernel, const Dims& stride, const Dims& padding,
                        bool count_include_pad, std::optional<int64_t> divisor) {
  if (dy.numel() == 0) return zeros_like(x);
  const Windows w = windows(n, x.dims(), dy.dims(), kernel, stride, padding, {1});
  Value g = divide_by_size(accumulate(dy), w, count_include_pad, divisor);
  for (size_t i = 0; i < w.rank(); ++i) g = window_spread(g, w, i);
  return convert(g, x.dtype());
}

TPU_LOWER("avg_pool2d", [](Value x, Dims kernel, Dims stride, Dims padding, [[maybe_unused]] bool ceil_mode,
                           bool count_include_pad, std::optional<int64_t> divisor) {
  return avg_pool(2, x, kernel, stride, padding, count_include_pad, divisor);
});
TPU_LOWER("avg_pool3d", [](Value x, Dims kernel, Dims stride, Dims padding, [[maybe_unused]] bool ceil_mode,
                           bool count_include_pad, std::optional<int64_t> divisor) {
  return avg_pool(3, x, kernel, stride, padding, count_include_pad, divisor);
});
TPU_LOWER("avg_pool2d_backward", [](Value dy, Value x, Dims kernel, Dims stride, Dims padding, Unused,
                                    bool count_include_pad, std::optional<int64_t> divisor) {
  return avg_pool_backward(2, dy, x, kernel, stride, padding, count_include_pad, divisor);
});
TPU_LOWER("avg_pool3d_backward", [](Value dy, Value x, Dims kernel, Dims stride, Dims padding, Unused,
                                    bool count_include_pad, std::optional<int64_t> divisor) {
  return avg_pool_backward(3, dy, x, kernel, stride, padding, count_include_pad, divisor);
});

}  // namespace
}  // namespace tpu::lowering
