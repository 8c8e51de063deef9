// SPDX-License-Identifier: Apache-2.0
#include "aten/attention.h"

#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_fused_attention_overrideable_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <torch/library.h>

#include <array>
#include <cmath>

#include "base/error.h"

namespace tpu::aten {
namespace {

using at::SDPBackend;
using at::Tensor;
using OptTensor = std::optional<Tensor>;

constexpr const char* kForward =
    "attention(Tensor query, Tensor key, Tensor value, Tensor? bias, bool is_causal, float scale, bool heads_inside) "
    "-> "
    "(Tensor output, Tensor logsumexp)";
constexpr const char* kDropout =
    "attention_dropout(Tensor query, Tensor key, Tensor value, Tensor? bias, bool is_causal, float scale, "
    "bool heads_inside, float dropout_p, Generator? generator) -> (Tensor output, Tensor logsumexp, Tensor seed, "
    "Tensor offset)";
constexpr const char* kBackward =
    "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor output, Tensor "
    "logsumexp, "
    "Tensor? seed, Tensor? offset, bool is_causal, float scale, float dropout_p, bool bias_grad, bool[] heads_inside) "
    "-> (Tensor, Tensor, "
    "Tensor, Tensor)";

template <class F>
auto own(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<F>();
}

// Batch dimensions equal; the heads may be shared by groups of query heads; one floating dtype.
bool fused_fits(const Tensor& q, const Tensor& k, const Tensor& v) {
  if (q.is_nested() || k.is_nested() || v.is_nested()) return false;
  if (!at::isFloatingType(q.scalar_type()) || q.scalar_type() != k.scalar_type() || q.scalar_type() != v.scalar_type())
    return false;
  const int64_t r = q.dim();
  if (r < 3 || k.dim() != r || v.dim() != r) return false;
  // Symbolic: sizes may vary while a compiled function is traced.
  for (int64_t d = 0; d < r - 3; ++d) {
    if (q.sym_size(d) != k.sym_size(d) || q.sym_size(d) != v.sym_size(d)) return false;
  }
  const c10::SymInt heads = q.sym_size(r - 3), shared = k.sym_size(r - 3);
  if (v.sym_size(r - 3) != shared || shared == 0 || heads % shared != 0) return false;
  return q.sym_size(r - 1) == k.sym_size(r - 1) && k.sym_size(r - 2) == v.sym_size(r - 2) && q.sym_numel() > 0 &&
         k.sym_numel() > 0 && v.sym_numel() > 0;
}

// Forward mode needs operators that have a rule for it, as the plain products of the math form have.
bool has_tangent(const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto has = [](const Tensor& t) { return t._fw_grad(/*level=*/0).defined(); };
  return has(q) || has(k) || has(v);
}

int64_t choose(const Tensor& q, const Tensor& k, const Tensor& v, const OptTensor&, double, bool, std::optional<double>,
               bool enable_gqa) {
  const auto& context = at::globalContext();
  const bool math = context.userEnabledMathSDP();
  // torch.nn.attention.sdpa_kernel(FLASH_ATTENTION) asks for some fused form: ours.
  const bool fused = context.userEnabledOverrideableSDP() || context.userEnabledFlashSDP() ||
                     context.userEnabledMemEfficientSDP() || context.userEnabledCuDNNSDP();
  const bool same_heads = q.dim() < 3 || k.dim() < 3 || q.sym_size(-3) == k.sym_size(-3);
  if (fused && (same_heads || enable_gqa) && fused_fits(q, k, v) && !(math && has_tangent(q, k, v)))
    return static_cast<int64_t>(SDPBackend::overrideable);
  return static_cast<int64_t>(math ? SDPBackend::math : SDPBackend::error);
}

double scale_of(const Tensor& q, std::optional<double> scale) {
  return scale.value_or(1.0 / std::sqrt(static_cast<double>(q.sym_size(-1).guard_int(__FILE__, __LINE__))));
}

// The output is laid out as the query, as the CPU's fused kernel does: with [batch, length, heads,
// size] in memory, `out.transpose(1, 2).view(...)` works.
bool has_heads_inside(const Tensor& q) { return q.sym_stride(-3) < q.sym_stride(-2); }

using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

Forward forward(const Tensor& q, const Tensor& k, const Tensor& v, const OptTensor& bias, double dropout_p,
                bool is_causal, bool return_debug_mask, std::optional<double> scale) {
  TORCH_CHECK_NOT_IMPLEMENTED(!return_debug_mask,
                              "scaled_dot_product_attention: return_debug_mask is not implemented for TPU");
  TORCH_CHECK(dropout_p >= 0 && dropout_p <= 1, "dropout probability has to be between 0 and 1, but got ", dropout_p);
  const bool inside = has_heads_inside(q);
  Tensor out, lse, seed, offset;
  if (dropout_p > 0) {
    using F = std::tuple<Tensor, Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, const OptTensor&,
                                                         bool, double, bool, double, std::optional<at::Generator>);
    static const std::optional<at::Generator> default_generator;  // static: gcc 12 takes a local one for uninitialized
    static const auto op = own<F>("tpu::attention_dropout");
    std::tie(out, lse, seed, offset) =
        op.call(q, k, v, bias, is_causal, scale_of(q, scale), inside, dropout_p, default_generator);
  } else {
    using F =
        std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, const OptTensor&, bool, double, bool);
    static const auto op = own<F>("tpu::attention");
    std::tie(out, lse) = op.call(q, k, v, bias, is_causal, scale_of(q, scale), inside);
    seed = offset = at::empty({}, q.options().dtype(at::kLong));  // autograd of a compiled graph saves them
  }
  return {inside ? out.transpose(-3, -2) : out,
          lse,
          Tensor(),
          Tensor(),
          q.sym_size(-2),
          k.sym_size(-2),
          seed,
          offset,
          Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward(const Tensor& grad, const Tensor& q, const Tensor& k,
                                                    const Tensor& v, const Tensor& bias, std::array<bool, 4> wanted,
                                                    const Tensor& out, const Tensor& lse, const Tensor&, const Tensor&,
                                                    c10::SymInt, c10::SymInt, double dropout_p, bool is_causal,
                                                    const Tensor& seed, const Tensor& offset,
                                                    std::optional<double> scale) {
  if (!grad.defined()) return {};
  const auto optional = [](const Tensor& t) { return t.defined() ? OptTensor(t) : OptTensor(); };
  using F = std::tuple<Tensor, Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                                       const OptTensor&, const Tensor&, const Tensor&, const OptTensor&,
                                                       const OptTensor&, bool, double, double, bool, c10::List<bool>);
  static const auto op = own<F>("tpu::attention_backward");
  const bool dropped = dropout_p > 0;
  const c10::List<bool> inside{has_heads_inside(q), has_heads_inside(k), has_heads_inside(v)};
  auto [dq, dk, dv, dbias] = op.call(grad, q, k, v, optional(bias), out, lse, dropped ? optional(seed) : OptTensor(),
                                     dropped ? optional(offset) : OptTensor(), is_causal, scale_of(q, scale), dropout_p,
                                     wanted[3] && bias.defined(), inside);
  const auto turned = [&](const Tensor& t, size_t i) { return inside[i] ? t.transpose(-3, -2) : t; };
  return {turned(dq, 0), turned(dk, 1), turned(dv, 2), dbias};
}

// The same gradients in operators that have gradients themselves: for a backward whose graph is kept. With
// P = softmax(scale q k^T + bias) and dP = dO v^T: dS = P (dP - rowsum(dP P)), dq = scale dS k, dk = scale dS^T q,
// dv = P^T dO. In float32 where the inputs are shorter.
std::tuple<Tensor, Tensor, Tensor, Tensor> differentiable_backward(const Tensor& grad, const Tensor& q, const Tensor& k,
                                                                   const Tensor& v, const Tensor& bias, bool is_causal,
                                                                   bool bias_grad, double scale) {
  const at::ScalarType t = q.scalar_type(), wide = at::toOpMathType(t);
  const int64_t heads = q.size(-3), shared = k.size(-3);
  const auto spread = [&](const Tensor& x) {
    return shared == heads ? x.to(wide) : x.to(wide).repeat_interleave(heads / shared, -3);
  };
  // The sum over the query heads that share one.
  const auto gathered = [&](const Tensor& x) {
    if (shared == heads) return x.to(t);
    return x.unflatten(-3, {shared, heads / shared}).sum(-3).to(t);
  };
  const Tensor query = q.to(wide), key = spread(k), value = spread(v), dout = grad.to(wide);
  const Tensor p = std::get<1>(at::_scaled_dot_product_attention_math(query, key, value,
                                                                      bias.defined() ? OptTensor(bias) : OptTensor(),
                                                                      /*dropout_p=*/0, is_causal, std::nullopt, scale,
                                                                      /*enable_gqa=*/false));
  const Tensor dp = at::matmul(dout, value.transpose(-2, -1));
  const Tensor ds = p * (dp - (dp * p).sum(-1, /*keepdim=*/true));
  Tensor dbias;
  if (bias_grad) dbias = at::sum_to(ds, bias.sizes()).to(bias.scalar_type());
  return {(at::matmul(ds, key) * scale).to(t), gathered(at::matmul(ds.transpose(-2, -1), query) * scale),
          gathered(at::matmul(p.transpose(-2, -1), dout)), dbias};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> autograd_backward(const Tensor& grad, const Tensor& q, const Tensor& k,
                                                             const Tensor& v, const Tensor& bias,
                                                             std::array<bool, 4> wanted, const Tensor& out,
                                                             const Tensor& lse, const Tensor& cum_q,
                                                             const Tensor& cum_k, c10::SymInt max_q, c10::SymInt max_k,
                                                             double dropout_p, bool is_causal, const Tensor& seed,
                                                             const Tensor& offset, std::optional<double> scale) {
  bool kept = false;
  for (const Tensor* t : {&grad, &q, &k, &v, &bias}) kept |= t->defined() && t->requires_grad();
  if (kept && at::GradMode::is_enabled()) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        dropout_p == 0,
        "scaled_dot_product_attention: the gradient of its gradient is not implemented for TPU with dropout; "
        "use torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)");
    return differentiable_backward(grad, q, k, v, bias, is_causal, wanted[3] && bias.defined(), scale_of(q, scale));
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return at::_scaled_dot_product_fused_attention_overrideable_backward_symint(
      grad, q, k, v, bias, wanted, out, lse, cum_q, cum_k, std::move(max_q), std::move(max_k), dropout_p, is_causal,
      seed, offset, scale);
}

// Under vmap: the plain products, which have rules for it. The backward below asks for no logsumexp.
Forward batched_forward(const Tensor& q, const Tensor& k, const Tensor& v, const OptTensor& bias, double dropout_p,
                        bool is_causal, bool return_debug_mask, std::optional<double> scale) {
  TORCH_CHECK_NOT_IMPLEMENTED(dropout_p == 0 && !return_debug_mask,
                              "scaled_dot_product_attention: dropout under vmap is not implemented for TPU; use "
                              "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)");
  const Tensor out = std::get<0>(at::_scaled_dot_product_attention_math(
      q, k, v, bias, dropout_p, is_causal, std::nullopt, scale, /*enable_gqa=*/q.size(-3) != k.size(-3)));
  const Tensor none = at::empty({}, q.options().dtype(at::kLong));
  return {out, out.select(-1, 0), Tensor(), Tensor(), q.sym_size(-2), k.sym_size(-2), none, none, Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> batched_backward(const Tensor& grad, const Tensor& q, const Tensor& k,
                                                            const Tensor& v, const Tensor& bias,
                                                            std::array<bool, 4> wanted, const Tensor&, const Tensor&,
                                                            const Tensor&, const Tensor&, c10::SymInt, c10::SymInt,
                                                            double, bool is_causal, const Tensor&, const Tensor&,
                                                            std::optional<double> scale) {
  return differentiable_backward(grad, q, k, v, bias, is_causal, wanted[3] && bias.defined(), scale_of(q, scale));
}

// cuDNN's names for the same.
Forward cudnn_forward(const Tensor& q, const Tensor& k, const Tensor& v, const OptTensor& bias, bool, double dropout_p,
                      bool is_causal, bool return_debug_mask, std::optional<double> scale) {
  return forward(q, k, v, bias, dropout_p, is_causal, return_debug_mask, scale);
}
std::tuple<Tensor, Tensor, Tensor> cudnn_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                                                  const Tensor& out, const Tensor& lse, const Tensor& seed,
                                                  const Tensor& offset, const Tensor& bias, const Tensor& cum_q,
                                                  const Tensor& cum_k, c10::SymInt max_q, c10::SymInt max_k,
                                                  double dropout_p, bool is_causal, std::optional<double> scale) {
  auto [dq, dk, dv, dbias] = backward(grad, q, k, v, bias, {true, true, true, false}, out, lse, cum_q, cum_k,
                                      std::move(max_q), std::move(max_k), dropout_p, is_causal, seed, offset, scale);
  return {dq, dk, dv};
}

}  // namespace

void define_attention(torch::Library& tpu) {
  for (const char* schema : {kForward, kDropout, kBackward}) tpu.def(schema);
}

void register_attention(torch::Library& aten) {
  aten.impl("_fused_sdp_choice", TORCH_FN(choose));
  aten.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(forward));
  aten.impl("_scaled_dot_product_fused_attention_overrideable_backward", TORCH_FN(backward));
  aten.impl("_scaled_dot_product_cudnn_attention", TORCH_FN(cudnn_forward));
  aten.impl("_scaled_dot_product_cudnn_attention_backward", TORCH_FN(cudnn_backward));
  static auto* autograd =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  autograd->impl("_scaled_dot_product_fused_attention_overrideable_backward", TORCH_FN(autograd_backward));
  static auto* batched =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::FuncTorchBatched, __FILE__, __LINE__);
  batched->impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(batched_forward));
  batched->impl("_scaled_dot_product_fused_attention_overrideable_backward", TORCH_FN(batched_backward));
}

}  // namespace tpu::aten

namespace at::native {
// NOLINTNEXTLINE: PyTorch's own way to register
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &tpu::aten::choose)
}  // namespace at::native
