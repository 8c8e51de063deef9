// SPDX-License-Identifier: Apache-2.0
#include "lowering/resample.h"
#include "lowering/windows.h"

// Pooling whose windows follow from the output size, or from random samples, and unpooling.
namespace tpu::lowering {
namespace {

// ---- Adaptive: window o covers [floor(o in / out), ceil((o + 1) in / out)) ----------------------

int64_t window_start(int64_t o, int64_t in, int64_t out) { return o * in / out; }
int64_t window_end(int64_t o, int64_t in, int64_t out) { return ((o + 1) * in + out - 1) / out; }

Taps averages(int64_t in, int64_t out) {
  Taps taps{in, {}};
  for (int64_t o = 0; o < out; ++o) {
    const int64_t start = window_start(o, in, out), end = window_end(o, in, out);
    taps.rows.emplace_back();
    for (int64_t i = start; i < end; ++i) taps.rows.back().emplace_back(i, 1.0 / static_cast<double>(end - start));
  }
  return taps;
}

// Windows of one size, side by side, need no gather.
Value average_along(Value x, int64_t dim, int64_t out) {
  const int64_t in = x.dim(dim);
  if (in == out) return x;
  if (out == 0 || in % out != 0) return apply(averages(in, out), x, dim);
  Dims split = x.dims();
  split[at(dim)] = out;
  split.insert(split.begin() + dim + 1, in / out);
  return sum(reshape(x, split), dim + 1) / (static_cast<double>(in) / static_cast<double>(out));
}

Value spread_along(Value dy, int64_t dim, int64_t in) {
  const int64_t out = dy.dim(dim);
  if (in == out) return dy;
  if (out == 0 || in % out != 0) return apply(transposed(averages(in, out)), dy, dim);
  Dims split = dy.dims(), joined = dy.dims(), kept;
  split.insert(split.begin() + dim + 1, in / out);
  joined[at(dim)] = in;
  for (int64_t d = 0; d < dy.rank(); ++d) kept.push_back(d <= dim ? d : d + 1);
  return reshape(broadcast_in_dim(dy / (static_cast<double>(in) / static_cast<double>(out)), split, kept), joined);
}

TPU_LOWER({"_adaptive_avg_pool2d", "_adaptive_avg_pool3d"}, [](Value x, Dims size) {
  Value v = accumulate(x);
  const int64_t first = x.rank() - static_cast<int64_t>(size.size());
  for (size_t i = 0; i < size.size(); ++i) v = average_along(v, first + static_cast<int64_t>(i), size[i]);
  return convert(v, x.dtype());
});

Value adaptive_avg_backward(Value dy, Value x, int64_t n) {
  Value g = accumulate(dy);
  for (int64_t d = x.rank() - n; d < x.rank(); ++d) g = spread_along(g, d, x.dim(d));
  return convert(g, x.dtype());
}
TPU_LOWER("_adaptive_avg_pool2d_backward", [](Value dy, Value x) { return adaptive_avg_backward(dy, x, 2); });
TPU_LOWER("_adaptive_avg_pool3d_backward", [](Value dy, Value x) { return adaptive_avg_backward(dy, x, 3); });

// Windows of one size, side by side: plain max pooling.
std::optional<Windows> plain_windows(const Dims& in, const Dims& out, size_t n) {
  Dims kernel;
  for (size_t i = in.size() - n; i < in.size(); ++i) {
    if (out[i] == 0 || in[i] % out[i] != 0) return {};
    kernel.push_back(in[i] / out[i]);
  }
  return windows(n, in, out, kernel, kernel, Dims(n, 0), Dims(n, 1));
}

// A running maximum as CPU PyTorch takes it: the first of equals, the last NaN.
struct Running {
  Value best, index;
  void take(Value v, Value at_index) {
    if (best.node() == nullptr) {
      best = v, index = at_index;
      return;
    }
    Value wins = is_floating(v.dtype()) ? gt(v, best) | is_nan(v) : gt(v, best);
    best = select(wins, v, best);
    index = select(wins, at_index, index);
  }
};

// The j-th place of each window along one dimension; shorter windows repeat their last.
std::vector<int64_t> nth_places(int64_t in, int64_t out, int64_t j) {
  std::vector<int64_t> places;
  for (int64_t o = 0; o < out; ++o)
    places.push_back(std::min(window_start(o, in, out) + j, window_end(o, in, out) - 1));
  return places;
}

Values adaptive_max(Value x, const Dims& size, size_t n) {
  Dims out(x.dims().begin(), x.dims().end() - static_cast<int64_t>(n));
  out.insert(out.end(), size.begin(), size.end());
  if (numel(out) == 0) return {full(graph(), {x.dtype(), out}, 0), full(graph(), {S64, out}, 0)};
  if (const auto w = plain_windows(x.dims(), out, n)) {
    Extreme best = max_pool(x, *w, out);
    return {best.value, best.index};
  }
  Dims longest;
  for (size_t i = x.dims().size() - n; i < x.dims().size(); ++i) {
    longest.push_back(0);
    for (int64_t o = 0; o < out[i]; ++o) {
      longest.back() =
          std::max(longest.back(), window_end(o, x.dims()[i], out[i]) - window_start(o, x.dims()[i], out[i]));
    }
  }
  Running running;
  for (const Dims& place : places(longest)) {
    Value v = x, index = full(graph(), {S64, out}, 0);
    for (size_t i = 0; i < n; ++i) {
      const size_t d = x.dims().size() - n + i;
      Value along = constant(graph(), {S64, {out[d]}}, nth_places(x.dims()[d], out[d], place[i]));
      v = hlo::take(v, along, static_cast<int64_t>(d));
      index = index * x.dims()[d] + broadcast_along(along, out, static_cast<int64_t>(d));
    }
    running.take(v, index);
  }
  return {running.best, running.index};
}

Value adaptive_max_backward(Value dy, Value x, Value index, size_t n) {
  if (dy.numel() == 0) return zeros_like(x);
  const auto w = plain_windows(x.dims(), dy.dims(), n);
  Value dx = w ? max_pool_gradient(dy, x, index, *w) : scatter_to_plane(dy, index, x.dims(), n);
  return convert(dx, x.dtype());
}

TPU_LOWER("adaptive_max_pool2d", [](Value x, Dims size) { return adaptive_max(x, size, 2); });
TPU_LOWER("adaptive_max_pool3d", [](Value x, Dims size) { return adaptive_max(x, size, 3); });
TPU_LOWER("adaptive_max_pool2d_backward",
          [](Value dy, Value x, Value index) { return adaptive_max_backward(dy, x, index, 2); });
TPU_LOWER("adaptive_max_pool3d_backward",
          [](Value dy, Value x, Value index) { return adaptive_max_backward(dy, x, index, 3); });

// ---- Fractional: window o starts at int((o + u) a) - int(u a), a = (in - k) / (out - 1) ---------

// Starts of the windows along one dimension, [N, C, out]; `u` is [N, C].
Value fractional_starts(Value u, int64_t in, int64_t out, int64_t k) {
  const Dims dims{u.dim(0), u.dim(1), out};
  Value last = full(graph(), {S64, dims}, in - k);
  if (out == 1) return last;
  Value o = iota(graph(), {S64, dims}, 2);
  // Number by number in the samples' dtype, as on the CPU.
  Value sample = broadcast_in_dim(u, dims, {0, 1});
  const double exact = static_cast<double>(in - k) / static_cast<double>(out - 1);
  const double alpha =
      u.dtype() == F64 ? exact : static_cast<double>(static_cast<float>(in - k) / static_cast<float>(out - 1));
  Value start = convert((convert(o, u.dtype()) + sample) * alpha, S64) - convert(sample * alpha, S64);
  return where(eq(o, out - 1), last, start);
}

Values fractional_max(Value x, const Dims& kernel, const Dims& size, Value samples, size_t n) {
  Dims result(x.dims().begin(), x.dims().end() - static_cast<int64_t>(n));
  result.insert(result.end(), size.begin(), size.end());
  const DType t = x.dtype();
  if (numel(result) == 0) return {full(graph(), {t, result}, 0), full(graph(), {S64, result}, 0)};
  Dims dims = x.dims(), out = result;
  if (dims.size() == n + 1) {
    dims.insert(dims.begin(), 1);
    out.insert(out.begin(), 1);
  }
  x = reshape(x, dims);
  samples = accumulate(samples);
  // The samples of a plane stand in the order W, H, and T, H, W.
  std::vector<Value> starts;
  for (size_t i = 0; i < n; ++i) {
    Value u = select_dim(samples, 2, n == 2 ? 1 - static_cast<int64_t>(i) : static_cast<int64_t>(i));
    starts.push_back(fractional_starts(u, dims[i + 2], out[i + 2], kernel[i]));
  }
  Running running;
  for (const Dims& place : places(kernel)) {
    Value v = x, index = full(graph(), {S64, out}, 0);
    for (size_t i = 0; i < n; ++i) {
      const auto d = static_cast<int64_t>(i) + 2;
      Value along = starts[i] + place[i];
      Dims wanted = v.dims();
      wanted[i + 2] = out[i + 2];
      v = take_along(v, broadcast_in_dim(along, wanted, {0, 1, d}), d);
      index = index * dims[i + 2] + broadcast_in_dim(along, out, {0, 1, d});
    }
    running.take(v, index);
  }
  return {reshape(running.best, result), reshape(running.index, result)};
}

TPU_LOWER("fractional_max_pool2d",
          [](Value x, Dims kernel, Dims size, Value samples) { return fractional_max(x, kernel, size, samples, 2); });
TPU_LOWER("fractional_max_pool3d",
          [](Value x, Dims kernel, Dims size, Value samples) { return fractional_max(x, kernel, size, samples, 3); });
TPU_LOWER("fractional_max_pool2d_backward",
          [](Value dy, Value x, Unused, Unused, Value index) {
            return convert(scatter_to_plane(dy, index, x.dims(), 2), x.dtype());
          },
          {.no_meta = true});
TPU_LOWER("fractional_max_pool3d_backward",
          [](Value dy, Value x, Unused, Unused, Value index) {
            return convert(scatter_to_plane(dy, index, x.dims(), 3), x.dtype());
          },
          {.no_meta = true});

// ---- Unpooling: out.flat[plane, index] = x ------------------------------------------------------

Value unpool(Value x, Value index, const Dims& size) {
  const Dims& dims = result_type().dims;
  const int64_t plane = numel(size), rows = plane == 0 ? 0 : numel(dims) / plane;
  if (x.numel() == 0 || rows == 0) return full(graph(), {x.dtype(), dims}, 0);
  const int64_t each = x.numel() / rows;
  const ScatterDims where_to{.inserted_window_dims = {1},
                             .input_batching_dims = {0},
                             .scatter_indices_batching_dims = {0},
                             .scatter_dims_to_operand_dims = {1},
                             .index_vector_dim = 2};
  Value out = scatter(full(graph(), {x.dtype(), {rows, plane}}, 0), reshape(index, {rows, each}),
                      reshape(x, {rows, each}), where_to, [](Value, Value b) { return b; });
  return reshape(out, dims);
}
TPU_LOWER("max_unpool2d", [](Value x, Value index, Dims size) { return unpool(x, index, size); });
TPU_LOWER("max_unpool3d", [](Value x, Value index, Dims size, Unused, Unused) { return unpool(x, index, size); });

}  // namespace
}  // namespace tpu::lowering
