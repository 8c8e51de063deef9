// SPDX-License-Identifier: Apache-2.0
#include "aten/composed.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_adaptive_avg_pool2d.h>
#include <ATen/ops/_adaptive_avg_pool3d.h>
#include <ATen/ops/_adaptive_avg_pool3d_backward.h>
#include <ATen/ops/_linalg_check_errors_native.h>
#include <ATen/ops/_masked_softmax.h>
#include <ATen/ops/_transformer_encoder_layer_fwd_native.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <array>
#include <cmath>

#include "aten/error.h"
#include "aten/target.h"
#include "runtime/capture.h"

namespace tpu::aten {
namespace {

using at::Scalar;
using at::Tensor;
using OptTensor = std::optional<Tensor>;

Tensor& into(const Tensor& result, Tensor& out) {
  if (out.sizes() != result.sizes()) out.resize_(result.sizes());
  return out.copy_(result);
}

bool is_set_to(const Tensor& self, const Tensor& other) {
  return self.storage().is_alias_of(other.storage()) && self.storage_offset() == other.storage_offset() &&
         self.sizes() == other.sizes() && self.strides() == other.strides();
}

// ---- add_relu ----

void check_add_relu(const Tensor& x) {
  const at::ScalarType t = x.scalar_type();
  TORCH_INTERNAL_ASSERT(
      t == at::kInt || t == at::kLong || t == at::kShort || t == at::kChar || t == at::kFloat || t == at::kDouble,
      "Unsupported datatype for add_relu: ", t);
}
template <class Other>
Tensor add_relu(const Tensor& x, const Other& other, const Scalar& alpha) {
  check_add_relu(x);
  return at::add(x, other, alpha).relu_();
}
template <class Other>
Tensor& add_relu_(Tensor& x, const Other& other, const Scalar& alpha) {
  check_add_relu(x);
  return x.add_(other, alpha).relu_();
}
Tensor& add_relu_out(const Tensor& x, const Tensor& other, const Scalar& alpha, Tensor& out) {
  return into(add_relu(x, other, alpha), out);
}

// ---- Pooling with out= ----

Tensor& adaptive_avg_pool2d_out(const Tensor& x, at::IntArrayRef size, Tensor& out) {
  return into(at::_adaptive_avg_pool2d(x, size), out);
}
Tensor& adaptive_avg_pool3d_out(const Tensor& x, at::IntArrayRef size, Tensor& out) {
  return into(at::_adaptive_avg_pool3d(x, size), out);
}
Tensor& adaptive_avg_pool3d_backward_out(const Tensor& grad, const Tensor& x, Tensor& out) {
  return into(at::_adaptive_avg_pool3d_backward(grad, x), out);
}

// ---- Assertions: read where values are checked at all, see Target ----

void assert_async_msg(const Tensor& x, std::string_view message) {
  TORCH_CHECK(x.numel() > 0, "Boolean value of Tensor with no values is ambiguous");
  TORCH_CHECK(x.numel() == 1, "Boolean value of Tensor with more than one value is ambiguous");
  if (runtime::Capture::current() || !target().checked_values) return;
  TORCH_CHECK(x.is_nonzero(), message);
}
void assert_async(const Tensor& x) { assert_async_msg(x, "Expected Tensor with single nonzero value, but got zero"); }

// For exported programs: a token keeps the assertion in the graph.
Tensor functional_assert_async(const Tensor& x, std::string_view message, const Tensor& token) {
  assert_async_msg(x, message);
  return token.clone();
}

// While a graph is captured there is nothing to read yet: what can't be decomposed gives NaN then.
void linalg_check_errors(const Tensor& info, std::string_view name, bool is_matrix) {
  if (!runtime::Capture::current()) at::native::_linalg_check_errors(info, name, is_matrix);
}

// ---- Linear ----

std::tuple<Tensor, Tensor, Tensor> linear_backward(const Tensor& x, const Tensor& grad, const Tensor& weight,
                                                   std::array<bool, 3> wanted) {
  const Tensor rows = grad.reshape({-1, grad.size(-1)});
  return {wanted[0] ? grad.matmul(weight) : Tensor(), wanted[1] ? rows.t().mm(x.reshape({-1, x.size(-1)})) : Tensor(),
          wanted[2] ? rows.sum(0) : Tensor()};
}

// ---- Rows of varying count, padded ----

void check_jagged(at::TensorList offsets) {
  TORCH_CHECK_NOT_IMPLEMENTED(offsets.size() == 1 && offsets[0].dim() == 1,
                              "jagged tensors of one jagged dimension only, got ", offsets.size(), " offsets");
}

// values [n, ...] -> [batch, length, ...]
Tensor jagged_to_padded(const Tensor& values, at::TensorList offsets, at::IntArrayRef lengths, double padding) {
  return guarded([&] {
    check_jagged(offsets);
    TORCH_CHECK(lengths.size() == 1, "expected one maximal length, got ", lengths.size());
    const int64_t batch = offsets[0].size(0) - 1, length = lengths[0];
    std::vector<int64_t> shape = values.sizes().vec(), ones(static_cast<size_t>(values.dim()), 1);
    shape[0] = batch * length;
    ones[0] = batch * length;
    const Tensor first = offsets[0].narrow(0, 0, batch).unsqueeze(1), end = offsets[0].narrow(0, 1, batch).unsqueeze(1);
    const Tensor at = at::arange(length, first.options()) + first;
    Tensor padded = values.new_full(shape, padding);
    if (values.size(0) > 0) {
      const Tensor rows = values.index_select(0, at.clamp(0, values.size(0) - 1).flatten());
      padded = at::where((at < end).reshape(ones), rows, padded);
    }
    shape[0] = length;
    shape.insert(shape.begin(), batch);
    return padded.view(shape);
  });
}

// dense [batch, length, ...] -> [n, ...]
Tensor padded_to_jagged(const Tensor& dense, at::TensorList offsets, std::optional<int64_t> total) {
  return guarded([&] {
    check_jagged(offsets);
    const int64_t n = total ? *total : offsets[0].select(0, -1).item().toLong(), length = dense.size(1);
    const Tensor rows = at::arange(n, offsets[0].options());
    const Tensor group = at::searchsorted(offsets[0], rows, false, true).sub_(1).clamp_(0, dense.size(0) - 1);
    const Tensor at = rows - offsets[0].index_select(0, group);
    const Tensor found = dense.flatten(0, 1).index_select(0, group * length + at.clamp(0, length - 1));
    std::vector<int64_t> ones(static_cast<size_t>(found.dim()), 1);
    ones[0] = n;
    return at::where((at < length).view(ones), found, at::zeros({}, found.options()));
  });
}

// ---- nn.MultiheadAttention and nn.TransformerEncoderLayer in inference ----

std::tuple<Tensor, Tensor> multi_head_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                                int64_t width, int64_t heads, const Tensor& qkv_weight,
                                                const Tensor& qkv_bias, const Tensor& out_weight,
                                                const Tensor& out_bias, const OptTensor& mask, bool need_weights,
                                                bool average, std::optional<int64_t> mask_type) {
  return guarded([&]() -> std::tuple<Tensor, Tensor> {
    TORCH_CHECK(!mask || !query.is_nested(), "NestedTensor with mask is not supported yet");
    TORCH_CHECK(query.dim() == 3, "expected 3-D `query`, got ", query.dim(), "-D tensor");
    TORCH_CHECK(query.size(2) == width, "passed-in embed_dim ", width, " didn't match last dim of query ",
                query.size(2));
    TORCH_CHECK(key.dim() == 3, "expected 3-D `key`, got ", key.dim(), "-D tensor");
    TORCH_CHECK(value.dim() == 3, "expected 3-D `value`, got ", value.dim(), "-D tensor");
    TORCH_CHECK(query.sizes() == key.sizes() && key.sizes() == value.sizes(),
                "expected `query`/`key`/`value` shapes to match");
    TORCH_CHECK(qkv_weight.dim() == 2, "expected 2-D `qkv_weight`, got ", qkv_weight.dim(), "-D tensor");
    TORCH_CHECK(width * 3 == qkv_weight.size(0), "expected `qkv_weight` first dim to be 3x embed_dim");
    TORCH_CHECK(width == qkv_weight.size(1), "expected `qkv_weight` second dim to be embed_Dim");
    TORCH_CHECK(qkv_bias.dim() == 1 && qkv_bias.size(0) == 3 * width,
                "expected `qkv_bias` first dim and first dim of query to be equal");
    TORCH_CHECK(width % heads == 0, "`embed_dim` must divide evenly by `num_heads`");
    const std::array<const Tensor*, 3> inputs{&query, &key, &value};
    std::array<Tensor, 3> parts;
    for (size_t i = 0; i < 3; ++i) {
      const auto at = static_cast<int64_t>(i) * width;
      parts[i] = at::linear(*inputs[i], qkv_weight.narrow(0, at, width), qkv_bias.narrow(0, at, width));
      parts[i] = parts[i].unflatten(-1, {heads, width / heads}).transpose(1, 2);
    }
    Tensor scores = (parts[0] / std::sqrt(static_cast<double>(width / heads))).matmul(parts[1].transpose(-2, -1));
    const auto boolean = [](const Tensor& m) {
      if (m.scalar_type() == at::kBool) return m;
      TORCH_WARN(
          "Converting mask without torch.bool dtype to bool; this will negatively affect performance. Prefer to use "
          "a boolean mask directly.");
      return m.to(at::kBool);
    };
    Tensor weights =
        mask ? at::_masked_softmax(scores, boolean(*mask), scores.dim() - 1, mask_type) : scores.softmax(-1);
    const Tensor mixed = weights.matmul(parts[2]).transpose(1, 2).flatten(2);
    const Tensor out = at::linear(mixed, out_weight, out_bias);
    if (!need_weights) return {out, Tensor()};
    return {out, average ? weights.mean(1) : weights};
  });
}

}  // namespace

void register_composed(torch::Library& aten) {
  aten.impl("is_set_to", TORCH_FN(is_set_to));
  aten.impl("_functional_assert_async.msg", TORCH_FN(functional_assert_async));
  aten.impl("_add_relu.Tensor", TORCH_FN(add_relu<Tensor>));
  aten.impl("_add_relu.Scalar", TORCH_FN(add_relu<Scalar>));
  aten.impl("_add_relu_.Tensor", TORCH_FN(add_relu_<Tensor>));
  aten.impl("_add_relu_.Scalar", TORCH_FN(add_relu_<Scalar>));
  aten.impl("_add_relu.out", TORCH_FN(add_relu_out));
  aten.impl("adaptive_avg_pool2d.out", TORCH_FN(adaptive_avg_pool2d_out));
  aten.impl("adaptive_avg_pool3d.out", TORCH_FN(adaptive_avg_pool3d_out));
  aten.impl("adaptive_avg_pool3d_backward.grad_input", TORCH_FN(adaptive_avg_pool3d_backward_out));
  aten.impl("_assert_async", TORCH_FN(assert_async));
  aten.impl("_assert_async.msg", TORCH_FN(assert_async_msg));
  aten.impl("_linalg_check_errors", TORCH_FN(linalg_check_errors));
  aten.impl("linear_backward", TORCH_FN(linear_backward));
  aten.impl("_jagged_to_padded_dense_forward", TORCH_FN(jagged_to_padded));
  aten.impl("_padded_dense_to_jagged_forward", TORCH_FN(padded_to_jagged));
  aten.impl("_native_multi_head_attention", TORCH_FN(multi_head_attention));
  aten.impl("_transformer_encoder_layer_fwd", TORCH_FN(at::native::transformer_encoder_layer_forward));
}

}  // namespace tpu::aten
