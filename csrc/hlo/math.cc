// SPDX-License-Identifier: Apache-2.0
#include "hlo/math.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "hlo/build.h"

namespace tpu::hlo {
using build::list;
using build::require;
using build::require_same_dtype;
namespace {

bool is_unsigned(DType t) { return is_integer(t) && !is_signed_integer(t); }
bool is_f8(DType t) { return is_floating(t) && byte_size(t) == 1; }

CompareType compare_type(DType t) {
  if (is_floating(t) || is_complex(t)) return CompareType::FLOAT;
  return is_signed_integer(t) ? CompareType::SIGNED : CompareType::UNSIGNED;
}

Value compare_broadcast(std::string_view op, Arg x, Arg y, Direction direction) {
  auto [a, b] = broadcast_pair(op, x, y);
  return compare(a, b, direction, compare_type(a.dtype()));
}

Value respread(Value splat, const Dims& dims) {
  const Type type{splat.dtype(), dims};
  const std::string dense = numel(dims) == 0 ? std::string() : std::string(splat_text(splat));
  return {build::emit_node(splat.graph(), "constant", {}, {type}, "value = dense<" + dense + "> : " + mlir_type(type)),
          0};
}

Dims with_dim(Dims dims, int64_t dim, int64_t size) {
  dims[static_cast<size_t>(dim)] = size;
  return dims;
}
Dims without(Dims dims, int64_t dim) {
  dims.erase(dims.begin() + dim);
  return dims;
}

double largest_f8(DType t) {
  switch (t) {
    case DType::F8E4M3FN: return 448;
    case DType::F8E4M3FNUZ: return 240;
    default: return 57344;
  }
}
Literal extreme(DType t, bool high) {
  if (t == DType::PRED) return high;
  if (is_integer(t)) {
    const int width = t == DType::S4 || t == DType::U4 ? 4 : 8 * byte_size(t);
    if (is_unsigned(t)) return high ? ~uint64_t{0} >> (64 - width) : uint64_t{0};
    const int64_t top = std::numeric_limits<int64_t>::max() >> (64 - width);
    return high ? top : -top - 1;
  }
  TPU_CHECK(is_floating(t), "complex numbers have no order, got ", short_name(t));
  const double v = is_f8(t) && t != DType::F8E5M2 ? largest_f8(t) : std::numeric_limits<double>::infinity();
  return high ? v : -v;
}

using Binary = Value (*)(Value, Value);
Value larger(Value a, Value b) { return maximum(a, b); }
Value smaller(Value a, Value b) { return minimum(a, b); }

Value reduce_dims(std::string_view op, Value x, const Axes& axes, bool keep_dims, const Literal& init, Binary combine) {
  const Dims dims = axes.of(x.rank(), op);
  if (dims.empty()) return x;
  Value r = reduce(x, scalar(x.graph(), x.dtype(), init), dims, combine);
  if (!keep_dims) return r;
  Dims kept = x.dims();
  for (int64_t d : dims) kept[static_cast<size_t>(d)] = 1;
  return reshape(r, kept);
}

Extreme arg_extreme(std::string_view op, Value x, int64_t dim, bool keep_dims, DType index, bool high) {
  dim = wrap_dim(dim, x.rank(), op);
  TPU_CHECK(x.dim(dim) > 0, op, ": dimension ", dim, " of ", to_string(x.type()), " is empty");
  Graph& graph = x.graph();
  // The neutral index is the last, so that a true -inf (or lowest) at any place beats it or is at that place.
  const Values out =
      reduce(Values{x, iota_like(x, dim, index)},
             Values{scalar(graph, x.dtype(), extreme(x.dtype(), !high)), scalar(graph, index, x.dim(dim) - 1)}, {dim},
             [&](const Values& a, const Values& b) {
               Value first = high ? gt(a[0], b[0]) : lt(a[0], b[0]);
               Value tie = eq(a[0], b[0]);
               if (is_floating(x.dtype())) {
                 Value nan_a = is_nan(a[0]), nan_b = is_nan(b[0]);
                 first = first | (nan_a & !nan_b);
                 tie = tie | (nan_a & nan_b);
               }
               Value pick = first | (tie & lt(a[1], b[1]));
               return Values{select(pick, a[0], b[0]), select(pick, a[1], b[1])};
             });
  if (!keep_dims) return {out[0], out[1]};
  return {expand_dims(out[0], dim), expand_dims(out[1], dim)};
}

}  // namespace

int64_t wrap_dim(int64_t dim, int64_t rank, std::string_view op) {
  TPU_CHECK(dim >= -rank && dim < rank, op, ": dimension ", dim, " is out of range for rank ", rank);
  return dim < 0 ? dim + rank : dim;
}

Dims Axes::of(int64_t rank, std::string_view op) const {
  Dims out;
  for (int64_t d : dims_) out.push_back(wrap_dim(d, rank, op));
  std::sort(out.begin(), out.end());
  TPU_CHECK(std::adjacent_find(out.begin(), out.end()) == out.end(), op, ": dimensions ", list(dims_), " repeat");
  return out;
}

Dims all_dims(Value x) {
  Dims out(static_cast<size_t>(x.rank()));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

Dims broadcast_dims(const Dims& a, const Dims& b, std::string_view op) {
  const Dims& longer = a.size() >= b.size() ? a : b;
  const Dims& shorter = a.size() >= b.size() ? b : a;
  Dims out = longer;
  const size_t shift = longer.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i) {
    int64_t& d = out[shift + i];
    TPU_CHECK(d == shorter[i] || d == 1 || shorter[i] == 1, op, ": shapes do not broadcast: ", list(a), " and ",
              list(b));
    if (d == 1) d = shorter[i];
  }
  return out;
}

std::pair<Value, Value> broadcast_pair(std::string_view op, Arg x, Arg y) {
  TPU_CHECK(x.is_value() || y.is_value(), op, ": two numbers and no value");
  if (!y.is_value()) return {x.value(), like(x.value(), y.literal())};
  if (!x.is_value()) return {like(y.value(), x.literal()), y.value()};
  require_same_dtype(op, x.value(), y.value());
  const Dims dims = broadcast_dims(x.value().dims(), y.value().dims(), op);
  return {broadcast_to(x.value(), dims), broadcast_to(y.value(), dims)};
}

namespace {
Value with_pair(std::string_view op, Arg x, Arg y, Binary f) {
  auto [a, b] = broadcast_pair(op, x, y);
  return f(a, b);
}
}  // namespace

Value operator+(Arg x, Arg y) { return with_pair("+", x, y, add); }
Value operator-(Arg x, Arg y) { return with_pair("-", x, y, subtract); }
Value operator*(Arg x, Arg y) { return with_pair("*", x, y, multiply); }
Value operator/(Arg x, Arg y) { return with_pair("/", x, y, divide); }
Value operator%(Arg x, Arg y) { return with_pair("%", x, y, remainder); }
Value operator-(Value x) { return negate(x); }
Value operator&(Arg x, Arg y) { return with_pair("&", x, y, and_); }
Value operator|(Arg x, Arg y) { return with_pair("|", x, y, or_); }
Value operator^(Arg x, Arg y) { return with_pair("^", x, y, xor_); }
Value operator<<(Arg x, Arg y) { return with_pair("<<", x, y, shift_left); }
Value operator>>(Arg x, Arg y) {
  auto [a, b] = broadcast_pair(">>", x, y);
  return is_signed_integer(a.dtype()) ? shift_right_arithmetic(a, b) : shift_right_logical(a, b);
}
Value operator~(Value x) { return not_(x); }
Value operator!(Value x) {
  require("!", x, build::kPred);
  return not_(x);
}

Value eq(Arg x, Arg y) { return compare_broadcast("eq", x, y, Direction::EQ); }
Value ne(Arg x, Arg y) { return compare_broadcast("ne", x, y, Direction::NE); }
Value lt(Arg x, Arg y) { return compare_broadcast("lt", x, y, Direction::LT); }
Value le(Arg x, Arg y) { return compare_broadcast("le", x, y, Direction::LE); }
Value gt(Arg x, Arg y) { return compare_broadcast("gt", x, y, Direction::GT); }
Value ge(Arg x, Arg y) { return compare_broadcast("ge", x, y, Direction::GE); }

Value pow(Arg x, Arg y) { return with_pair("pow", x, y, power); }

Value where(Value condition, Arg x, Arg y) {
  require("where", condition, build::kPred);
  auto [a, b] = broadcast_pair("where", x, y);
  const Dims dims = broadcast_dims(condition.dims(), a.dims(), "where");
  Value c = condition.rank() == 0 ? condition : broadcast_to(condition, dims);
  return select(c, broadcast_to(a, dims), broadcast_to(b, dims));
}

Value clip(Value x, Arg low, Arg high) { return minimum(maximum(x, low), high); }

Value cos(Value x) { return cosine(x); }
Value exp(Value x) { return exponential(x); }
Value expm1(Value x) { return exponential_minus_one(x); }
Value is_nan(Value x) {
  require("is_nan", x, build::kFloat | build::kComplex);
  return ne(x, x);
}
Value log1p(Value x) { return log_plus_one(x); }
Value reciprocal(Value x) { return 1 / x; }
Value round_even(Value x) { return round_nearest_even(x); }
Value sin(Value x) { return sine(x); }

Value scalar(Graph& graph, DType t, Literal v) { return constant(graph, {t, {}}, v); }
Value full(Graph& graph, const Type& type, Literal v) { return constant(graph, type, v); }
Value like(Value x, Literal v) {
  require("like", x, build::kAny);
  return constant(x.graph(), x.type(), v);
}
Value zeros_like(Value x) { return like(x, 0); }
Value lowest(Graph& graph, DType t) { return scalar(graph, t, extreme(t, false)); }
Value highest(Graph& graph, DType t) { return scalar(graph, t, extreme(t, true)); }
Value iota_like(Value x, int64_t dim, DType t) {
  return iota(x.graph(), {t, x.dims()}, wrap_dim(dim, x.rank(), "iota_like"));
}
bool is_splat(Value x) { return !splat_text(x).empty(); }

Value broadcast_to(Value x, const Dims& dims) {
  require("broadcast_to", x, build::kAny);
  if (x.dims() == dims) return x;
  const auto rank = static_cast<int64_t>(dims.size());
  TPU_CHECK(x.rank() <= rank && broadcast_dims(x.dims(), dims, "broadcast_to") == dims,
            "broadcast_to: ", to_string(x.type()), " does not fit ", list(dims));
  if (is_splat(x)) return respread(x, dims);
  Dims to = all_dims(x);
  for (int64_t& d : to) d += rank - x.rank();
  return broadcast_in_dim(x, dims, to);
}

Value broadcast_along(Value x, const Dims& dims, int64_t dim) {
  TPU_CHECK(x.rank() == 1, "broadcast_along: needs a vector, got ", to_string(x.type()));
  dim = wrap_dim(dim, static_cast<int64_t>(dims.size()), "broadcast_along");
  return is_splat(x) ? respread(x, dims) : broadcast_in_dim(x, dims, {dim});
}

Value expand_dims(Value x, int64_t dim) {
  Dims dims = x.dims();
  dims.insert(dims.begin() + wrap_dim(dim, x.rank() + 1, "expand_dims"), 1);
  return is_splat(x) ? respread(x, dims) : reshape(x, dims);
}

Value squeeze(Value x, int64_t dim) {
  dim = wrap_dim(dim, x.rank(), "squeeze");
  TPU_CHECK(x.dim(dim) == 1, "squeeze: dimension ", dim, " of ", to_string(x.type()), " is not 1");
  return reshape(x, without(x.dims(), dim));
}

Value swap_dims(Value x, int64_t a, int64_t b) {
  Dims permutation = all_dims(x);
  std::swap(permutation[static_cast<size_t>(wrap_dim(a, x.rank(), "swap_dims"))],
            permutation[static_cast<size_t>(wrap_dim(b, x.rank(), "swap_dims"))]);
  return transpose(x, permutation);
}

Value move_dim(Value x, int64_t from, int64_t to) {
  from = wrap_dim(from, x.rank(), "move_dim");
  Dims permutation = without(all_dims(x), from);
  permutation.insert(permutation.begin() + wrap_dim(to, x.rank(), "move_dim"), from);
  return transpose(x, permutation);
}

Value flip(Value x, const Axes& dims) { return reverse(x, dims.of(x.rank(), "flip")); }

Value concat(const Values& parts, int64_t dim) {
  TPU_CHECK(!parts.empty(), "concat: no values");
  return concatenate(parts, wrap_dim(dim, parts[0].rank(), "concat"));
}

Value stack(const Values& parts, int64_t dim) {
  TPU_CHECK(!parts.empty(), "stack: no values");
  dim = wrap_dim(dim, parts[0].rank() + 1, "stack");
  Values rows;
  for (Value part : parts) rows.push_back(expand_dims(part, dim));
  return concatenate(rows, dim);
}

Value slice_dim(Value x, int64_t dim, int64_t start, int64_t limit, int64_t step) {
  dim = wrap_dim(dim, x.rank(), "slice_dim");
  const auto rank = static_cast<size_t>(x.rank());
  return slice(x, with_dim(Dims(rank, 0), dim, start), with_dim(x.dims(), dim, limit),
               with_dim(Dims(rank, 1), dim, step));
}

Value select_dim(Value x, int64_t dim, int64_t index) {
  dim = wrap_dim(dim, x.rank(), "select_dim");
  return squeeze(slice_dim(x, dim, index, index + 1), dim);
}

Value pad_dim(Value x, int64_t dim, int64_t low, int64_t high, Literal value, int64_t interior) {
  dim = wrap_dim(dim, x.rank(), "pad_dim");
  const Dims zeros(static_cast<size_t>(x.rank()), 0);
  return pad(x, scalar(x.graph(), x.dtype(), value), with_dim(zeros, dim, low), with_dim(zeros, dim, high),
             with_dim(zeros, dim, interior));
}

Value sum(Value x, const Axes& dims, bool keep_dims) { return reduce_dims("sum", x, dims, keep_dims, 0, add); }
Value prod(Value x, const Axes& dims, bool keep_dims) { return reduce_dims("prod", x, dims, keep_dims, 1, multiply); }
Value max(Value x, const Axes& dims, bool keep_dims) {
  return reduce_dims("max", x, dims, keep_dims, extreme(x.dtype(), false), larger);
}
Value min(Value x, const Axes& dims, bool keep_dims) {
  return reduce_dims("min", x, dims, keep_dims, extreme(x.dtype(), true), smaller);
}
Value any(Value x, const Axes& dims, bool keep_dims) {
  return reduce_dims("any", convert(x, DType::PRED), dims, keep_dims, false, or_);
}
Value all(Value x, const Axes& dims, bool keep_dims) {
  return reduce_dims("all", convert(x, DType::PRED), dims, keep_dims, true, and_);
}

Extreme argmax(Value x, int64_t dim, bool keep_dims, DType index) {
  return arg_extreme("argmax", x, dim, keep_dims, index, true);
}
Extreme argmin(Value x, int64_t dim, bool keep_dims, DType index) {
  return arg_extreme("argmin", x, dim, keep_dims, index, false);
}

Value cumulative(Value x, int64_t dim, Scan scan, bool reverse) {
  dim = wrap_dim(dim, x.rank(), "cumulative");
  const int64_t n = x.dim(dim);
  if (n <= 1) return x;
  const auto rank = static_cast<size_t>(x.rank());
  Window window{.dims = with_dim(Dims(rank, 1), dim, n), .padding = Padding(rank, {0, 0})};
  window.padding[static_cast<size_t>(dim)] = reverse ? std::pair{int64_t{0}, n - 1} : std::pair{n - 1, int64_t{0}};
  const DType t = x.dtype();
  Literal init = 0;
  Binary combine = add;
  switch (scan) {
    case Scan::Sum: break;
    case Scan::Product: init = 1, combine = multiply; break;
    case Scan::Max: init = extreme(t, false), combine = larger; break;
    case Scan::Min: init = extreme(t, true), combine = smaller; break;
  }
  return reduce_window(x, scalar(x.graph(), t, init), window, combine);
}

Value matmul2(Value a, Value b, std::optional<DType> result, Precision precision) {
  TPU_CHECK(a.rank() == 2 && b.rank() == 2, "matmul2: needs matrices, got ", to_string(a.type()), " and ",
            to_string(b.type()));
  return batch_matmul(a, b, result, precision);
}

Value batch_matmul(Value a, Value b, std::optional<DType> result, Precision precision) {
  const int64_t r = a.rank();
  TPU_CHECK(r >= 2 && b.rank() == r, "batch_matmul: ranks of ", to_string(a.type()), " and ", to_string(b.type()));
  Dims batch = all_dims(a);
  batch.resize(static_cast<size_t>(r) - 2);
  return dot_general(a, b, {batch, batch, {r - 1}, {r - 2}}, precision, result.value_or(a.dtype()));
}

Value take(Value x, Value indices, int64_t dim) {
  dim = wrap_dim(dim, x.rank(), "take");
  GatherDims dims{.collapsed_slice_dims = {dim}, .start_index_map = {dim}, .index_vector_dim = indices.rank()};
  for (int64_t i = 0; i < x.rank() - 1; ++i) dims.offset_dims.push_back(i < dim ? i : i + indices.rank());
  return gather(x, indices, dims, with_dim(x.dims(), dim, 1));
}

Value take_along(Value x, Value indices, int64_t dim) {
  dim = wrap_dim(dim, x.rank(), "take_along");
  const Dims others = without(all_dims(x), dim);
  TPU_CHECK(indices.rank() == x.rank(), "take_along: indices ", to_string(indices.type()), " for ",
            to_string(x.type()));
  GatherDims dims{.collapsed_slice_dims = {dim},
                  .operand_batching_dims = others,
                  .start_indices_batching_dims = others,
                  .start_index_map = {dim},
                  .index_vector_dim = x.rank()};
  return gather(x, indices, dims, Dims(static_cast<size_t>(x.rank()), 1));
}

Value update_by_select(Value x, Value update, const Values& starts) {
  Graph& graph = x.graph();
  Value placed = dynamic_update_slice(full(graph, x.type(), 0), update, starts);
  Value written = dynamic_update_slice(full(graph, {DType::PRED, x.dims()}, false),
                                       full(graph, {DType::PRED, update.dims()}, true), starts);
  return select(written, placed, x);
}

}  // namespace tpu::hlo
