// SPDX-License-Identifier: Apache-2.0
// Rows in groups, each group with a matrix of its own: torch.tpu.ops.ragged_dot and its gradient. Group sizes are
// run-time numbers, so one program serves all. XLA has nothing better to offer a TPU: its own ragged_dot becomes such
// products.
#include "lowering/indexing.h"

namespace tpu::lowering {
namespace {

struct Groups {
  Value first, end;  // of each group, S32
  Value rows;        // 0 .. m-1 as [m, 1]
  // The rows of group g (rank 0) and zeros elsewhere.
  Value only(Value x, Value g) const {
    const auto at = [&](Value v) { return reshape(dynamic_slice(v, {g}, {1}), {}); };
    return where(ge(rows, at(first)) & lt(rows, at(end)), x, 0);
  }
};

Groups groups_of(Value x, Value sizes) {
  Value count = convert(sizes, S32), end = cumulative(count, 0, Scan::Sum);
  return {end - count, end, iota(graph(), {S32, {x.dim(0), 1}}, 0)};
}

void check(Value a, Value b, Value sizes, const char* name) {
  TPU_CHECK(a.dtype() == b.dtype(), name, ": expected operands of one dtype, but got ", torch_name(a.dtype()), " and ",
            torch_name(b.dtype()));
  TPU_CHECK(is_floating(a.dtype()), name, ": expected a floating point dtype, but got ", torch_name(a.dtype()));
  TPU_CHECK(sizes.rank() == 1 && is_integer(sizes.dtype()), name, ": group_sizes must be a vector of integers");
}

// One pass over the groups.
Value over_groups(Value start, int64_t count, const std::function<Value(Value, Value)>& step) {
  const auto more = [&](const Values& s) { return lt(s[0], count); };
  const auto next = [&](const Values& s) { return Values{s[0] + 1, step(s[0], s[1])}; };
  return while_({scalar(graph(), S32, 0), start}, more, next)[1];
}

Value part_of(Value v, Value g) {
  Value zero = scalar(graph(), S32, 0);
  return reshape(dynamic_slice(v, {g, zero, zero}, {1, v.dim(1), v.dim(2)}), {v.dim(1), v.dim(2)});
}

}  // namespace

// y[i] = x[i] w[g] for the rows i of group g; rows after the last group are 0.
TPU_LOWER("tpu::ragged_dot",
          [](Value x, Value w, Value sizes) {
            check(x, w, sizes, "ragged_dot");
            TPU_CHECK(x.rank() == 2 && w.rank() == 3 && x.dim(1) == w.dim(1) && w.dim(0) == sizes.dim(0),
                      "ragged_dot: expected [m, k], [groups, k, n] and [groups], but got ", to_string(x.type()), ", ",
                      to_string(w.type()), " and ", to_string(sizes.type()));
            const DType t = compute_dtype(x.dtype());
            const Groups groups = groups_of(x, sizes);
            Value zeros = full(graph(), {t, {x.dim(0), w.dim(2)}}, 0);
            if (zeros.numel() == 0) return convert(zeros, x.dtype());
            Value y = over_groups(zeros, w.dim(0), [&](Value g, Value sum) {
              return sum + matmul2(groups.only(x, g), part_of(w, g), t, call().precision);
            });
            return convert(y, x.dtype());
          },
          {.products = true, .no_meta = true});

// dw[g] = sum over the rows i of group g of x[i]^T dy[i]
TPU_LOWER("tpu::ragged_dot_weight_grad",
          [](Value x, Value dy, Value sizes) {
            check(x, dy, sizes, "ragged_dot_weight_grad");
            TPU_CHECK(x.rank() == 2 && dy.rank() == 2 && x.dim(0) == dy.dim(0),
                      "ragged_dot_weight_grad: expected [m, k] and [m, n], but got ", to_string(x.type()), " and ",
                      to_string(dy.type()));
            const DType t = compute_dtype(x.dtype());
            const Groups groups = groups_of(x, sizes);
            Value zeros = full(graph(), {t, {sizes.dim(0), x.dim(1), dy.dim(1)}}, 0);
            if (zeros.numel() == 0) return convert(zeros, x.dtype());
            Value zero = scalar(graph(), S32, 0);
            Value dw = over_groups(zeros, sizes.dim(0), [&](Value g, Value all) {
              Value one = matmul2(transpose(groups.only(x, g), {1, 0}), dy, t, call().precision);
              return dynamic_update_slice(all, expand_dims(one, 0), {g, zero, zero});
            });
            return convert(dw, x.dtype());
          },
          {.products = true, .no_meta = true});

TPU_LOWER("tpu::optimization_barrier", [](Values xs) { return optimization_barrier(xs); }, {.no_meta = true});

}  // namespace tpu::lowering
