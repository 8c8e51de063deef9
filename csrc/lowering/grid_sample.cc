// SPDX-License-Identifier: Apache-2.0
#include "lowering/promote.h"
#include "lowering/spatial.h"

// Sampling of an image at places that a grid names, and its gradients. A sample mixes the corners
// around its place, 2^n for linear, 4^n for cubic, 1 for nearest: one gather and one scatter of all.
namespace tpu::lowering {
namespace {

enum Interpolation { kLinear, kNearest, kCubic };
enum Padding { kZeros, kBorder, kReflection };

// A coordinate with its slope with respect to the grid's number.
struct Coordinate {
  Value at, slope;
};

// [-1, 1] -> pixels
Coordinate unnormalized(Value g, int64_t size, bool align) {
  const double factor = (align ? static_cast<double>(size - 1) : static_cast<double>(size)) / 2;
  Value at = align ? (g + 1) * factor : ((g + 1) * static_cast<double>(size) - 1) / 2;
  return {at, like(g, factor)};
}

// Outside of [low, high]: the nearest border, without slope.
Coordinate clipped(Coordinate c, int64_t size) {
  const auto high = static_cast<double>(size - 1);
  Value inside = gt(c.at, 0) & lt(c.at, high);
  // NaN goes to 0, as in CPU PyTorch's comparisons.
  Value at = where(gt(c.at, 0), where(lt(c.at, high), c.at, high), 0);
  return {at, where(inside, c.slope, 0)};
}

Coordinate reflected(Coordinate c, int64_t size, bool align) {
  const double low = align ? 0 : -0.5, span = align ? static_cast<double>(size - 1) : static_cast<double>(size);
  if (span == 0) return {c.at * 0, c.slope * 0};
  Value from_low = c.at - low, distance = abs(from_low);
  Value extra = distance % span, flips = floor(distance / span);
  Value even = eq(flips % 2, 0);
  Value at = where(even, extra + low, span - extra + low);
  Value sign = where(lt(from_low, 0), like(at, -1), 1) * where(even, like(at, 1), -1);
  return {at, c.slope * sign};
}

Coordinate bounded(Coordinate c, int64_t size, int64_t padding, bool align) {
  if (padding == kBorder) return clipped(c, size);
  if (padding == kReflection) return clipped(reflected(c, size, align), size);
  return c;
}

// One of the places a sample mixes, along one dimension: its weight and the weight's slope.
struct Corner {
  Value index, weight, slope;
};

// Cubic convolution, a = -0.75: weights and slopes at distances t + 1, t, 1 - t, 2 - t.
std::vector<std::pair<Value, Value>> cubic(Value t) {
  constexpr double a = -0.75;
  const auto near = [&](Value x, double sign) {
    return std::pair{((a + 2) * x - (a + 3)) * x * x + 1, sign * ((3 * (a + 2) * x - 2 * (a + 3)) * x)};
  };
  const auto far = [&](Value x, double sign) {
    return std::pair{((a * x - 5 * a) * x + 8 * a) * x - 4 * a, sign * ((3 * a * x - 10 * a) * x + 8 * a)};
  };
  return {far(t + 1, 1), near(t, 1), near(1 - t, -1), far(2 - t, -1)};
}

std::vector<Corner> corners(Value g, int64_t size, int64_t mode, int64_t padding, bool align) {
  Coordinate c = unnormalized(g, size, align);
  if (mode == kCubic) {
    Value floored = floor(c.at);
    const auto weights = cubic(c.at - floored);
    std::vector<Corner> out;
    for (size_t j = 0; j < 4; ++j) {
      Coordinate place = bounded({floored + (static_cast<double>(j) - 1), c.slope}, size, padding, align);
      out.push_back({place.at, weights[j].first, weights[j].second * c.slope});
    }
    return out;
  }
  c = bounded(c, size, padding, align);
  if (mode == kNearest) return {{round_even(c.at), like(g, 1), zeros_like(g)}};
  Value floored = floor(c.at), t = c.at - floored;
  return {{floored, 1 - t, -c.slope}, {floored + 1, t, c.slope}};
}

// Everything about one call: x as [N, C, plane], the grid as [N, P], the corners of each dimension.
struct Sampler {
  int64_t n, c, points;
  Dims plane;
  std::vector<std::vector<Corner>> along;  // by dimension of the plane

  Sampler(Value x, Value grid, int64_t mode, int64_t padding, bool align)
      : n(x.dim(0)),
        c(x.dim(1)),
        points(grid.numel() / std::max<int64_t>(1, n * (x.rank() - 2))),
        plane(sizes_from(x, 2)) {
    const auto d = static_cast<int64_t>(plane.size());
    Value places = reshape(accumulate(grid), {n, points, d});
    // The grid names the last dimension first.
    for (int64_t i = 0; i < d; ++i)
      along.push_back(corners(select_dim(places, 2, d - 1 - i), plane[static_cast<size_t>(i)], mode, padding, align));
  }

  struct Mixed {
    Value index, inside;     // [N, P], flat in the plane
    Values weights, slopes;  // a dimension each
    Value weight() const {
      Value w = weights[0];
      for (size_t i = 1; i < weights.size(); ++i) w = w * weights[i];
      return w;
    }
    Value slope(size_t dim) const {
      Value w = slopes[dim];
      for (size_t i = 0; i < weights.size(); ++i)
        if (i != dim) w = w * weights[i];
      return w;
    }
  };

  std::vector<Mixed> mixed() const {
    std::vector<Mixed> all{{full(graph(), {S64, {n, points}}, 0), full(graph(), {PRED, {n, points}}, true), {}, {}}};
    for (size_t i = 0; i < along.size(); ++i) {
      std::vector<Mixed> longer;
      for (const Mixed& m : all) {
        for (const Corner& corner : along[i]) {
          Mixed next = m;
          next.inside = next.inside & ge(corner.index, 0) & le(corner.index, static_cast<double>(plane[i] - 1));
          Value index = convert(clip(corner.index, 0, static_cast<double>(plane[i] - 1)), S64);
          next.index = next.index * plane[i] + index;
          next.weights.push_back(corner.weight);
          next.slopes.push_back(corner.slope);
          longer.push_back(std::move(next));
        }
      }
      all = std::move(longer);
    }
    return all;
  }
};

// The corners side by side, K of them: index and inside are [N, K P], weights [N, 1, K, P].
struct Corners {
  Value index, inside, weight;
  Values slopes;  // a dimension each, [N, K, P]

  Corners(const Sampler& s, bool with_slopes) {
    const auto all = s.mixed();
    const Dims flat{s.n, static_cast<int64_t>(all.size()) * s.points};
    Values indices, insides, weights;
    for (const auto& m : all) {
      indices.push_back(m.index);
      insides.push_back(m.inside);
      weights.push_back(m.weight());
    }
    inside = reshape(stack(insides, 1), flat);
    index = where(inside, reshape(stack(indices, 1), flat), 0);
    weight = expand_dims(stack(weights, 1), 1);
    for (size_t i = 0; with_slopes && i < s.plane.size(); ++i) {
      Values parts;
      for (const auto& m : all) parts.push_back(m.slope(i));
      slopes.push_back(stack(parts, 1));
    }
  }
};

// x[n, c, index[n, k, p]], zero outside: [N, C, K, P]
Value pick(Value flat, const Sampler& s, const Corners& k) {
  const GatherDims dims{.offset_dims = {1},
                        .collapsed_slice_dims = {2},
                        .operand_batching_dims = {0},
                        .start_indices_batching_dims = {0},
                        .start_index_map = {2},
                        .index_vector_dim = 2};
  Value v = gather(flat, k.index, dims, {1, s.c, 1});
  return reshape(where(expand_dims(k.inside, 1), v, 0), {s.n, s.c, k.weight.dim(2), s.points});
}

Value sample(Value x, Value grid, int64_t mode, int64_t padding, bool align) {
  const Dims& out = result_type().dims;
  if (numel(out) == 0) return full(graph(), {x.dtype(), out}, 0);
  const Sampler s(x, grid, mode, padding, align);
  const Corners k(s, false);
  Value flat = reshape(accumulate(x), {s.n, s.c, numel(s.plane)});
  return convert(reshape(sum(pick(flat, s, k) * k.weight, 2), out), x.dtype());
}

// dx[n, c, index] += dy weight;  dgrid = sum_c dy x slope
Values sample_backward(Value dy, Value x, Value grid, int64_t mode, int64_t padding, bool align,
                       const std::vector<bool>& mask) {
  if (dy.numel() == 0 || x.numel() == 0)
    return {mask[0] ? zeros_like(x) : Value(), mask[1] ? zeros_like(grid) : Value()};
  const Sampler s(x, grid, mode, padding, align);
  const Corners k(s, mask[1]);
  Value flat = reshape(accumulate(x), {s.n, s.c, numel(s.plane)});
  Value g = reshape(accumulate(dy), {s.n, s.c, 1, s.points});
  Values out(2);
  if (mask[0]) {
    const ScatterDims to{.update_window_dims = {1},
                         .inserted_window_dims = {2},
                         .input_batching_dims = {0},
                         .scatter_indices_batching_dims = {0},
                         .scatter_dims_to_operand_dims = {2},
                         .index_vector_dim = 2};
    Value part = reshape(g * k.weight, {s.n, s.c, k.index.dim(1)});
    part = where(expand_dims(k.inside, 1), part, 0);
    Value dx = scatter(zeros_like(flat), k.index, part, to, [](Value a, Value b) { return a + b; });
    out[0] = convert(reshape(dx, x.dims()), x.dtype());
  }
  if (mask[1]) {
    Value along = sum(g * pick(flat, s, k), 1);
    Values parts;
    for (size_t i = s.plane.size(); i-- > 0;) parts.push_back(sum(along * k.slopes[i], 1));
    out[1] = convert(reshape(stack(parts, 2), grid.dims()), grid.dtype());
  }
  return out;
}

TPU_LOWER({"grid_sampler_2d", "grid_sampler_3d"}, sample);
TPU_LOWER({"grid_sampler_2d_backward", "grid_sampler_3d_backward"},
          [](Value dy, Value x, Value grid, int64_t mode, int64_t padding, bool align, std::vector<bool> mask) {
            return sample_backward(dy, x, grid, mode, padding, align, mask);
          },
          {.loose_meta = true});

}  // namespace
}  // namespace tpu::lowering
