// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "hlo/build.h"

namespace tpu::hlo {
using namespace build;

namespace {
int64_t bit_width(DType t) { return t == DType::S4 || t == DType::U4 ? 4 : 8 * byte_size(t); }
}  // namespace

Value bitcast_convert(Value x, DType t) {
  require("bitcast_convert", x, kNumber);
  TPU_CHECK(t != DType::PRED && is_complex(t) == is_complex(x.dtype()), "bitcast_convert: cannot view ",
            to_string(x.type()), " as ", short_name(t));
  const int64_t from = bit_width(x.dtype()), to = bit_width(t);
  TPU_CHECK(from == to || !is_complex(t), "bitcast_convert: complex widths differ: ", to_string(x.type()), " and ",
            short_name(t));  // XLA aborts the process on it
  Dims dims = x.dims();
  if (from > to) {
    dims.push_back(from / to);
  } else if (from < to) {
    TPU_CHECK(!dims.empty() && dims.back() == to / from, "bitcast_convert: the last dimension of ", to_string(x.type()),
              " must be ", to / from, " to make ", short_name(t));
    dims.pop_back();
  }
  return emit("bitcast_convert", {x}, {t, std::move(dims)});
}

Value broadcast_in_dim(Value x, const Dims& dims, const Dims& broadcast_dimensions) {
  require("broadcast_in_dim", x, kAny);
  const auto rank = static_cast<int64_t>(dims.size());
  require_size("broadcast_in_dim", "broadcast_dimensions", broadcast_dimensions.size(), x.rank());
  require_dims("broadcast_in_dim", "broadcast_dimensions", broadcast_dimensions, rank, false);
  for (int64_t i = 0; i < x.rank(); ++i) {
    const int64_t to = broadcast_dimensions[static_cast<size_t>(i)];
    TPU_CHECK(x.dim(i) == 1 || x.dim(i) == dims[static_cast<size_t>(to)], "broadcast_in_dim: dimension ", i, " of ",
              to_string(x.type()), " does not fit dimension ", to, " of ", list(dims));
  }
  if (dims == x.dims() && std::is_sorted(broadcast_dimensions.begin(), broadcast_dimensions.end())) return x;
  return emit("broadcast_in_dim", {x}, {x.dtype(), dims}, "broadcast_dimensions = " + array(broadcast_dimensions));
}

Value concatenate(const Values& parts, int64_t dim) {
  TPU_CHECK(!parts.empty(), "concatenate: no operands");
  require("concatenate", parts[0], kAny);
  require_dim("concatenate", dim, parts[0].rank());
  if (parts.size() == 1) return parts[0];
  Type result = parts[0].type();
  int64_t& total = result.dims[static_cast<size_t>(dim)];
  for (size_t i = 1; i < parts.size(); ++i) {
    require_same_dtype("concatenate", parts[0], parts[i]);
    Dims expected = parts[0].dims();
    if (parts[i].rank() == parts[0].rank()) expected[static_cast<size_t>(dim)] = parts[i].dim(dim);
    TPU_CHECK(parts[i].dims() == expected, "concatenate: shapes differ outside dimension ", dim, ": ",
              to_string(parts[0].type()), " and ", to_string(parts[i].type()));
    total += parts[i].dim(dim);
  }
  return emit("concatenate", parts, std::move(result), text("dimension = ", dim, " : i64"));
}

Value iota(Graph& graph, const Type& type, int64_t dim) {
  require_dim("iota", dim, type.rank());
  TPU_CHECK(type.dtype != DType::PRED, "iota: needs integer, float or complex, got ", to_string(type));
  return {emit_node(graph, "iota", {}, {type}, text("iota_dimension = ", dim, " : i64")), 0};
}

Value pad(Value x, Value padding_value, const Dims& low, const Dims& high, const Dims& interior) {
  require("pad", x, kAny);
  require_same_dtype("pad", x, padding_value);
  require_scalar("pad", padding_value, "the padding value");
  require_size("pad", "low", low.size(), x.rank());
  require_size("pad", "high", high.size(), x.rank());
  require_size("pad", "interior", interior.size(), x.rank());
  Type result = x.type();
  for (size_t i = 0; i < low.size(); ++i) {
    TPU_CHECK(interior[i] >= 0, "pad: interior ", list(interior), " must not be negative");
    int64_t& size = result.dims[i];
    size = low[i] + high[i] + size + std::max<int64_t>(size - 1, 0) * interior[i];
    TPU_CHECK(size >= 0, "pad: low ", list(low), " and high ", list(high), " cut more than ", to_string(x.type()),
              " has");
  }
  const auto zero = [](int64_t v) { return v == 0; };
  if (std::all_of(low.begin(), low.end(), zero) && std::all_of(high.begin(), high.end(), zero) && result == x.type()) {
    return x;
  }
  return emit("pad", {x, padding_value}, std::move(result),
              "edge_padding_low = " + array(low) + ", edge_padding_high = " + array(high) +
                  ", interior_padding = " + array(interior));
}

Value reshape(Value x, const Dims& dims) {
  require("reshape", x, kAny);
  for (int64_t d : dims) TPU_CHECK(d >= 0, "reshape: negative size in ", list(dims));
  TPU_CHECK(numel(dims) == x.numel(), "reshape: ", to_string(x.type()), " has ", x.numel(), " elements, ", list(dims),
            " has ", numel(dims));
  if (dims == x.dims()) return x;
  if (x.node()->name == "stablehlo.reshape") return reshape(x.node()->operands[0], dims);
  return emit("reshape", {x}, {x.dtype(), dims});
}

Value reverse(Value x, const Dims& dims) {
  require("reverse", x, kAny);
  require_dims("reverse", "dimensions", dims, x.rank(), false);
  const bool nothing = std::all_of(dims.begin(), dims.end(), [&](int64_t d) { return x.dim(d) <= 1; });
  if (nothing) return x;
  return emit("reverse", {x}, x.type(), "dimensions = " + array(dims));
}

Value slice(Value x, const Dims& starts, const Dims& limits, const Dims& strides) {
  require("slice", x, kAny);
  require_size("slice", "starts", starts.size(), x.rank());
  require_size("slice", "limits", limits.size(), x.rank());
  require_size("slice", "strides", strides.size(), x.rank());
  Type result = x.type();
  for (size_t i = 0; i < starts.size(); ++i) {
    TPU_CHECK(0 <= starts[i] && starts[i] <= limits[i] && limits[i] <= x.dims()[i] && strides[i] > 0, "slice: [",
              starts[i], ":", limits[i], ":", strides[i], "] of dimension ", i, " of ", to_string(x.type()));
    result.dims[i] = (limits[i] - starts[i] + strides[i] - 1) / strides[i];
  }
  if (result == x.type()) return x;
  return emit(
      "slice", {x}, std::move(result),
      "start_indices = " + array(starts) + ", limit_indices = " + array(limits) + ", strides = " + array(strides));
}

Value transpose(Value x, const Dims& permutation) {
  require("transpose", x, kAny);
  require_size("transpose", "the permutation", permutation.size(), x.rank());
  require_dims("transpose", "the permutation", permutation, x.rank(), false);
  if (std::is_sorted(permutation.begin(), permutation.end())) return x;
  Type result = x.type();
  for (size_t i = 0; i < permutation.size(); ++i) result.dims[i] = x.dim(permutation[i]);
  return emit("transpose", {x}, std::move(result), "permutation = " + array(permutation));
}

}  // namespace tpu::hlo
