// SPDX-License-Identifier: Apache-2.0
#include "lowering/matmul.h"

#include <algorithm>
#include <sstream>

#include "lowering/promote.h"

namespace tpu::lowering {
namespace {

void require_numbers(Value x, const char* what) {
  if (x.dtype() == PRED) fail(ErrorKind::NotImplemented, "\"", what, "\" not implemented for 'Bool'");
}

void require_same(Value a, Value b, const char* what) {
  require_numbers(a, what);
  TPU_CHECK(a.dtype() == b.dtype(), what, ": expected operands of the same dtype, but got: ", torch_name(a.dtype()),
            " != ", torch_name(b.dtype()));
}

bool has(const Dims& dims, int64_t d) { return std::find(dims.begin(), dims.end(), d) != dims.end(); }

// A factor that is a transpose, as w.t() in a linear layer, gives way to what it transposes, as
// long as the free dimensions stay in order. `batches_first`: and the batches come first.
void skip_transpose(Value& v, Dims& batching, Dims& contracting, bool batches_first) {
  if (v.node()->name != "stablehlo.transpose") return;
  Value base = v.node()->operands[0];
  Dims permutation;
  std::istringstream text(v.node()->attributes.substr(v.node()->attributes.find(':') + 1));
  for (int64_t d; text >> d; text.ignore(1)) permutation.push_back(d);
  TPU_INTERNAL(static_cast<int64_t>(permutation.size()) == base.rank(), "a transpose reads ", v.node()->attributes);
  int64_t last = -1;
  for (int64_t d = 0; d < v.rank(); ++d) {
    if (has(batching, d) || has(contracting, d)) continue;
    if (permutation[static_cast<size_t>(d)] < last) return;
    last = permutation[static_cast<size_t>(d)];
  }
  for (size_t i = 0; batches_first && i < batching.size(); ++i) {
    if (permutation[static_cast<size_t>(batching[i])] != static_cast<int64_t>(i)) return;
  }
  for (int64_t& d : batching) d = permutation[static_cast<size_t>(d)];
  for (int64_t& d : contracting) d = permutation[static_cast<size_t>(d)];
  v = base;
}

// sum over k of a[b, i, k] c[b, k, j] as a fused multiply and reduction: a TPU has no dot of 64-bit integers.
Value product_by_sum(Value a, Value b, const DotDims& dims) {
  const auto arrange = [](Value v, const Dims& batch, const Dims& contracting, int64_t before, int64_t after) {
    Dims order = batch, shape;
    for (int64_t d : batch) shape.push_back(v.dim(d));
    shape.insert(shape.end(), static_cast<size_t>(before), 1);
    for (int64_t d = 0; d < v.rank(); ++d) {
      if (has(batch, d) || has(contracting, d)) continue;
      order.push_back(d);
      shape.push_back(v.dim(d));
    }
    shape.insert(shape.end(), static_cast<size_t>(after), 1);
    for (int64_t d : contracting) {
      order.push_back(d);
      shape.push_back(v.dim(d));
    }
    return reshape(transpose(v, order), shape);
  };
  const auto n_batch = static_cast<int64_t>(dims.lhs_batching.size()),
             n_sum = static_cast<int64_t>(dims.lhs_contracting.size());
  const int64_t free_a = a.rank() - n_batch - n_sum, free_b = b.rank() - n_batch - n_sum;
  Value x = arrange(a, dims.lhs_batching, dims.lhs_contracting, 0, free_b);
  Value y = arrange(b, dims.rhs_batching, dims.rhs_contracting, free_a, 0);
  Dims last;
  for (int64_t i = 0; i < n_sum; ++i) last.push_back(n_batch + free_a + free_b + i);
  return sum(x * y, last);
}

Value scale_by(Value x, Value factor) {
  TPU_CHECK(is_complex(x.dtype()) || !is_complex(factor.dtype()),
            "value cannot be converted to type float without overflow");
  return x * cast(factor, x.dtype());
}

// beta self + alpha product. beta = 0 doesn't look at self; nor alpha = 0 at the factors, where
// CPU PyTorch calls BLAS.
enum class ZeroAlpha { Skips, Multiplies };
Value add_scaled(Value self, Value product, Scale beta, Scale alpha, ZeroAlpha zero = ZeroAlpha::Skips) {
  const Type& result = result_type();
  const DType t = product.dtype();
  if (alpha.zero)
    product = zero == ZeroAlpha::Skips || t == PRED ? zeros_like(product) : product * 0;
  else if (!alpha.one)
    product = scale_by(product, alpha.value);
  if (beta.zero) return convert(product, result.dtype);
  Value s = convert(self, t);
  if (!beta.one) s = scale_by(s, beta.value);
  return convert(broadcast_to(s, result.dims) + product, result.dtype);
}

}  // namespace

Value product(Value a, Value b, DotDims dims) {
  const DType t = a.dtype();
  const bool batches_first = call().target->leading_batches && (t == BF16 || t == F16);
  skip_transpose(a, dims.lhs_batching, dims.lhs_contracting, batches_first);
  skip_transpose(b, dims.rhs_batching, dims.rhs_contracting, batches_first);
  if (!call().target->int64_products && (t == S64 || t == U64)) return product_by_sum(a, b, dims);
  // Operands of bf16 are exact at any precision; f16 isn't bf16, so it counts as float32.
  const Precision precision = t == F32 || t == C64 || t == F16 ? call().precision : Precision::DEFAULT;
  return dot_general(a, b, dims, precision, compute_dtype(t));
}

Value matmul(Value a, Value b) {
  const int64_t r = a.rank();
  Dims batch = all_dims(a);
  batch.resize(static_cast<size_t>(r) - 2);
  return product(a, b, {batch, batch, {r - 1}, {r - 2}});
}

Value transposed(Value a) { return swap_dims(a, -1, -2); }
Value conj(Value a) { return is_complex(a.dtype()) ? complex(real(a), negate(imag(a))) : a; }
Value adjoint(Value a) { return conj(transposed(a)); }

// out_ij = sum_k a_ik b_kj
TPU_LOWER("mm",
          [](Value a, Value b) {
            require_numbers(a, "addmm_impl_cpu_");
            TPU_CHECK(a.dtype() == b.dtype(),
                      "expected m1 and m2 to have the same dtype, but got: ", torch_name(a.dtype()),
                      " != ", torch_name(b.dtype()));
            return convert(matmul(a, b), a.dtype());
          },
          {.products = true});

TPU_LOWER("bmm",
          [](Value a, Value b) {
            require_numbers(a, "bmm");
            TPU_CHECK(a.dtype() == b.dtype(), "expected scalar type ", torch_name(a.dtype()), " but found ",
                      torch_name(b.dtype()));
            return convert(matmul(a, b), a.dtype());
          },
          {.products = true});

// The accumulated products as they are.
TPU_LOWER({"mm.dtype", "bmm.dtype"},
          [](Value a, Value b, DType out) {
            const int64_t r = a.rank();
            TPU_CHECK(
                b.rank() == r && (r == 2 || r == 3) && a.dim(r - 1) == b.dim(r - 2) && (r == 2 || a.dim(0) == b.dim(0)),
                "mm: can't multiply ", to_string(a.type()), " and ", to_string(b.type()));
            TPU_CHECK(
                a.dtype() == b.dtype() && (out == a.dtype() || (out == F32 && (a.dtype() == BF16 || a.dtype() == F16))),
                "mm: out_dtype must be the dtype of the operands, or float32 for bfloat16 and float16");
            return convert(matmul(a, b), out);
          },
          {.products = true, .no_meta = true});

// out = beta self + alpha (a b)
TPU_LOWER("addmm",
          [](Value self, Value a, Value b, Scale beta, Scale alpha) {
            require_same(a, b, "addmm_impl_cpu_");
            TPU_CHECK(self.dtype() == b.dtype(), "self and mat2 must have the same dtype, but got ",
                      torch_name(self.dtype()), " and ", torch_name(b.dtype()));
            return add_scaled(self, matmul(a, b), beta, alpha);
          },
          {.products = true});

TPU_LOWER("_addmm_activation",
          [](Value self, Value a, Value b, Scale beta, Scale alpha, bool use_gelu) {
            require_same(a, b, "addmm_impl_cpu_");
            Value x = accumulate(add_scaled(self, matmul(a, b), beta, alpha));
            // gelu(x) = x (1 + erf(x / sqrt 2)) / 2
            x = use_gelu ? x * 0.5 * (erf(x * 0.70710678118654752440) + 1) : maximum(x, 0);
            return convert(x, result_type().dtype);
          },
          {.products = true});

TPU_LOWER("baddbmm",
          [](Value self, Value a, Value b, Scale beta, Scale alpha) {
            require_numbers(a, "baddbmm");
            TPU_CHECK(self.dtype() == a.dtype() && a.dtype() == b.dtype(), "Input dtypes must be the same, got: input ",
                      torch_name(self.dtype()), ", batch1: ", torch_name(a.dtype()),
                      ", batch2: ", torch_name(b.dtype()));
            return add_scaled(self, matmul(a, b), beta, alpha, ZeroAlpha::Multiplies);
          },
          {.products = true});

// out = beta self + alpha sum_b (x_b y_b)
TPU_LOWER("addbmm",
          [](Value self, Value a, Value b, Scale beta, Scale alpha) {
            require_same(a, b, "addbmm");
            TPU_CHECK(self.dtype() == b.dtype(), "self and mat2 must have the same dtype, but got ",
                      torch_name(self.dtype()), " and ", torch_name(b.dtype()));
            return add_scaled(self, product(a, b, {{}, {}, {0, 2}, {0, 1}}), beta, alpha);
          },
          {.products = true});

TPU_LOWER("mv",
          [](Value a, Value x) {
            require_same(a, x, "addmv_impl_cpu");
            return convert(product(a, x, {{}, {}, {1}, {0}}), a.dtype());
          },
          {.products = true});

TPU_LOWER("addmv",
          [](Value self, Value a, Value x, Scale beta, Scale alpha) {
            require_numbers(a, "addmv_impl_cpu");
            TPU_CHECK(self.dtype() == a.dtype() && a.dtype() == x.dtype(),
                      "addmv input tensors must have the same dtype, but got ", torch_name(a.dtype()), ", ",
                      torch_name(x.dtype()), ", and ", torch_name(self.dtype()));
            return add_scaled(self, product(a, x, {{}, {}, {1}, {0}}), beta, alpha);
          },
          {.products = true});

// out = beta self + alpha x y^T; of PRED: or, and
TPU_LOWER("addr", [](Value self, Value x, Value y, Scale beta, Scale alpha) {
  const DType t = result_type().dtype, c = compute_dtype(t);
  for (auto [scale, name] : {std::pair{beta, "beta"}, {alpha, "alpha"}}) {
    TPU_CHECK(is_floating(t) || is_complex(t) || scale.value.node() == nullptr || !is_floating(scale.value.dtype()),
              "For integral input tensors, argument ", name, " must not be a floating point number.");
  }
  Value outer = expand_dims(cast(x, c), 1) * expand_dims(cast(y, c), 0);
  return add_scaled(cast(self, c), outer, beta, alpha, ZeroAlpha::Multiplies);
});

TPU_LOWER("dot",
          [](Value x, Value y) {
            require_numbers(x, "dot");
            TPU_CHECK(x.dtype() == y.dtype(), "dot : expected both vectors to have same dtype, but found ",
                      torch_name(x.dtype()), " and ", torch_name(y.dtype()));
            return convert(product(x, y, {{}, {}, {0}, {0}}), x.dtype());
          },
          {.products = true});

// sum_i conj(x_i) y_i
TPU_LOWER("vdot",
          [](Value x, Value y) {
            require_numbers(x, "vdot");
            TPU_CHECK(x.dtype() == y.dtype(), "dot : expected both vectors to have same dtype, but found ",
                      torch_name(x.dtype()), " and ", torch_name(y.dtype()));
            return convert(product(conj(x), y, {{}, {}, {0}, {0}}), x.dtype());
          },
          {.products = true});

// int8 x int8 -> int32
TPU_LOWER("_int_mm", [](Value a, Value b) { return matmul(convert(a, S32), convert(b, S32)); });

}  // namespace tpu::lowering
