// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "lowering/indexing.h"

namespace tpu::lowering {
namespace {

// rows[i] added up into table row index[i]; rows whose index is out of range are left out.
Value add_rows(Value index, Value rows, int64_t count) {
  return scatter_rows(full(rows.graph(), {rows.dtype(), {count, rows.dim(1)}}, 0), index, rows, 0, add);
}

}  // namespace

TPU_LOWER("embedding",
          [](Value weight, Value indices, Unused, Unused, Unused) {
            TPU_CHECK(weight.rank() == 2, "'weight' must be 2-D");
            check_range(indices, 0, weight.dim(0), ErrorKind::Index, out_of_range);
            if (result_type().numel() == 0) return full(weight.graph(), result_type(), 0);
            if (weight.dim(0) == 0) fail(ErrorKind::Index, out_of_range(0));
            return take(weight, plain_index(indices, weight.dim(0)), 0);
          },
          {.host_tensors = true});

// dw[v] = sum over i with indices[i] = v of dy[i], divided by how often v occurs if asked for
TPU_LOWER("embedding_dense_backward",
          [](Value dy, Value indices, int64_t rows, int64_t padding_idx, bool by_frequency) {
            const int64_t n = indices.numel(), width = result_type().dims[1];
            Value g = reshape(accumulate(dy), {n, width});
            Value at = reshape(plain_index(indices, rows), {n});
            if (padding_idx >= 0) at = where(eq(at, padding_idx), rows, at);
            if (by_frequency) g = g / expand_dims(take(count_indices(at, rows, g.dtype()), at, 0), 1);
            return convert(add_rows(at, g, rows), dy.dtype());
          },
          {.host_tensors = true});

// The rows that are looked up are scaled down to max_norm where they exceed it.
TPU_LOWER("embedding_renorm_",
          [](Value weight, Value indices, Value max_norm, double p) {
            check_range(indices, 0, weight.dim(0), ErrorKind::Index, out_of_range);
            if (indices.numel() == 0) return weight;
            Value at = reshape(plain_index(indices, weight.dim(0)), {indices.numel()});
            Value rows = accumulate(take(weight, at, 0));
            Value size = abs(rows), norm;
            if (p == 2)
              norm = sqrt(sum(size * size, 1, keep));
            else if (p == 1)
              norm = sum(size, 1, keep);
            else if (std::isinf(p))
              norm = max(size, 1, keep);
            else if (p == 0)
              norm = sum(convert(ne(size, 0), rows.dtype()), 1, keep);
            else
              norm = pow(sum(pow(size, p), 1, keep), 1 / p);
            Value limit = cast(max_norm, rows.dtype());
            Value scaled = where(broadcast_to(gt(norm, limit), rows.dims()), rows * (limit / (norm + 1e-7)), rows);
            return scatter_rows(weight, at, convert(scaled, weight.dtype()), 0, take_new);
          },
          {.host_tensors = true});

// ---- Bags: the rows of each bag added up, averaged, or their maximum -------------------------------

namespace {

enum BagMode : int64_t { Sum = 0, Mean = 1, Max = 2 };

struct Bags {
  Value bag;    // of each index; `count` where it is in none, or is padding
  Value sizes;  // S32 [count], padding not counted
};

Bags bags_of(Value indices, Value bag, int64_t count, int64_t padding_idx) {
  Value b = plain_index(bag, count);
  if (padding_idx >= 0) b = where(eq(indices, padding_idx), count, b);
  return {b, count_indices(b, count, S32)};
}

Value mean_divisor(const Bags& bags, DType t) { return maximum(convert(bags.sizes, t), 1); }

// -> output, bag of each index, size of each bag, and for Max the index that gave each element
Values embedding_bag(Value weight, Value indices, Value offsets, Unused, int64_t mode, Unused,
                     std::optional<Value> sample_weights, bool include_last, int64_t padding_idx) {
  const int64_t n = indices.numel(), rows = weight.dim(0), count = result_type(0).dims[0];
  check_range(indices, 0, rows, ErrorKind::Runtime, [rows](int64_t i) {
    return text("embedding_bag: Expected idx >= 0 && idx < num_embeddings but found idx to be ", i);
  });
  if (offsets.numel() > 0) {
    check_range(slice_dim(offsets, 0, 0, 1), 0, 1, ErrorKind::Runtime, [](int64_t i) {
      return text(
          "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0. However, "
          "got ",
          i);
    });
    check_range(slice_dim(offsets, 0, offsets.numel() - 1, offsets.numel()), 0, n + 1, ErrorKind::Runtime,
                [n](int64_t i) {
                  return text("offsets[-1] can not be greater than input's length(", n, ") but got offsets[-1] of ", i);
                });
  }
  if (padding_idx < -rows || padding_idx >= rows) padding_idx = -1;
  Value at = plain_index(indices, rows);
  Value bag = count_below(convert(offsets, index_dtype(n)), n) - 1;
  const Bags bags = bags_of(indices, bag, count, padding_idx);
  Value picked = rows == 0 ? full(weight.graph(), {compute_dtype(weight.dtype()), {n, weight.dim(1)}}, 0)
                           : accumulate(take(weight, at, 0));
  if (sample_weights) picked = picked * expand_dims(convert(*sample_weights, picked.dtype()), 1);
  const Dims out{count, weight.dim(1)};
  Value y, best = full(weight.graph(), result_type(3), 0);
  if (mode == Max) {
    y = scatter_rows(full(weight.graph(), {picked.dtype(), out}, -INFINITY), bags.bag, picked, 0,
                     [](Value a, Value b) { return maximum(a, b); });
    if (n > 0 && count > 0) {  // the first of the equals
      Value is_best = eq(picked, take(y, minimum(bags.bag, count - 1), 0));
      Value place = where(is_best, iota_like(picked, 0, S32), n);
      place = scatter_rows(full(weight.graph(), {S32, out}, n - 1), bags.bag, place, 0,
                           [](Value a, Value b) { return minimum(a, b); });
      best = convert(reshape(take(indices, reshape(place, {numel(out)}), 0), out), result_type(3).dtype);
    }
    Value empty = broadcast_along(eq(bags.sizes, 0), out, 0);
    y = where(empty, 0, y);
    if (best.dims() == out) best = where(empty, 0, best);
  } else {
    y = add_rows(bags.bag, picked, count);
    if (mode == Mean) y = y / expand_dims(mean_divisor(bags, y.dtype()), 1);
  }
  Value sizes = convert(bags.sizes, result_type(2).dtype);
  if (include_last) sizes = pad_dim(sizes, 0, 0, result_type(2).dims[0] - count);
  Value of_index =
      result_type(1).dims == bag.dims() ? convert(bag, result_type(1).dtype) : full(weight.graph(), result_type(1), 0);
  return {convert(y, weight.dtype()), of_index, sizes, best};
}

}  // namespace

TPU_LOWER({"_embedding_bag", "_embedding_bag_forward_only"}, embedding_bag, {.host_tensors = true});

namespace {

Value bag_backward(Value dy, Value indices, Value bag, Value sizes, Value best, int64_t rows, bool by_frequency,
                   int64_t mode, std::optional<Value> sample_weights, int64_t padding_idx) {
  const int64_t n = indices.numel(), width = dy.dim(1), count = dy.dim(0);
  const Type out{compute_dtype(dy.dtype()), {rows, width}};
  if (n == 0 || count == 0) return full(dy.graph(), {dy.dtype(), out.dims}, 0);
  Value g = accumulate(dy);
  if (mode == Max) {
    // dw[best[b, d], d] += dy[b, d] of the bags that aren't empty
    const DType t = index_dtype(rows * width);
    Value at = convert(best, t) * width + iota_like(best, 1, t);
    Value filled = gt(slice_dim(sizes, 0, 0, count), 0);
    at = where(broadcast_along(filled, at.dims(), 0), at, rows * width);
    Value flat = full(dy.graph(), {out.dtype, {rows * width}}, 0);
    flat = scatter_rows(flat, reshape(at, {count * width}), reshape(g, {count * width}), 0, add);
    return convert(reshape(flat, out.dims), dy.dtype());
  }
  const Bags bags = bags_of(indices, bag, count, padding_idx);
  if (mode == Mean) g = g / expand_dims(mean_divisor(bags, g.dtype()), 1);
  Value each = take(g, minimum(bags.bag, count - 1), 0);
  if (sample_weights) each = each * expand_dims(convert(*sample_weights, each.dtype()), 1);
  Value at = where(eq(bags.bag, count), rows, plain_index(indices, rows));
  if (by_frequency) each = each / expand_dims(take(count_indices(at, rows, each.dtype()), minimum(at, rows - 1), 0), 1);
  return convert(add_rows(at, each, rows), dy.dtype());
}

}  // namespace

TPU_LOWER("_embedding_bag_backward",
          [](Value dy, Value indices, Value, Value bag, Value sizes, Value best, int64_t rows, bool by_frequency,
             int64_t mode, bool sparse, std::optional<Value> sample_weights, int64_t padding_idx) {
            if (sparse)
              fail(ErrorKind::NotImplemented,
                   "embedding_bag: the tpu device has no sparse gradients; use sparse=False");
            return bag_backward(dy, indices, bag, sizes, best, rows, by_frequency, mode, sample_weights, padding_idx);
          },
          {.no_meta = true});

TPU_LOWER("_embedding_bag_dense_backward",
          [](Value dy, Value indices, Value bag, Value sizes, Value best, int64_t rows, bool by_frequency, int64_t mode,
             std::optional<Value> sample_weights, int64_t padding_idx) {
            return bag_backward(dy, indices, bag, sizes, best, rows, by_frequency, mode, sample_weights, padding_idx);
          },
          {.no_meta = true});

// ds[i] = dy[bag[i]] . w[indices[i]]
TPU_LOWER("_embedding_bag_per_sample_weights_backward",
          [](Value dy, Value weight, Value indices, Value, Value bag, Unused, int64_t padding_idx) {
            const int64_t n = indices.numel(), count = dy.dim(0), rows = weight.dim(0);
            if (n == 0 || count == 0) return full(dy.graph(), {dy.dtype(), {n}}, 0);
            const Bags bags = bags_of(indices, bag, count, padding_idx);
            Value g = accumulate(take(dy, minimum(bags.bag, count - 1), 0));
            Value w = accumulate(take(weight, plain_index(indices, rows), 0));
            return convert(where(eq(bags.bag, count), 0, sum(g * w, 1)), dy.dtype());
          },
          {.no_meta = true});

}  // namespace tpu::lowering
