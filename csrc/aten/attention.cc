// SPDX-License-Identifier: Apache-2.0
#include "aten/attention.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/empty.h>
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

int64_t choose(const Tensor& q, const Tensor& k, const Tensor& v, const OptTensor&, double, bool, std::optional<double>,
               bool enable_gqa) {
  const auto& context = at::globalContext();
  const bool math = context.userEnabledMathSDP();
  // torch.nn.attention.sdpa_kernel(FLASH_ATTENTION) asks for some fused form: ours.
  const bool fused = context.userEnabledOverrideableSDP() || context.userEnabledFlashSDP() ||
                     context.userEnabledMemEfficientSDP() || context.userEnabledCuDNNSDP();
  const bool same_heads = q.dim() < 3 || k.dim() < 3 || q.sym_size(-3) == k.sym_size(-3);
  if (fused && (same_heads || enable_gqa) && fused_fits(q, k, v)) return static_cast<int64_t>(SDPBackend::overrideable);
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

}  // namespace

void define_attention(torch::Library& tpu) {
  for (const char* schema : {kForward, kDropout, kBackward}) tpu.def(schema);
}

void register_attention(torch::Library& aten) {
  aten.impl("_fused_sdp_choice", TORCH_FN(choose));
  aten.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(forward));
  aten.impl("_scaled_dot_product_fused_attention_overrideable_backward", TORCH_FN(backward));
}

}  // namespace tpu::aten

namespace at::native {
// NOLINTNEXTLINE: PyTorch's own way to register
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &tpu::aten::choose)
}  // namespace at::native
