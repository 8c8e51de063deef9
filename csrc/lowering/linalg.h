// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lowering/matmul.h"

// What the linalg_*.cc files share. Matrices are batched: [B, m, n], where flat() makes one batch
// dimension of all and unflat() undoes it.
namespace tpu::lowering::linalg {

Value flat(Value a);                      // [..., m, n] -> [B, m, n]
Value unflat(Value a, const Dims& dims);  // reshape, named for what it is
int64_t rows(Value a);
int64_t columns(Value a);
Dims batch_of(const Dims& dims, int64_t matrix_rank = 2);
// a's batch dimensions broadcast with `batch`.
Value broadcast_batch(Value a, const Dims& batch);

Value eye(Value like, int64_t n);                           // [B, n, n] of like's dtype and batch
Value triangle(Value a, bool lower, int64_t diagonal = 0);  // the rest is 0
Value diagonal(Value a);                                    // [B, min(m, n)]
Value abs2(Value a);                                        // |a|^2, real
Value norm1(Value a);                                       // [B]: the largest column sum

// A loop over k = 0 .. count-1 with further state.
Values for_range(Graph& graph, int64_t count, const Values& state,
                 const std::function<Values(Value k, const Values& state)>& body);
// a[..., k, ...] at dim for a run-time scalar k; with_index puts it back.
Value at(Value a, int64_t dim, Value k);
Value with_index(Value a, int64_t dim, Value k, Value part);

// P^T a = L U with partial pivoting; L and U packed. info: the first k with U_kk = 0, counted from
// 1, or 0. perm: row i of L U is row perm_i of a.
struct Lu {
  Value lu, pivots, perm, info;
};
Lu lu_factor(Value a);
Value perm_of_pivots(Value pivots, int64_t m);  // [B, k] from 1 -> [B, m]
// Solves a x = b, or a^H x = b, from a's factors; perm as in Lu. All [B, ., .].
Value lu_solve(Value lu, Value perm, Value b, bool adjoint);
// As torch._linalg_check_errors: raises `why` of the first matrix whose info [B] isn't 0.
void check_info(Value info, bool wanted, bool is_matrix, std::string name, std::string (*why)(int64_t info));
// Row perm_i at place i, and back.
Value permute_rows(Value b, Value perm);
Value unpermute_rows(Value b, Value perm);
Value solve_triangle(Value a, Value b, bool lower, bool unit, Transpose transpose = Transpose::NO_TRANSPOSE);

// a = Q R, as LAPACK's geqrf: R in the upper triangle, the reflectors below it, tau [B, min(m, n)].
struct Qr {
  Value packed, tau;
};
Qr geqrf(Value a);
// Q c or Q^H c of the reflectors.
Value apply_q(const Qr& qr, Value c, bool adjoint);
Value full_q(const Qr& qr, int64_t n_columns);

// a = U diag(s) V^H, s descending. U [B, m, m] or [B, m, k], V alike.
struct Svd {
  Value u, s, v;
};
Svd svd(Value a, bool full, bool vectors);
// Hermitian a = V diag(w) V^H, w ascending, from the lower triangle.
struct Eigh {
  Value w, v;
};
Eigh eigh(Value a);

}  // namespace tpu::lowering::linalg
