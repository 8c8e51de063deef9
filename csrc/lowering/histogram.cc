// SPDX-License-Identifier: Apache-2.0
// histogram, histogramdd: counts of points in boxes between edges. The last edge belongs to the last box.
#include <numeric>

#include "lowering/indexing.h"
#include "lowering/reduction.h"
#include "lowering/series.h"

namespace tpu::lowering {
namespace {

using Range = std::optional<std::vector<double>>;

// The places of the points [n, d] in a flattened histogram; its size for points outside.
Value boxes(Value points, const Values& edges, const Dims& bins) {
  const int64_t total = numel(bins), n = points.dim(0);
  Value at = full(graph(), {S32, {n}}, 0), outside = full(graph(), {PRED, {n}}, false);
  for (size_t d = 0; d < edges.size(); ++d) {
    Value x = select_dim(points, 1, static_cast<int64_t>(d)), e = edges[d];
    Value first = select_dim(e, 0, 0), last = select_dim(e, 0, bins[d]);
    outside = outside | !(ge(x, first) & le(x, last));  // NaN lies outside
    Value place = minimum(maximum(search_sorted(e, x, true) - 1, 0), bins[d] - 1);
    at = at * bins[d] + place;
  }
  return where(outside, total, at);
}

Value counted(Value points, const Values& edges, const std::optional<Value>& weight, bool density) {
  Dims bins;
  for (Value e : edges) bins.push_back(e.dim(0) - 1);
  const DType t = points.dtype();
  Value w = weight ? reshape(convert(*weight, t), {points.dim(0)}) : full(graph(), {t, {points.dim(0)}}, 1);
  Value flat = scatter_rows(full(graph(), {t, {numel(bins)}}, 0), boxes(points, edges, bins), w, 0,
                            [](Value a, Value b) { return a + b; });
  Value histogram = reshape(flat, bins);
  if (!density) return histogram;
  histogram = histogram / sum(histogram, all_dims(histogram));
  for (size_t d = 0; d < edges.size(); ++d) {
    Value width = slice_dim(edges[d], 0, 1, bins[d] + 1) - slice_dim(edges[d], 0, 0, bins[d]);
    histogram = histogram / broadcast_along(width, bins, static_cast<int64_t>(d));
  }
  return histogram;
}

// Edges of equal boxes over the range given, or that of the points; one of no width grows by 1/2 either way.
Values equal_edges(Value points, const Dims& bins, const Range& range, const char* name) {
  const auto dims = static_cast<int64_t>(bins.size());
  TPU_CHECK(points.dim(1) == dims, name, "(): The number of bin counts, ", dims,
            ", must be the size of the innermost dimension, ", points.dim(1));
  TPU_CHECK(!range || static_cast<int64_t>(range->size()) == 2 * dims, name, "(): for a ", dims,
            "-dimensional histogram range should have ", 2 * dims, " elements, but got ", range ? range->size() : 0);
  Values edges;
  for (int64_t d = 0; d < dims; ++d) {
    const auto i = static_cast<size_t>(d);
    TPU_CHECK(bins[i] > 0, name, "(): bins must be > 0, but got ", bins[i], " for dimension ", d);
    Value low, high;
    const Type one{points.dtype(), {}};
    if (range) {
      TPU_CHECK((*range)[2 * i] <= (*range)[2 * i + 1], name, "(): min should not exceed max, but got min ",
                (*range)[2 * i], " max ", (*range)[2 * i + 1], " for dimension ", d);
      low = full(graph(), one, (*range)[2 * i]), high = full(graph(), one, (*range)[2 * i + 1]);
    } else if (points.dim(0) == 0) {
      low = full(graph(), one, 0), high = full(graph(), one, 1);
    } else {
      Value x = select_dim(points, 1, d);
      low = min(x, 0), high = max(x, 0);
    }
    check_not(!(is_finite(low) & is_finite(high)), ErrorKind::Runtime,
              std::string(name) + "(): the range is not finite");
    Value flat = eq(low, high);
    edges.push_back(evenly_spaced(where(flat, low - 0.5, low), where(flat, high + 0.5, high), bins[i] + 1));
  }
  return edges;
}

void check(Value x, const Values& edges, const std::optional<Value>& weight, const char* name) {
  if (!is_floating(x.dtype()) || byte_size(x.dtype()) < 4) {
    fail(ErrorKind::NotImplemented, "\"", name, "\" not implemented for '", torch_name(x.dtype()), "'");
  }
  for (Value e : edges) {
    TPU_CHECK(e.dtype() == x.dtype(), name, "(): input tensor and bins tensors should have the same dtype, but got ",
              torch_name(x.dtype()), " and ", torch_name(e.dtype()));
    TPU_CHECK(e.rank() == 1, name, "(): bins tensor should have one dimension, but got ", e.rank());
    TPU_CHECK(e.numel() > 0, name, "(): bins tensor should have at least 1 element");
  }
  if (weight) {
    TPU_CHECK(weight->dtype() == x.dtype(), name,
              "(): if weight tensor is provided, it should have the dtype of input");
  }
}

// [.., d] -> [n, d]
Value as_points(Value x, const char* name) {
  TPU_CHECK(x.rank() >= 2, name, "(): input tensor should have at least 2 dimensions, but got ", x.rank());
  const int64_t d = x.dim(x.rank() - 1);
  return reshape(x, {std::accumulate(x.dims().begin(), x.dims().end() - 1, int64_t{1}, std::multiplies<>()), d});
}

void check_weight(Value x, const std::optional<Value>& weight, Dims dims, const char* name) {
  TPU_CHECK(!weight || weight->dims() == dims, name, "(): if weight tensor is provided it should have the shape of ",
            "the input without its innermost dimension, but got ", weight ? to_string(weight->type()) : "", " for ",
            to_string(x.type()));
}

}  // namespace

TPU_LOWER("histogram.bin_ct", [](Value x, int64_t bins, Range range, std::optional<Value> weight, bool density) {
  check(x, {}, weight, "histogram");
  check_weight(x, weight, x.dims(), "histogram");
  Value points = reshape(x, {x.numel(), 1});
  const Values edges = equal_edges(points, {bins}, range, "histogram");
  return std::tuple(counted(points, edges, weight, density), edges[0]);
});
TPU_LOWER("histogram.bins_tensor", [](Value x, Value bins, std::optional<Value> weight, bool density) {
  check(x, {bins}, weight, "histogram");
  check_weight(x, weight, x.dims(), "histogram");
  return std::tuple(counted(reshape(x, {x.numel(), 1}), {bins}, weight, density), bins);
});

TPU_LOWER("_histogramdd_bin_edges", [](Value x, Dims bins, Range range, std::optional<Value> weight, bool) {
  check(x, {}, weight, "histogramdd");
  return equal_edges(as_points(x, "histogramdd"), bins, range, "histogramdd");
});
TPU_LOWER("_histogramdd_from_bin_cts", [](Value x, Dims bins, Range range, std::optional<Value> weight, bool density) {
  check(x, {}, weight, "histogramdd");
  check_weight(x, weight, Dims(x.dims().begin(), x.dims().end() - 1), "histogramdd");
  Value points = as_points(x, "histogramdd");
  return counted(points, equal_edges(points, bins, range, "histogramdd"), weight, density);
});
TPU_LOWER("_histogramdd_from_bin_tensors", [](Value x, Values bins, std::optional<Value> weight, bool density) {
  check(x, bins, weight, "histogramdd");
  check_weight(x, weight, Dims(x.dims().begin(), x.dims().end() - 1), "histogramdd");
  return counted(as_points(x, "histogramdd"), bins, weight, density);
});

}  // namespace tpu::lowering
