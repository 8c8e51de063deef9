// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "lowering/linalg.h"
#include "lowering/promote.h"

// Orthogonal factorizations: QR, eigenvectors of Hermitian matrices, singular values.
namespace tpu::lowering::linalg {
namespace {

Value per_matrix(Value v) { return expand_dims(expand_dims(v, -1), -1); }
Value empty(Value a) { return full(a.graph(), {a.dtype(), {0}}, 0); }
Value as_complex(Value re, DType t) { return is_complex(t) ? complex(re, zeros_like(re)) : re; }

}  // namespace

// For k = 0 ..: H_k = 1 - tau v v^H with v_k = 1 takes column k below the diagonal to zero:
//   beta = -sign(Re alpha) |x|      tau = (beta - alpha) / beta      v = x / (alpha - beta)
// tau = 0 where there is nothing to take away.
Qr geqrf(Value a) {
  const int64_t m = rows(a), n = columns(a), k_max = std::min(m, n), batch = a.dim(0);
  Graph& g = a.graph();
  const DType t = a.dtype();
  Value tau = full(g, {t, {batch, k_max}}, 0);
  if (a.numel() == 0) return {a, tau};
  Value row = iota(g, {S32, {batch, m, 1}}, 1), column = iota(g, {S32, {batch, 1, n}}, 2);
  const Values out = for_range(g, k_max, {a, tau}, [&](Value k, const Values& s) {
    Value x = at(s[0], 2, k);                       // [B, m, 1]
    Value alpha = at(x, 1, k), below = gt(row, k);  // [B, 1, 1]
    // Scaled, so that squares neither overflow nor vanish.
    Value largest = max(where(below, abs(x), 0), 1, keep);
    largest = maximum(largest, abs(alpha));
    Value unit = where(gt(largest, 0), largest, 1);
    Value tail = sum(where(below, abs2(x / as_complex(unit, t)), 0), 1, keep);
    Value alpha_unit = alpha / as_complex(unit, t);
    Value norm = sqrt(tail + abs2(alpha_unit)) * unit;
    Value beta = where(lt(real(alpha), 0), norm, negate(norm));
    Value nothing = eq(tail, 0);
    if (is_complex(t)) nothing = nothing & eq(imag(alpha), 0);
    Value b = as_complex(beta, t);
    Value tau_k = where(nothing, 0, (b - alpha) / where(nothing, 1, b));
    Value v = where(eq(row, k), 1, where(below, x / where(nothing, 1, alpha - b), 0));
    v = where(broadcast_to(nothing, v.dims()), where(eq(row, k), like(v, 1), 0), v);
    // H^H acts on the columns right of k
    Value projection = matmul(adjoint(v), s[0]);  // [B, 1, n]
    Value next = s[0] - where(gt(column, k), conj(tau_k) * projection, 0) * v;
    Value stored = where(below, v, where(eq(row, k), where(nothing, alpha, b), x));
    next = where(eq(column, k), stored, next);
    return Values{next, with_index(s[1], 1, k, squeeze(tau_k, 2))};
  });
  return {out[0], out[1]};
}

// Q c = H_0 (H_1 (... c)), Q^H c = ... H_1^H (H_0^H c)
Value apply_q(const Qr& qr, Value c, bool adjoint_) {
  const int64_t k_max = qr.tau.dim(1), m = rows(qr.packed);
  if (c.numel() == 0 || k_max == 0) return c;
  Graph& g = c.graph();
  Value row = iota(g, {S32, {c.dim(0), m, 1}}, 1);
  return for_range(g, k_max, {c}, [&](Value i, const Values& s) {
    Value k = adjoint_ ? i : static_cast<int32_t>(k_max - 1) - i;
    Value x = at(qr.packed, 2, k);
    Value v = where(eq(row, k), 1, where(gt(row, k), x, 0));
    Value tau = expand_dims(at(qr.tau, 1, k), 2);
    if (adjoint_) tau = conj(tau);
    return Values{s[0] - tau * v * matmul(adjoint(v), s[0])};
  })[0];
}

Value full_q(const Qr& qr, int64_t n_columns) {
  Value q = slice_dim(eye(qr.packed, rows(qr.packed)), -1, 0, n_columns);
  return apply_q(qr, q, false);
}

namespace {

Value upper_r(const Qr& qr, int64_t n_rows) { return triangle(slice_dim(qr.packed, -2, 0, n_rows), false); }

// One-sided Jacobi: rotations of pairs of columns make w = [a; 1] J with orthogonal columns of a J;
// the lower half gathers V. Half of the columns are paired with the other half at once, and a
// round robin brings each pair together in n - 1 steps, a sweep. -> a V, V
std::pair<Value, Value> orthogonal_columns(Value a) {
  const int64_t m = rows(a), n = columns(a), half = (n + 1) / 2;
  Graph& g = a.graph();
  const DType t = a.dtype(), r = real_of(t);
  const double eps = r == F64 ? 0x1p-52 : 0x1p-23;
  Value w = concat({a, eye(a, n)}, 1);
  if (n % 2 == 1) w = pad_dim(w, 2, 0, 1);
  if (n == 1) return {a, eye(a, 1)};
  const double tolerance = eps * std::max(4.0, 2 * std::sqrt(static_cast<double>(m)));
  const auto step = [&](const Values& s) {
    Value p = s[1], q = s[2];  // [B, m + n, half]
    Value p_a = slice_dim(p, 1, 0, m), q_a = slice_dim(q, 1, 0, m);
    Value pp = sum(abs2(p_a), 1, keep), qq = sum(abs2(q_a), 1, keep), pq = sum(conj(p_a) * q_a, 1, keep);
    Value size = abs(pq), scale = sqrt(pp) * sqrt(qq);
    Value counts = gt(size, scale * (eps / 4)) & gt(scale, 0);
    Value off = where(counts, size / where(counts, scale, 1), 0);
    Value safe = where(counts, size, 1);
    Value phase = is_complex(t) ? pq / as_complex(safe, t) : sign(pq);
    phase = where(counts, phase, 1);
    // t = tan of the angle that takes [[pp, |pq|], [|pq|, qq]] to a diagonal
    Value zeta = (qq - pp) / (safe * 2);
    Value tangent = where(lt(zeta, 0), -1, like(zeta, 1)) / (abs(zeta) + sqrt(zeta * zeta + 1));
    tangent = where(counts & is_finite(zeta), tangent, 0);
    Value c = rsqrt(tangent * tangent + 1), sine = c * tangent;
    Value turned = q * conj(phase);
    Value p2 = p * as_complex(c, t) - turned * as_complex(sine, t);
    Value q2 = p * as_complex(sine, t) + turned * as_complex(c, t);
    // The round robin: all but the first move on by one place.
    Value np = p2, nq = q2;
    if (half > 1) {
      np = concat({slice_dim(p2, 2, 0, 1), slice_dim(q2, 2, 0, 1), slice_dim(p2, 2, 1, half - 1)}, 2);
      nq = concat({slice_dim(q2, 2, 1, half), slice_dim(p2, 2, half - 1, half)}, 2);
    }
    return Values{s[0] + 1, np, nq, maximum(s[3], max(off, all_dims(off)))};
  };
  const int64_t steps = 2 * half - 1;
  Value zero = scalar(g, r, 0), one = scalar(g, r, 1), none = scalar(g, S32, 0);
  Values state{none, slice_dim(w, 2, 0, half), slice_dim(w, 2, half, 2 * half), one};
  constexpr int kSweeps = 40;
  state = while_(
      state, [&](const Values& s) { return lt(s[0], kSweeps) & gt(s[3], tolerance); },
      [&](const Values& s) {
        Values inner = while_(
            {none, s[1], s[2], zero}, [&](const Values& i) { return lt(i[0], static_cast<int32_t>(steps)); }, step);
        return Values{s[0] + 1, inner[1], inner[2], inner[3]};
      });
  w = concat({state[1], state[2]}, 2);
  // The column added to an odd number never mixes: it is where it began, at the end.
  w = slice_dim(w, 2, 0, n);
  return {slice_dim(w, 1, 0, m), slice_dim(w, 1, m, m + n)};
}

// Columns in the order of `key` [B, n].
std::pair<Value, Value> sort_by(Value key, bool descending) {
  Value place = iota_like(key, -1, S32);
  const Values sorted = sort({key, place}, key.rank() - 1, true,
                             [&](const Values& v) { return descending ? gt(v[0], v[1]) : lt(v[0], v[1]); });
  return {sorted[0], sorted[1]};
}
Value take_columns(Value a, Value order) {
  return take_along(a, broadcast_to(expand_dims(order, 1), {a.dim(0), a.dim(1), order.dim(1)}), 2);
}

}  // namespace

// Tall: a = Q R, then the columns of R^H V' ... are made orthogonal: R V = U' diag(s). U' comes from
// a further QR, which gives orthonormal columns also where s = 0.
Svd svd(Value a, bool full_, bool vectors) {
  const int64_t m = rows(a), n = columns(a), batch = a.dim(0), k = std::min(m, n);
  const DType t = a.dtype(), r = real_of(t);
  Graph& g = a.graph();
  if (m < n) {
    const Svd s = svd(adjoint(a), full_, vectors);
    return {s.v, s.s, s.u};
  }
  if (k == 0 || batch == 0) {
    const int64_t columns_u = full_ ? m : k;
    Value u = slice_dim(eye(a, m), -1, 0, columns_u);
    return {u, full(g, {r, {batch, k}}, 0), eye(a, n)};
  }
  // Scaled to magnitude 1: squares neither overflow nor vanish.
  Value largest = max(abs(a), {1, 2});
  Value unit = where(gt(largest, 0) & is_finite(largest), largest, 1);
  Value scaled = a / as_complex(per_matrix(unit), t);
  const bool reduces = m > n;
  const Qr outer = reduces ? geqrf(scaled) : Qr{scaled, Value()};
  const auto [av, v] = orthogonal_columns(reduces ? upper_r(outer, n) : scaled);
  const auto [s, order] = sort_by(sqrt(sum(abs2(av), 1)), true);
  Value values =
      where(expand_dims(is_finite(largest), -1), s * expand_dims(unit, -1), std::numeric_limits<double>::quiet_NaN());
  if (!vectors) return {empty(a), values, empty(a)};
  Value sorted = take_columns(av, order);
  const Qr inner = geqrf(sorted);
  // R is diagonal up to rounding; its signs go to U.
  Value d = diagonal(inner.packed), zero = eq(abs(d), 0);
  Value phase = where(zero, 1, d / as_complex(where(zero, 1, abs(d)), t));
  Value u = full_q(inner, n) * expand_dims(phase, 1);
  if (reduces) {
    const int64_t width = full_ ? m : n;
    Value wide = pad_dim(pad_dim(u, 1, 0, m - n), 2, 0, width - n);
    if (width > n) {  // the rest of the basis: Q's own further columns
      Value row = iota_like(wide, 1, S32), column = iota_like(wide, 2, S32);
      wide = where(ge(column, n) & eq(row, column), 1, wide);
    }
    u = apply_q(outer, wide, false);
  }
  return {u, values, take_columns(v, order)};
}

// Shifted by c >= |a|, a + c is positive semidefinite: its singular vectors are a's eigenvectors. The
// eigenvalues are then taken from a itself, w_i = v_i^H a v_i.
Eigh eigh(Value a) {
  const int64_t n = rows(a), batch = a.dim(0);
  const DType t = a.dtype(), r = real_of(t);
  if (a.numel() == 0) return {full(a.graph(), {r, {batch, n}}, 0), a};
  Value lower = triangle(a, true, -1), d = triangle(triangle(a, true), false);
  if (is_complex(t)) d = as_complex(real(d), t);
  a = lower + adjoint(lower) + d;
  Value size = norm1(a);
  Value shift = where(gt(size, 0) & is_finite(size), size, 1);
  Value scaled = a / as_complex(per_matrix(shift), t);
  const auto [av, v] = orthogonal_columns(scaled + eye(a, n));
  Value w = sum(real(conj(v) * matmul(scaled, v)), 1) * expand_dims(shift, -1);
  w = where(expand_dims(is_finite(size), -1), w, std::numeric_limits<double>::quiet_NaN());
  const auto [values, order] = sort_by(w, false);
  return {values, take_columns(v, order)};
}

TPU_LOWER("linalg_qr", [](Value a, std::string mode) {
  const Qr qr = geqrf(flat(a));
  const Dims& r_dims = result_type(1).dims;
  Value q = mode == "r" ? empty(a) : unflat(full_q(qr, result_type(0).dims.back()), result_type(0).dims);
  return std::tuple(q, unflat(upper_r(qr, r_dims[r_dims.size() - 2]), r_dims));
});

TPU_LOWER("geqrf",
          [](Value a) {
            const Qr qr = geqrf(flat(a));
            Dims tau = batch_of(a.dims());
            tau.push_back(std::min(rows(a), columns(a)));
            return std::tuple(unflat(qr.packed, a.dims()), unflat(qr.tau, tau));
          },
          {.no_meta = true});

TPU_LOWER("linalg_householder_product", [](Value a, Value tau) {
  Value f = flat(a);
  const Qr qr{f, reshape(tau, {f.dim(0), tau.dim(tau.rank() - 1)})};
  return unflat(full_q(qr, columns(a)), a.dims());
});

TPU_LOWER("ormqr", [](Value a, Value tau, Value c, bool left, bool transpose) {
  Value f = flat(a), x = flat(c);
  const Qr qr{f, reshape(tau, {f.dim(0), tau.dim(tau.rank() - 1)})};
  x = left ? apply_q(qr, x, transpose) : adjoint(apply_q(qr, adjoint(x), !transpose));  // c Q = (Q^H c^H)^H
  return unflat(x, c.dims());
});

TPU_LOWER("_linalg_eigh", [](Value a, std::string uplo, bool compute_v) {
  const bool lower = uplo == "L" || uplo == "l";
  const Eigh e = eigh(flat(lower ? a : adjoint(a)));
  return std::tuple(reshape(e.w, result_type(0).dims), compute_v ? unflat(e.v, a.dims()) : empty(a));
});

TPU_LOWER("_linalg_svd", [](Value a, bool full_matrices, bool compute_uv, Unused) {
  check_not(any(!is_finite(abs(a)), all_dims(a)), ErrorKind::Linalg,
            "linalg.svd: The algorithm failed to converge because the input matrix contained non-finite values.");
  const Svd s = svd(flat(a), full_matrices, compute_uv);
  Value values = reshape(s.s, result_type(1).dims);
  if (!compute_uv) return std::tuple(empty(a), values, empty(a));
  return std::tuple(unflat(s.u, result_type(0).dims), values, unflat(adjoint(s.v), result_type(2).dims));
});

// The x of least norm that minimizes |a x - b|: x = V diag(1 / s) U^H b, where s counts as 0 up to
// rcond times the largest. Drivers differ in what they report: gelsy the rank; gelsd and gelss also
// s and, as gels, the residuals |a x - b|^2 of a tall a.
TPU_LOWER("linalg_lstsq",
          [](Value a, Value b, std::optional<double> rcond, std::optional<std::string> driver) {
            const std::string how = driver.value_or("gelsy");
            TPU_CHECK(how == "gels" || how == "gelsy" || how == "gelsd" || how == "gelss",
                      "torch.linalg.lstsq: parameter `driver` should be one of (gels, gelsy, gelsd, gelss)");
            TPU_CHECK(a.rank() >= 2, "torch.linalg.lstsq: input must have at least 2 dimensions.");
            TPU_CHECK(b.rank() >= 1, "torch.linalg.lstsq: other must have at least 1 dimension.");
            TPU_CHECK(a.dtype() == b.dtype(), "torch.linalg.lstsq: Expected input and other to have the same dtype");
            const int64_t m = rows(a), n = columns(a), k = std::min(m, n);
            const bool is_vector =
                b.rank() == 1 || (b.rank() == a.rank() - 1 && b.dims() == Dims(a.dims().begin(), a.dims().end() - 1));
            if (is_vector) b = expand_dims(b, -1);
            TPU_CHECK(rows(b) == m, is_vector ? "torch.linalg.lstsq: input.size(-2) should match other.size(-1)"
                                              : "torch.linalg.lstsq: input.size(-2) should match other.size(-2)");
            const Dims batch = broadcast_dims(batch_of(a.dims()), batch_of(b.dims()), "linalg.lstsq");
            const DType t = a.dtype(), r = real_of(t);
            const double limit = rcond.value_or((r == F64 ? 0x1p-52 : 0x1p-23) * static_cast<double>(std::max(m, n)));
            Value flat_a = flat(broadcast_batch(a, batch)), flat_b = flat(broadcast_batch(b, batch));
            const Svd s = svd(flat_a, false, true);
            Value counts = k == 0 ? gt(s.s, 0) : gt(s.s, max(s.s, 1, keep) * limit);
            Value inverse = where(counts, 1 / where(counts, s.s, 1), 0);
            Value x = matmul(s.v, as_complex(expand_dims(inverse, -1), t) * matmul(adjoint(s.u), flat_b));
            Dims x_dims = batch, residual_dims = batch, value_dims = batch;
            x_dims.push_back(n);
            if (!is_vector) x_dims.push_back(columns(b));
            residual_dims.push_back(columns(b));
            value_dims.push_back(k);
            Graph& g = a.graph();
            Value residuals = full(g, {r, {0}}, 0), rank = full(g, {S64, {0}}, 0), values = full(g, {r, {0}}, 0);
            if (m > n && how != "gelsy") residuals = reshape(sum(abs2(matmul(flat_a, x) - flat_b), 1), residual_dims);
            if (how != "gels") rank = reshape(sum(convert(counts, S64), 1), batch);
            if (how == "gelsd" || how == "gelss") values = reshape(s.s, value_dims);
            return std::tuple(reshape(x, x_dims), residuals, rank, values);
          },
          {.no_meta = true});

}  // namespace tpu::lowering::linalg
