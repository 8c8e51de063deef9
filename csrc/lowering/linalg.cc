// SPDX-License-Identifier: Apache-2.0
#include "lowering/linalg.h"

#include <algorithm>

#include "lowering/promote.h"

// What the factorizations share, and what needs none: triangular systems, matrix_exp.
namespace tpu::lowering::linalg {

int64_t rows(Value a) { return a.dim(a.rank() - 2); }
int64_t columns(Value a) { return a.dim(a.rank() - 1); }

Dims batch_of(const Dims& dims, int64_t matrix_rank) { return Dims(dims.begin(), dims.end() - matrix_rank); }

Value flat(Value a) { return reshape(a, {numel(batch_of(a.dims())), rows(a), columns(a)}); }
Value unflat(Value a, const Dims& dims) { return reshape(a, dims); }

Value broadcast_batch(Value a, const Dims& batch) {
  Dims dims = broadcast_dims(batch_of(a.dims()), batch, "batch dimensions");
  dims.insert(dims.end(), {rows(a), columns(a)});
  return broadcast_to(a, dims);
}

Value eye(Value like, int64_t n) {
  Dims dims = batch_of(like.dims());
  dims.insert(dims.end(), {n, n});
  Graph& g = like.graph();
  const int64_t r = like.rank();
  return convert(eq(iota(g, {S32, dims}, r - 2), iota(g, {S32, dims}, r - 1)), like.dtype());
}

Value triangle(Value a, bool lower, int64_t diagonal) {
  Value row = iota_like(a, -2, S32), column = iota_like(a, -1, S32);
  return where(lower ? le(column, row + diagonal) : ge(column, row + diagonal), a, 0);
}

Value diagonal(Value a) {
  const int64_t k = std::min(rows(a), columns(a));
  a = slice_dim(slice_dim(a, -1, 0, k), -2, 0, k);
  return sum(where(eq(iota_like(a, -2, S32), iota_like(a, -1, S32)), a, 0), -1);
}

Value abs2(Value a) { return is_complex(a.dtype()) ? real(a) * real(a) + imag(a) * imag(a) : a * a; }
Value norm1(Value a) { return max(sum(abs(a), -2), -1); }

Values for_range(Graph& graph, int64_t count, const Values& state,
                 const std::function<Values(Value k, const Values& state)>& body) {
  if (count == 0) return state;
  Values all{scalar(graph, S32, 0)};
  all.insert(all.end(), state.begin(), state.end());
  Values out = while_(
      all, [&](const Values& s) { return lt(s[0], static_cast<int32_t>(count)); },
      [&](const Values& s) {
        Values next = body(s[0], Values(s.begin() + 1, s.end()));
        next.insert(next.begin(), s[0] + 1);
        return next;
      });
  return Values(out.begin() + 1, out.end());
}

Value at(Value a, int64_t dim, Value k) {
  dim = wrap_dim(dim, a.rank(), "at");
  Values starts(static_cast<size_t>(a.rank()), scalar(a.graph(), S32, 0));
  starts[static_cast<size_t>(dim)] = k;
  Dims sizes = a.dims();
  sizes[static_cast<size_t>(dim)] = 1;
  return dynamic_slice(a, starts, sizes);
}

Value with_index(Value a, int64_t dim, Value k, Value part) {
  dim = wrap_dim(dim, a.rank(), "with_index");
  Values starts(static_cast<size_t>(a.rank()), scalar(a.graph(), S32, 0));
  starts[static_cast<size_t>(dim)] = k;
  return dynamic_update_slice(a, part, starts);
}

Value solve_triangle(Value a, Value b, bool lower, bool unit, Transpose transpose) {
  if (numel(a.dims()) == 0 || numel(b.dims()) == 0) return zeros_like(b);
  if (transpose == Transpose::ADJOINT && !is_complex(a.dtype())) transpose = Transpose::TRANSPOSE;
  return triangular_solve(a, b, true, lower, unit, transpose);
}

namespace {

// left: a x = b; otherwise x a = b, which is a^T x^T = b^T. The batch is the result's.
Value solve_triangular(Value a, Value b, bool upper, bool left, bool unit, bool transpose, const Dims& result) {
  const Dims batch = batch_of(result);
  a = broadcast_batch(a, batch);
  b = broadcast_to(b, result);
  Value x = left ? flat(b) : transposed(flat(b));
  const bool transposes = transpose != !left;
  x = solve_triangle(flat(a), x, !upper, unit, transposes ? Transpose::TRANSPOSE : Transpose::NO_TRANSPOSE);
  return unflat(left ? x : transposed(x), result);
}

}  // namespace

TPU_LOWER("linalg_solve_triangular", [](Value a, Value b, bool upper, bool left, bool unitriangular) {
  return solve_triangular(a, b, upper, left, unitriangular, false, result_type().dims);
});

TPU_LOWER("triangular_solve", [](Value b, Value a, bool upper, bool transpose, bool unitriangular) {
  return std::tuple(solve_triangular(a, b, upper, true, unitriangular, transpose, result_type(0).dims),
                    broadcast_to(a, result_type(1).dims));
});

// e^a = (e^(a / 2^s))^(2^s), with the Taylor polynomial of degree 18 inside, for which |a| / 2^s
// must be below theta (as PyTorch).
TPU_LOWER("linalg_matrix_exp", [](Value input) {
  if (input.numel() == 0) return input;
  Value a = accumulate(flat(input));
  const bool wide = real_of(a.dtype()) == F64;
  const double theta = wide ? 1.090863719290036 : 3.010066362817634;
  const DType r = real_of(a.dtype());
  Value squarings = maximum(ceil(log(norm1(a) * (1 / theta)) * 1.4426950408889634), 0);
  squarings = where(is_finite(squarings), squarings, 0);
  Value factor = pow(like(squarings, 0.5), squarings);
  const auto per_matrix = [](Value v) { return expand_dims(expand_dims(v, -1), -1); };
  const DType t = a.dtype();
  a = a * convert(per_matrix(factor), t);
  Value one = eye(a, rows(a)), a2 = matmul(a, a), a3 = matmul(a2, a), a4 = matmul(a2, a2);
  double coefficient[19] = {1};
  for (int i = 1; i <= 18; ++i) coefficient[i] = coefficient[i - 1] / i;
  Value p;
  for (int block = 4; block >= 0; --block) {
    const double* c = coefficient + 4 * block;
    Value part = one * c[0] + a * c[1] + a2 * c[2];
    if (block < 4) part = part + a3 * c[3] + matmul(a4, p);
    p = part;
  }
  // Batched: every matrix stops squaring at its own count.
  Value last = max(squarings, 0);
  Values out = while_(
      {scalar(a.graph(), r, 0), p}, [&](const Values& s) { return lt(s[0], last); },
      [&](const Values& s) {
        Value more = per_matrix(lt(s[0], squarings));
        return Values{s[0] + 1, where(broadcast_to(more, s[1].dims()), matmul(s[1], s[1]), s[1])};
      });
  return convert(unflat(out[1], input.dims()), input.dtype());
});

}  // namespace tpu::lowering::linalg
