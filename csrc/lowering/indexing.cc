// SPDX-License-Identifier: Apache-2.0
// Reading and writing at indices: x[i, :, j], index_select, take, put and their kin.
#include "lowering/indexing.h"

#include <algorithm>
#include <bit>

namespace tpu::lowering {

std::function<std::string(int64_t)> out_of_bounds(int64_t dim, int64_t size) {
  return [=](int64_t index) {
    return text("index ", index, " is out of bounds for dimension ", dim, " with size ", size);
  };
}

std::string shape_text(const Dims& dims) {
  std::string out = "[";
  for (size_t i = 0; i < dims.size(); ++i) out += text(i ? ", " : "", dims[i]);
  return out + "]";
}

DType index_dtype(int64_t limit) { return limit < INT32_MAX ? S32 : S64; }

Value wrap_index(Value index, int64_t size) {
  Value i = convert(index, index_dtype(size));
  return where(lt(i, 0), i + size, i);
}

Value plain_index(Value index, int64_t size) {
  return convert(where(lt(index, 0) | ge(index, size), size, index), index_dtype(size));
}

Selection select_indices(Value x, const OptValues& given, Checked checked) {
  Selection s;
  for (size_t d = 0; d < given.size(); ++d) {
    if (!given[d]) continue;
    s.indexed.push_back(static_cast<int64_t>(d));
    s.batch = broadcast_dims(s.batch, given[d]->dims(), "index");
  }
  const auto k = static_cast<int64_t>(s.indexed.size());
  TPU_INTERNAL(k > 0, "no index among the indices");
  const bool adjacent = s.indexed.back() - s.indexed.front() == k - 1;
  s.where = adjacent ? s.indexed.front() : 0;
  for (int64_t d = 0; d < x.rank(); ++d) {
    if (std::find(s.indexed.begin(), s.indexed.end(), d) == s.indexed.end()) s.result.push_back(x.dim(d));
  }
  s.result.insert(s.result.begin() + s.where, s.batch.begin(), s.batch.end());
  int64_t largest = 0;
  for (int64_t d : s.indexed) largest = std::max(largest, x.dim(d));
  Values columns;
  for (int64_t d : s.indexed) {
    Value index = *given[static_cast<size_t>(d)];
    const int64_t size = x.dim(d);
    if (size == 0 && numel(s.batch) > 0) fail(ErrorKind::Index, "index is out of bounds for dimension with size 0");
    if (checked == Checked::AtRunTime) check_range(index, -size, size, ErrorKind::Index, out_of_bounds(d, size));
    Value wrapped = convert(wrap_index(index, size), index_dtype(largest));
    columns.push_back(expand_dims(broadcast_to(wrapped, s.batch), static_cast<int64_t>(s.batch.size())));
  }
  s.indices = concat(columns, -1);
  return s;
}

namespace {

// The dimensions of a result of rank `rank` that aren't among the `count` at `where`.
Dims around(int64_t rank, int64_t where, int64_t count) {
  Dims dims;
  for (int64_t d = 0; d < rank; ++d) {
    if (d < where || d >= where + count) dims.push_back(d);
  }
  return dims;
}

Dims window_dims(const Selection& s) {
  return around(static_cast<int64_t>(s.result.size()), s.where, static_cast<int64_t>(s.batch.size()));
}

}  // namespace

Value gather_selection(Value x, const Selection& s) {
  Dims sizes = x.dims();
  for (int64_t d : s.indexed) sizes[static_cast<size_t>(d)] = 1;
  if (numel(s.result) == 0) return full(x.graph(), {x.dtype(), s.result}, 0);
  return gather(x, s.indices,
                {.offset_dims = window_dims(s),
                 .collapsed_slice_dims = s.indexed,
                 .start_index_map = s.indexed,
                 .index_vector_dim = static_cast<int64_t>(s.batch.size())},
                sizes);
}

Value scatter_selection(Value x, const Selection& s, Value update, const Combine& combine) {
  if (numel(s.result) == 0) return x;
  return scatter(x, s.indices, update,
                 {.update_window_dims = window_dims(s),
                  .inserted_window_dims = s.indexed,
                  .scatter_dims_to_operand_dims = s.indexed,
                  .index_vector_dim = static_cast<int64_t>(s.batch.size())},
                 combine);
}

Value scatter_rows(Value x, Value index, Value rows, int64_t dim, const Combine& combine) {
  if (rows.numel() == 0) return x;
  return scatter(x, index, rows,
                 {.update_window_dims = around(x.rank(), dim, 1),
                  .inserted_window_dims = {dim},
                  .scatter_dims_to_operand_dims = {dim},
                  .index_vector_dim = 1},
                 combine);
}

Value floor_mean(Value sum, Value count) {
  Value divisor = convert(count, sum.dtype());
  Value quotient = sum / divisor;
  if (!is_integer(sum.dtype())) return quotient;
  return quotient - convert(ne(sum % divisor, 0) & lt(sum, 0), sum.dtype());  // / truncates
}

Value count_indices(Value index, int64_t size, DType dtype) {
  Value flat = reshape(plain_index(index, size), {index.numel()});
  Value zeros = full(index.graph(), {dtype, {size}}, 0);
  return scatter_rows(zeros, flat, full(index.graph(), {dtype, {index.numel()}}, 1), 0, add);
}

// Bisection for all at once: `at` elements are known to be <= the target; try further by halves.
Value count_below(Value sorted, int64_t count) {
  const DType t = sorted.dtype();
  const int64_t n = sorted.numel();
  Graph& g = sorted.graph();
  Value start = full(g, {t, {count}}, 0);
  if (n == 0 || count == 0) return start;
  Value target = iota(g, {t, {count}}, 0);
  Value first_step = scalar(g, t, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n))));
  return while_(
      {start, first_step, sorted, target}, [](const Values& s) { return gt(s[1], 0); },
      [n](const Values& s) -> Values {
        Value next = s[0] + s[1];
        Value probe = take(s[2], minimum(next, n) - 1, 0);
        Value at = where(le(next, n) & le(probe, s[3]), next, s[0]);
        return {at, s[1] >> 1, s[2], s[3]};
      })[0];
}

Value running_count(Value mask) { return cumulative(convert(mask, index_dtype(mask.numel())), 0, Scan::Sum); }

Value true_positions(Value mask, int64_t count) {
  Value running = running_count(mask);
  if (!call().target->scattered_positions) return count_below(running, count);
  const DType t = running.dtype();
  const int64_t n = mask.numel();
  return scatter_rows(full(mask.graph(), {t, {count}}, n), where(mask, running - 1, count),
                      iota(mask.graph(), {t, {n}}, 0), 0, take_new);
}

Reduction reduction_of(const std::string& name, DType t) {
  if (name == "sum" || name == "add" || name == "mean") return {add, 0};
  if (name == "prod" || name == "multiply") return {multiply, 1};
  const bool low = name == "amax";
  TPU_CHECK(low || name == "amin", "reduce argument must be either sum, prod, mean, amax or amin, got ", name, ".");
  Combine combine =
      low ? [](Value a, Value b) { return maximum(a, b); } : [](Value a, Value b) { return minimum(a, b); };
  if (t == PRED) return {combine, !low};
  if (is_floating(t)) return {combine, low ? -INFINITY : INFINITY};
  const int bits = 8 * byte_size(t) - (is_signed_integer(t) ? 1 : 0);
  const auto top = static_cast<int64_t>(bits == 64 ? ~0ull : (1ull << bits) - 1);
  if (!is_signed_integer(t)) return {combine, low ? 0 : top};
  return {combine, low ? -top - 1 : top};
}

// ---- x[...] --------------------------------------------------------------------------------------

namespace {

Value index(Value x, OptValues indices) { return gather_selection(x, select_indices(x, indices)); }

// A single mask among the indices takes one value in all its places: aten/sized.cc leaves only such.
std::optional<size_t> mask_among(const OptValues& indices) {
  for (size_t d = 0; d < indices.size(); ++d) {
    if (indices[d] && (indices[d]->dtype() == PRED || indices[d]->dtype() == U8)) return d;
  }
  return std::nullopt;
}

// `values` may have fewer dimensions than x; at the mask's place it has size 1 or nothing.
Value put_at_mask(Value x, Value mask, int64_t dim, Value values, bool accumulate) {
  const int64_t after = x.rank() - dim - mask.rank();
  Dims on_x = values.dims();
  if (values.rank() > after) {
    const auto at = on_x.end() - after - 1;  // the one dimension that stands for the mask's
    on_x.insert(at, static_cast<size_t>(mask.rank()) - 1, 1);
  }
  while (static_cast<int64_t>(on_x.size()) > x.rank()) on_x.erase(on_x.begin());
  Value fresh = broadcast_to(reshape(values, on_x), x.dims());
  Dims laid(static_cast<size_t>(mask.rank()));
  for (size_t i = 0; i < laid.size(); ++i) laid[i] = dim + static_cast<int64_t>(i);
  Value here = broadcast_in_dim(convert(mask, PRED), x.dims(), laid);
  return where(here, accumulate ? x + fresh : fresh, x);
}

Value index_put(Value x, OptValues indices, Value values, bool accumulate) {
  if (is_weak(values)) values = cast(values, x.dtype());
  TPU_CHECK(values.dtype() == x.dtype(), "Index put requires the source and destination dtypes match, got ",
            torch_name(x.dtype()), " for the destination and ", torch_name(values.dtype()), " for the source.");
  if (const auto dim = mask_among(indices)) {
    return put_at_mask(x, *indices[*dim], static_cast<int64_t>(*dim), values, accumulate);
  }
  const Selection s = select_indices(x, indices);
  Dims dims = values.dims();  // leading ones may be too many
  while (dims.size() > s.result.size() && dims[0] == 1) dims.erase(dims.begin());
  bool fits = dims.size() <= s.result.size();
  for (size_t i = 0; fits && i < dims.size(); ++i) {
    const int64_t have = dims[dims.size() - 1 - i], want = s.result[s.result.size() - 1 - i];
    fits = have == want || have == 1;
  }
  TPU_CHECK(fits, "shape mismatch: value tensor of shape ", shape_text(values.dims()),
            " cannot be broadcast to indexing result of shape ", shape_text(s.result));
  return scatter_selection(x, s, broadcast_to(reshape(values, dims), s.result),
                           accumulate ? Combine(add) : Combine(take_new));
}

const Options kIndices{.host_scalars = true, .host_tensors = true, .no_overlap = true, .mask_indices = true};

}  // namespace

TPU_LOWER({"index.Tensor", "_unsafe_index.Tensor"}, index,
          {.host_tensors = true, .no_overlap = true, .mask_indices = true});
TPU_LOWER({"index_put", "_unsafe_index_put"}, index_put, kIndices);
TPU_LOWER(
    {"_index_put_impl", "_index_put_impl_"},
    [](Value x, OptValues indices, Value values, bool accumulate, bool) {
      return index_put(x, std::move(indices), values, accumulate);
    },
    kIndices);

// ---- Along one dimension -------------------------------------------------------------------------

namespace {

Value index_1d(Value index, int64_t size, ErrorKind kind, std::function<std::string(int64_t)> message) {
  check_range(index, 0, size, kind, std::move(message));
  return at_least_1d(plain_index(index, size));
}

// x where no index stands, else `put` of the rows: the frame of index_add, index_copy, index_reduce.
Value with_rows(Value x, Value index, Value source, const std::function<Value(Value, Value, Value)>& put) {
  Value flat = at_least_1d(x);
  Value rows = at_least_1d(source);
  if (rows.numel() == 0) return x;
  return reshape(put(flat, at_least_1d(index), convert(rows, x.dtype())), x.dims());
}

}  // namespace

TPU_LOWER("index_select",
          [](Value x, Dim dim, Value index) {
            Value rows = at_least_1d(x);
            TPU_CHECK(index.dtype() == S64 || index.dtype() == S32,
                      "index_select(): Expected dtype int32 or int64 for index");
            if (index.rank() > 1) fail(ErrorKind::Index, "index_select(): Index is supposed to be a vector");
            Value i = index_1d(index, rows.dim(dim), ErrorKind::Index, out_of_range);
            if (result_type().numel() == 0) return full(x.graph(), result_type(), 0);
            if (rows.dim(dim) == 0) fail(ErrorKind::Index, "index out of range in self");
            return reshape(take(rows, i, dim), result_type().dims);
          },
          {.host_tensors = true, .no_overlap = true});

// y[index[i]] += alpha * source[i]
TPU_LOWER("index_add",
          [](Value x, Dim dim, Value index, Value source, Scale alpha) {
            TPU_CHECK(x.dtype() == source.dtype(), "index_add_(): self (", torch_name(x.dtype()), ") and source (",
                      torch_name(source.dtype()), ") must have the same scalar type");
            if (alpha.zero) return x;
            if (!alpha.one) source = source * convert(alpha.value, source.dtype());
            const bool vector = x.rank() <= 1;
            const int64_t size = at_least_1d(x).dim(dim);
            return with_rows(x, index, source, [&](Value y, Value i, Value rows) {
              Value at = index_1d(i, size, vector ? ErrorKind::Index : ErrorKind::Runtime,
                                  vector ? out_of_range : out_of_bounds(0, size));
              return scatter_rows(y, at, rows, dim, add);
            });
          },
          {.host_tensors = true, .no_overlap = true});

TPU_LOWER("index_copy",
          [](Value x, Dim dim, Value index, Value source) {
            TPU_CHECK(x.dtype() == source.dtype(),
                      "index_copy_(): self and source expected to have the same dtype, but got (self) ",
                      torch_name(x.dtype()), " and (source) ", torch_name(source.dtype()));
            const int64_t size = at_least_1d(x).dim(dim);
            return with_rows(x, index, source, [&](Value y, Value i, Value rows) {
              const auto message = [text = out_of_bounds(dim, size)](int64_t v) { return "index_copy_(): " + text(v); };
              return scatter_rows(y, index_1d(i, size, ErrorKind::Index, message), rows, dim, take_new);
            });
          },
          {.host_tensors = true, .no_overlap = true});

// y[index[i]] = y[index[i]] op source[i]; without self only the sources count.
TPU_LOWER("index_reduce",
          [](Value x, Dim dim, Value index, Value source, std::string reduce, bool include_self) {
            const int64_t size = at_least_1d(x).dim(dim);
            const bool mean = reduce == "mean";
            const Reduction r = reduction_of(reduce, x.dtype());
            return with_rows(x, index, source, [&](Value y, Value i, Value rows) {
              Value at = index_1d(i, size, ErrorKind::Index, out_of_range);
              Value count = broadcast_along(count_indices(at, size, S32), y.dims(), dim);
              Value touched = gt(count, 0);
              Value start = include_self ? y : where(touched, r.neutral, y);
              Value out = scatter_rows(start, at, rows, dim, r.combine);
              if (!mean) return out;
              return floor_mean(out, include_self ? count + 1 : maximum(count, 1));
            });
          },
          {.host_tensors = true, .no_overlap = true});

namespace {

// y[.., index[i], ..] = value; the positions as a mask, so that nothing is scattered but its bits.
Value index_fill(Value x, Dim dim, Value index, Value value) {
  Value y = at_least_1d(x);
  const int64_t size = y.dim(dim);
  check_range(index, -size, size, ErrorKind::Index, out_of_bounds(dim, size));
  TPU_CHECK(value.rank() == 0, "index_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
            value.rank(), " dimension(s).");
  if (index.numel() == 0 || y.numel() == 0) return x;
  Value at = at_least_1d(wrap_index(index, size));
  Value none = full(x.graph(), {PRED, {size}}, false);
  Value here = scatter_rows(none, at, full(x.graph(), {PRED, at.dims()}, true), 0, or_);
  return reshape(where(broadcast_along(here, y.dims(), dim), cast(value, x.dtype()), y), x.dims());
}

}  // namespace

TPU_LOWER({"index_fill.int_Scalar", "index_fill.int_Tensor"}, index_fill,
          {.host_scalars = true, .host_tensors = true, .check = check_fits, .no_overlap = true});

// ---- By position in the flattened tensor ---------------------------------------------------------

namespace {

Value flat_index(Value index, int64_t numel) {
  check_range(index, -numel, numel, ErrorKind::Index, [numel](int64_t i) {
    return text("out of range: tried to access index ", i, " on a tensor of ", numel, " elements.");
  });
  return reshape(wrap_index(index, numel), {index.numel()});
}

}  // namespace

TPU_LOWER("take",
          [](Value x, Value index) {
            if (index.numel() == 0) return full(x.graph(), result_type(), 0);
            if (x.numel() == 0) fail(ErrorKind::Index, "take(): tried to take from an empty tensor");
            Value flat = reshape(x, {x.numel()});
            return reshape(take(flat, flat_index(index, x.numel()), 0), index.dims());
          },
          {.host_tensors = true, .no_overlap = true});

TPU_LOWER(
    "put",
    [](Value x, Value index, Value source, bool accumulate) {
      TPU_CHECK(index.dtype() == S64, "put_(): Expected a long tensor for index, but got ", torch_name(index.dtype()));
      TPU_CHECK(x.dtype() == source.dtype(),
                "put_(): self and source expected to have the same dtype, but got self.dtype = ", torch_name(x.dtype()),
                " and source.dtype = ", torch_name(source.dtype()));
      TPU_CHECK(index.numel() == source.numel(),
                "put_(): Expected source and index to have the same number of elements, but got source.numel() = ",
                source.numel(), ", index.numel() = ", index.numel());
      if (index.numel() == 0) return x;
      if (x.numel() == 0) fail(ErrorKind::Index, "put_(): Tried to put elements into an empty tensor");
      Value flat = reshape(x, {x.numel()});
      Value out = scatter_rows(flat, flat_index(index, x.numel()), reshape(source, {source.numel()}), 0,
                               accumulate ? Combine(add) : Combine(take_new));
      return reshape(out, x.dims());
    },
    {.host_tensors = true, .no_overlap = true});

}  // namespace tpu::lowering
