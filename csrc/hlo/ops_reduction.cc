// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "hlo/build.h"

namespace tpu::hlo {
using namespace build;
namespace {

// Inputs of one shape, each with a scalar init of its dtype. Returns the scalars' types.
std::vector<Type> check_inputs(std::string_view op, const Values& xs, const Values& inits) {
  TPU_CHECK(!xs.empty(), op, ": no operands");
  require_size(op, "inits", inits.size(), static_cast<int64_t>(xs.size()));
  std::vector<Type> scalars;
  for (size_t i = 0; i < xs.size(); ++i) {
    require(op, xs[i], kAny);
    require_same_dtype(op, xs[i], inits[i]);
    require_scalar(op, inits[i], "the initial value");
    TPU_CHECK(xs[i].dims() == xs[0].dims(), op, ": shapes differ: ", to_string(xs[0].type()), " and ",
              to_string(xs[i].type()));
    scalars.push_back({xs[i].dtype(), {}});
  }
  return scalars;
}

Values with(const Values& xs, const Values& more) {
  Values all = xs;
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// The window with its defaults filled in, and the dims it makes of x's.
struct FullWindow {
  Window window;
  Dims result;
};
FullWindow check_window(std::string_view op, Value x, Window w) {
  const int64_t rank = x.rank();
  require_size(op, "the window", w.dims.size(), rank);
  w.strides = ones_if_empty(w.strides, rank);
  w.base_dilations = ones_if_empty(w.base_dilations, rank);
  w.window_dilations = ones_if_empty(w.window_dilations, rank);
  w.padding = zeros_if_empty(w.padding, rank);
  require_size(op, "strides", w.strides.size(), rank);
  require_size(op, "base_dilations", w.base_dilations.size(), rank);
  require_size(op, "window_dilations", w.window_dilations.size(), rank);
  require_size(op, "padding", w.padding.size(), rank);
  Dims result;
  for (size_t i = 0; i < w.dims.size(); ++i) {
    TPU_CHECK(w.dims[i] > 0 && w.strides[i] > 0 && w.base_dilations[i] > 0 && w.window_dilations[i] > 0, op,
              ": window ", list(w.dims), ", strides ", list(w.strides), " and dilations must be positive");
    result.push_back(
        window_output(x.dims()[i], w.base_dilations[i], w.padding[i], w.dims[i], w.window_dilations[i], w.strides[i]));
  }
  return {std::move(w), std::move(result)};
}

}  // namespace

Values reduce_many(const Values& xs, const Values& inits, const Dims& dims, const CombineMany& combine) {
  const std::vector<Type> scalars = check_inputs("reduce", xs, inits);
  require_dims("reduce", "dimensions", dims, xs[0].rank(), false);
  Dims kept;
  for (int64_t i = 0; i < xs[0].rank(); ++i) {
    if (std::find(dims.begin(), dims.end(), i) == dims.end()) kept.push_back(xs[0].dim(i));
  }
  Region* body = combine_region("reduce", xs[0].graph(), scalars, combine);
  std::vector<Type> results;
  for (Value x : xs) results.push_back({x.dtype(), kept});
  return emit_many("reduce", with(xs, inits), std::move(results), "dimensions = " + array(dims), {body});
}

Values reduce_window(const Values& xs, const Values& inits, const Window& window, const CombineMany& combine) {
  const std::vector<Type> scalars = check_inputs("reduce_window", xs, inits);
  const auto [w, dims] = check_window("reduce_window", xs[0], window);
  Region* body = combine_region("reduce_window", xs[0].graph(), scalars, combine);
  std::vector<Type> results;
  for (Value x : xs) results.push_back({x.dtype(), dims});
  return emit_many("reduce_window", with(xs, inits), std::move(results),
                   "window_dimensions = " + array(w.dims) + ", window_strides = " + array(w.strides) +
                       ", base_dilations = " + array(w.base_dilations) +
                       ", window_dilations = " + array(w.window_dilations) + ", padding = " + pairs(w.padding),
                   {body});
}

Value reduce_window(Value x, Value init, const Window& window, const Combine& combine) {
  return reduce_window(Values{x}, Values{init}, window, as_many(combine))[0];
}

Value select_and_scatter(Value x, Value source, Value init, const Window& window, const Combine& select,
                         const Combine& scatter) {
  constexpr std::string_view op = "select_and_scatter";
  check_inputs(op, {x}, {init});
  require_same_dtype(op, x, source);
  const auto [w, dims] = check_window(op, x, window);
  TPU_CHECK(w.base_dilations == w.window_dilations && w.base_dilations == ones_if_empty({}, x.rank()), op,
            ": dilations are not supported");
  TPU_CHECK(source.dims() == dims, op, ": the source is ", to_string(source.type()), ", the windows of ",
            to_string(x.type()), " make ", list(dims));
  Region* choose = combine_region(op, x.graph(), x.dtype(), select, DType::PRED);
  Region* add_up = combine_region(op, x.graph(), x.dtype(), scatter, x.dtype());
  return emit(op, {x, source, init}, x.type(),
              "window_dimensions = " + array(w.dims) + ", window_strides = " + array(w.strides) +
                  ", padding = " + pairs(w.padding),
              {choose, add_up});
}

Values sort(const Values& xs, int64_t dim, bool stable, const std::function<Value(const Values&)>& less) {
  TPU_CHECK(!xs.empty(), "sort: no operands");
  std::vector<Type> arguments;
  for (Value x : xs) {
    require("sort", x, kAny);
    TPU_CHECK(x.dims() == xs[0].dims(), "sort: shapes differ: ", to_string(xs[0].type()), " and ", to_string(x.type()));
    arguments.insert(arguments.end(), 2, {x.dtype(), {}});
  }
  require_dim("sort", dim, xs[0].rank());
  Region* comparator = xs[0].graph().region(arguments, [&](const Values& args) { return Values{less(args)}; }, true);
  TPU_CHECK(comparator->results()[0].type() == (Type{DType::PRED, {}}), "sort: the comparison returns ",
            to_string(comparator->results()[0].type()), ", expected i1[]");
  return emit_many("sort", xs, types_of(xs), text("dimension = ", dim, " : i64, is_stable = ", flag(stable)),
                   {comparator});
}

TopK top_k(Value x, int64_t k) {
  require("chlo.top_k", x, kInteger | kFloat);
  TPU_CHECK(x.rank() >= 1 && k >= 0 && k <= x.dims().back(), "chlo.top_k: k = ", k,
            " is out of range for the last dimension of ", to_string(x.type()));
  Dims dims = x.dims();
  dims.back() = k;
  const Values out = emit_many("chlo.top_k", {x}, {{x.dtype(), dims}, {DType::S32, dims}}, text("k = ", k, " : i64"));
  return {out[0], out[1]};
}

}  // namespace tpu::hlo
