// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "lowering/linalg.h"

// Square systems: LU with its solvers, determinants and inverses; Cholesky with its solvers.
namespace tpu::lowering::linalg {
namespace {

Value per_row(Value v) { return expand_dims(v, -1); }  // [B, m] -> [B, m, 1]

// For determinants PyTorch factors the transpose of a contiguous real matrix (its LAPACK is
// column-major), and the gradients count on it.
bool factors_transpose(Value a) { return call().contiguous.at(0) && !is_complex(a.dtype()); }

Dims without_last(const Dims& dims, int64_t n) { return Dims(dims.begin(), dims.end() - n); }

// The parity of the row exchanges: pivots_i != i, counted from 1.
Value swaps_sign(Value pivots, DType t) {
  Value swapped = ne(pivots, iota_like(pivots, -1, S32) + 1);
  Value odd = sum(convert(swapped, S32), -1) & 1;
  return convert(1 - odd * 2, t);
}

struct Factored {
  Lu lu;
  bool of_transpose;
};
Factored factor(Value a) {
  const bool transpose = factors_transpose(a);
  return {lu_factor(flat(transpose ? transposed(a) : a)), transpose};
}

std::string singular_inverse(int64_t info) {
  return text("The diagonal element ", info,
              " is zero, the inversion could not be completed because the input matrix is singular.");
}
std::string singular_system(int64_t) { return "The solver failed because the input matrix is singular."; }
std::string singular_u(int64_t info) {
  return text("U[", info, ",", info, "] is zero and using it on lu_solve would result in a division by zero. ",
              "If you still want to perform the factorization, consider calling linalg.lu(A, pivot) or ",
              "linalg.lu_factor_ex(A, pivot)");
}
std::string not_positive(int64_t info) {
  return text(
      "The factorization could not be completed because the input is not positive-definite (the leading minor of "
      "order ",
      info, " is not positive-definite).");
}

}  // namespace

void check_info(Value info, bool wanted, bool is_matrix, std::string name, std::string (*why)(int64_t)) {
  if (!wanted || info.numel() == 0) return;
  // The first bad matrix and its info in one number, negated so that the first wins the maximum.
  Value place = iota_like(info, 0, S64);
  constexpr int64_t kWidth = int64_t{1} << 32;
  Value code = where(eq(info, 0), 0, convert(info, S64) - (place + 1) * kWidth);
  check_range(code, 0, 1, ErrorKind::Linalg, [=](int64_t v) {
    const int64_t batch = (-v + kWidth - 1) / kWidth, at = v + batch * kWidth;
    return name + ": " + (is_matrix ? "" : text("(Batch element ", batch - 1, "): ")) + why(at);
  });
}

// For k = 0 ..: exchange row k with the row of the largest |a_ik|, i >= k; l_i = a_ik / a_kk;
// a_ij -= l_i a_kj
Lu lu_factor(Value a) {
  const int64_t m = rows(a), n = columns(a), k_max = std::min(m, n), batch = a.dim(0);
  Graph& g = a.graph();
  Value perm = iota(g, {S32, {batch, m}}, 1);
  Value pivots = full(g, {S32, {batch, k_max}}, 0), info = full(g, {S32, {batch}}, 0);
  if (a.numel() == 0) return {a, pivots, perm, info};
  Value row = iota(g, {S32, {batch, m}}, 1);
  Value column = iota(g, {S32, {batch, 1, n}}, 2);
  const Values out = for_range(g, k_max, {a, pivots, perm, info}, [&](Value k, const Values& s) {
    Value a_k = squeeze(at(s[0], 2, k), 2);
    Value magnitude = is_complex(a.dtype()) ? abs(real(a_k)) + abs(imag(a_k)) : abs(a_k);
    Value p = argmax(where(lt(row, k), -1, magnitude), 1, keep, S32).index;  // [B, 1]
    Value row_k = at(s[0], 1, k);
    Value pick = per_row(eq(row, p));  // [B, m, 1]
    Value row_p = sum(where(broadcast_to(pick, s[0].dims()), s[0], 0), 1, keep);
    Value is_k = per_row(eq(row, k));
    Value all = where(broadcast_to(is_k, s[0].dims()), row_p, where(broadcast_to(pick, s[0].dims()), row_k, s[0]));
    Value pivot = at(row_p, 2, k);  // [B, 1, 1]
    Value zero = eq(pivot, 0);
    Value below = per_row(gt(row, k));
    Value l = at(all, 2, k);
    l = where(below & !zero, l / where(zero, 1, pivot), where(below, l, 0));
    Value right = gt(column, k);
    all = all - l * where(right, row_p, 0);
    all = where(below & eq(column, k), l, all);
    Value perm_k = at(s[2], 1, k), perm_p = sum(where(eq(row, p), s[2], 0), 1, keep);
    Value order = where(eq(row, k), perm_p, where(eq(row, p), perm_k, s[2]));
    Value first = eq(s[3], 0) & reshape(zero, {batch});
    return Values{all, with_index(s[1], 1, k, p + 1), order, where(first, k + 1, s[3])};
  });
  return {out[0], out[1], out[2], out[3]};
}

Value perm_of_pivots(Value pivots, int64_t m) {
  const int64_t batch = pivots.dim(0);
  Graph& g = pivots.graph();
  Value row = iota(g, {S32, {batch, m}}, 1);
  if (row.numel() == 0) return row;
  return for_range(g, pivots.dim(1), {row}, [&](Value k, const Values& s) {
    Value p = at(pivots, 1, k) - 1;
    Value perm_k = at(s[0], 1, k), perm_p = sum(where(eq(row, p), s[0], 0), 1, keep);
    return Values{where(eq(row, k), perm_p, where(eq(row, p), perm_k, s[0]))};
  })[0];
}

Value permute_rows(Value b, Value perm) {
  if (b.numel() == 0) return b;
  return take_along(b, broadcast_to(per_row(perm), b.dims()), 1);
}

Value unpermute_rows(Value b, Value perm) {
  Graph& g = b.graph();
  const Dims square{perm.dim(0), perm.dim(1), perm.dim(1)};
  Value place = iota(g, {S32, square}, 2);
  // inverse_i = the j with perm_j = i
  Value matches = eq(broadcast_to(expand_dims(perm, 1), square), iota(g, {S32, square}, 1));
  return permute_rows(b, sum(where(matches, place, 0), 2));
}

Value lu_solve(Value lu, Value perm, Value b, bool adjoint) {
  if (!adjoint) return solve_triangle(lu, solve_triangle(lu, permute_rows(b, perm), true, true), false, false);
  Value y = solve_triangle(lu, b, false, false, Transpose::ADJOINT);
  return unpermute_rows(solve_triangle(lu, y, true, true, Transpose::ADJOINT), perm);
}

TPU_LOWER("linalg_lu_factor_ex", [](Value a, bool pivot, bool check_errors) {
  TPU_CHECK(pivot, "linalg.lu_factor: LU without pivoting is not implemented on the CPU");
  const Lu f = lu_factor(flat(a));
  check_info(f.info, check_errors, a.rank() == 2, "torch.linalg.lu_factor_ex", singular_u);
  return std::tuple(unflat(f.lu, a.dims()), reshape(f.pivots, result_type(1).dims),
                    reshape(f.info, result_type(2).dims));
});

namespace {

// P_(perm_i) i = 1
Value permutation_matrix(Value perm, DType t) {
  const Dims square{perm.dim(0), perm.dim(1), perm.dim(1)};
  return convert(eq(iota(perm.graph(), {S32, square}, 1), broadcast_to(expand_dims(perm, 1), square)), t);
}
// L has ones on the diagonal; of min(m, n) columns, U of as many rows
Value unpack_l(Value lu) {
  Value l = slice_dim(lu, -1, 0, std::min(rows(lu), columns(lu)));
  return where(eq(iota_like(l, -2, S32), iota_like(l, -1, S32)), 1, triangle(l, true));
}
Value unpack_u(Value lu) { return triangle(slice_dim(lu, -2, 0, std::min(rows(lu), columns(lu))), false); }

}  // namespace

TPU_LOWER("linalg_lu", [](Value a, bool pivot) {
  TPU_CHECK(pivot, "linalg.lu_factor: LU without pivoting is not implemented on the CPU");
  const Lu f = lu_factor(flat(a));
  return std::tuple(unflat(permutation_matrix(f.perm, a.dtype()), result_type(0).dims),
                    unflat(unpack_l(f.lu), result_type(1).dims), unflat(unpack_u(f.lu), result_type(2).dims));
});

TPU_LOWER("lu_unpack", [](Value lu, Value pivots, bool unpack_data, bool unpack_pivots) {
  Graph& g = lu.graph();
  Value none = full(g, {lu.dtype(), {0}}, 0);
  Value p = none, l = none, u = none;
  if (unpack_pivots) {
    Value flat_pivots = reshape(pivots, {numel(batch_of(lu.dims())), pivots.dim(pivots.rank() - 1)});
    p = unflat(permutation_matrix(perm_of_pivots(flat_pivots, rows(lu)), lu.dtype()), result_type(0).dims);
  }
  if (unpack_data) {
    l = unpack_l(lu);
    u = unpack_u(lu);
  }
  return std::tuple(p, l, u);
});

TPU_LOWER("linalg_lu_solve", [](Value lu, Value pivots, Value b, bool left, bool adjoint_) {
  const Dims& result = result_type().dims;
  const Dims batch = batch_of(result);
  const int64_t n = rows(lu), k = pivots.dim(pivots.rank() - 1), count = numel(batch);
  Dims pivot_dims = batch;
  pivot_dims.push_back(k);
  Value perm = perm_of_pivots(reshape(broadcast_to(pivots, pivot_dims), {count, k}), n);
  Value f = flat(broadcast_batch(lu, batch)), x = flat(broadcast_to(b, result));
  // x a = b is a^H x^H = b^H
  x = left ? lu_solve(f, perm, x, adjoint_) : adjoint(lu_solve(f, perm, adjoint(x), !adjoint_));
  return unflat(x, result);
});

TPU_LOWER("_linalg_solve_ex", [](Value a, Value b, bool left, bool check_errors) {
  const Type result = result_type(0);
  const Lu f = lu_factor(flat(a));
  check_info(f.info, check_errors, a.rank() == 2, "torch.linalg.solve_ex", singular_system);
  // As NumPy: b is a vector, or a batch of them, when it has the shape of a's batch and rows.
  Dims vectors = without_last(a.dims(), 1);
  const bool is_vector = b.rank() == 1 || (b.rank() == a.rank() - 1 && b.dims() == vectors);
  Dims dims = result.dims;
  if (is_vector) {
    b = expand_dims(b, -1);
    dims.push_back(1);
  }
  const Dims batch = batch_of(dims);
  Value x = flat(broadcast_to(b, dims));
  Value lu = flat(broadcast_batch(unflat(f.lu, a.dims()), batch));
  Dims perm_dims = batch;
  perm_dims.push_back(rows(a));
  Value perm = reshape(broadcast_to(reshape(f.perm, vectors), perm_dims), {x.dim(0), rows(a)});
  x = left ? lu_solve(lu, perm, x, false) : adjoint(lu_solve(lu, perm, adjoint(x), true));
  return std::tuple(reshape(x, result.dims), unflat(f.lu, result_type(1).dims), reshape(f.pivots, result_type(2).dims),
                    reshape(f.info, result_type(3).dims));
});

TPU_LOWER("linalg_inv_ex", [](Value a, bool check_errors) {
  const Lu f = lu_factor(flat(a));
  check_info(f.info, check_errors, a.rank() == 2, "linalg.inv_ex", singular_inverse);
  Value x = lu_solve(f.lu, f.perm, eye(f.lu, rows(a)), false);
  return std::tuple(unflat(x, a.dims()), reshape(f.info, result_type(1).dims));
});

// det a = (-1)^swaps prod_i U_ii
TPU_LOWER("_linalg_det", [](Value a) {
  const Factored f = factor(a);
  Value det = prod(diagonal(f.lu.lu), -1) * swaps_sign(f.lu.pivots, a.dtype());
  return std::tuple(reshape(det, result_type(0).dims), unflat(f.lu.lu, result_type(1).dims),
                    reshape(f.lu.pivots, result_type(2).dims));
});

TPU_LOWER("_linalg_slogdet", [](Value a) {
  const Factored f = factor(a);
  Value d = diagonal(f.lu.lu);
  Value sign_ = prod(sign(d), -1) * swaps_sign(f.lu.pivots, a.dtype());
  Value log_abs = sum(log(abs(d)), -1);
  return std::tuple(reshape(sign_, result_type(0).dims), reshape(log_abs, result_type(1).dims),
                    unflat(f.lu.lu, result_type(2).dims), reshape(f.lu.pivots, result_type(3).dims));
});

namespace {

// The order of the first leading minor that isn't positive, or 0: elimination by Schur complements.
Value first_bad_minor(Value a) {
  Graph& g = a.graph();
  Value info = full(g, {S32, {a.dim(0)}}, 0);
  return for_range(g, rows(a), {a, info}, [&](Value k, const Values& s) {
    Value column = at(s[0], 2, k);
    Value d = at(column, 1, k);  // [B, 1, 1]
    Value real_d = real(d);
    Value good = gt(real_d, 0);
    Value update = column * adjoint(column) / where(good, d, 1);
    Value first = eq(s[1], 0) & !reshape(good, {a.dim(0)});
    return Values{s[0] - update, where(first, k + 1, s[1])};
  })[1];
}

// Lower factor from the lower triangle, with LAPACK's info. The compiler's own factor is NaN where
// the matrix isn't positive-definite; only then are the minors looked at.
std::pair<Value, Value> cholesky_lower(Value a) {
  if (a.numel() == 0) return {a, full(a.graph(), {S32, {a.dim(0)}}, 0)};
  Value l = triangle(hlo::cholesky(a, true), true);
  Value bad = any(is_nan(diagonal(l)), {0, 1});
  Value lower = triangle(a, true), hermitian = lower + adjoint(triangle(a, true, -1));
  Value info = if_(
      bad, [&] { return Values{first_bad_minor(hermitian)}; },
      [&] { return Values{full(a.graph(), {S32, {a.dim(0)}}, 0)}; })[0];
  return {l, info};
}

Value cholesky_factor(Value a, bool upper, Value* info) {
  const auto [l, bad] = cholesky_lower(flat(upper ? adjoint(a) : a));
  *info = bad;
  return unflat(upper ? adjoint(l) : l, a.dims());
}

// Solves (L L^H) x = b, or (U^H U) x = b
Value cholesky_solve(Value factor, Value b, bool upper) {
  const Transpose first = upper ? Transpose::ADJOINT : Transpose::NO_TRANSPOSE;
  const Transpose second = upper ? Transpose::NO_TRANSPOSE : Transpose::ADJOINT;
  return solve_triangle(factor, solve_triangle(factor, b, !upper, false, first), !upper, false, second);
}

}  // namespace

TPU_LOWER("linalg_cholesky_ex", [](Value a, bool upper, bool check_errors) {
  Value info, factor = cholesky_factor(a, upper, &info);
  check_info(info, check_errors, a.rank() == 2, "torch.linalg.cholesky_ex", not_positive);
  return std::tuple(factor, reshape(info, result_type(1).dims));
});

TPU_LOWER("cholesky", [](Value a, bool upper) {
  Value info, factor = cholesky_factor(a, upper, &info);
  check_info(info, true, a.rank() == 2, "cholesky", not_positive);
  return factor;
});

TPU_LOWER("_cholesky_solve_helper", [](Value b, Value factor, bool upper) {
  return unflat(cholesky_solve(flat(factor), flat(b), upper), result_type().dims);
});

TPU_LOWER("cholesky_inverse", [](Value factor, bool upper) {
  Value f = flat(factor);
  return unflat(cholesky_solve(f, eye(f, rows(f)), upper), factor.dims());
});

}  // namespace tpu::lowering::linalg
