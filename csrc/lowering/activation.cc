// SPDX-License-Identifier: Apache-2.0
// Activations and their gradients.
#include <cmath>
#include <numbers>

#include "lowering/pointwise.h"

namespace tpu::lowering {
namespace {

Value relu(Value x) { return maximum(x, 0); }

Value silu(Value x) { return is_complex(x.dtype()) ? x / (1 + exp(-x)) : x * logistic(x); }

// dy s (1 + x (1 - s)),  s = sigmoid(x)
Value silu_gradient(Value dy, Value x) {
  Value s = is_complex(x.dtype()) ? 1 / (1 + exp(-x)) : logistic(x);
  return dy * s * (1 + x * (1 - s));
}

Value conjugate(Value x) { return is_complex(x.dtype()) ? complex(real(x), -imag(x)) : x; }

Value sigmoid_gradient(Value dy, Value y) { return dy * conjugate((1 - y) * y); }
Value tanh_gradient(Value dy, Value y) { return dy * conjugate(1 - y * y); }

constexpr double kTanhScale = 0.7978845608028654;   // sqrt(2 / pi)
constexpr double kTanhCube = 0.044715;

// x P(X <= x) for a standard normal X;  "tanh": x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
Value gelu(Value x, bool tanh_form) {
  if (tanh_form) return x * 0.5 * (1 + tanh((x + x * x * x * kTanhCube) * kTanhScale));
  return x * 0.5 * (1 + erf(x * (1 / std::numbers::sqrt2)));
}

Value gelu_gradient(Value dy, Value x, bool tanh_form) {
  if (tanh_form) {
    Value t = tanh((x + x * x * x * kTanhCube) * kTanhScale);
    Value slope = (1 + x * x * (3 * kTanhCube)) * kTanhScale;
    return dy * ((1 + t) * 0.5 + x * 0.5 * (1 - t * t) * slope);
  }
  Value cdf = (1 + erf(x * (1 / std::numbers::sqrt2))) * 0.5;
  Value pdf = exp(x * x * -0.5) * (std::numbers::inv_sqrtpi / std::numbers::sqrt2);
  return dy * (cdf + x * pdf);
}

bool is_tanh_form(const std::string& approximate) {
  TPU_CHECK(approximate == "none" || approximate == "tanh", "approximate argument must be either none or tanh.");
  return approximate == "tanh";
}

}  // namespace

TPU_LOWER_UNARY({
    {"relu", Rule::Raw, relu},
    {"silu", Rule::Same, silu},
});

TPU_LOWER_BINARY({
    {{"silu_backward"}, Rule::Same, silu_gradient},
    {{"sigmoid_backward"}, Rule::Same, sigmoid_gradient},
    {{"tanh_backward"}, Rule::Same, tanh_gradient},
});

TPU_LOWER("gelu", [](Value x, std::string approximate) {
  const bool tanh_form = is_tanh_form(approximate);
  return pointwise(Rule::Same, {x}, [&](const Values& v) { return gelu(v[0], tanh_form); });
});

TPU_LOWER("gelu_backward", [](Value dy, Value x, std::string approximate) {
  const bool tanh_form = is_tanh_form(approximate);
  return pointwise(Rule::Same, {dy, x}, [&](const Values& v) { return gelu_gradient(v[0], v[1], tanh_form); });
});

// The gradient of relu too: there x is the result.
TPU_LOWER("threshold_backward", [](Value dy, Value x, Value threshold) {
  return where(le(x, convert(threshold, x.dtype())), zeros_like(dy), dy);
}, {.host_scalars = true});

}  // namespace tpu::lowering
