// SPDX-License-Identifier: Apache-2.0
// Activations and their gradients.
#include <cmath>
#include <numbers>

#include "lowering/pointwise.h"

namespace tpu::lowering {
namespace {

// Scalar parameters that may vary from call to call, in the dtype of the computation.
Value number(Value scalar, Value x) { return convert(scalar, x.dtype()); }

// One result, computed as Rule::Same has it.
Value activation(const Values& operands, const std::function<Value(const Values&)>& f) {
  return pointwise(Rule::Same, operands, f);
}

Value relu(Value x) { return maximum(x, 0); }
Value softplus_of(Value x) { return log1p(exp(x)); }
Value mish(Value x) { return x * tanh(softplus_of(x)); }

// dy (tanh(p) + x s (1 - tanh(p)^2)),  s = sigmoid(x), p = log(1 + e^x)
Value mish_gradient(Value dy, Value x) {
  Value t = tanh(softplus_of(x));
  return dy * (t + x * logistic(x) * (1 - t * t));
}

Value relu6_of(Value x) { return clip(x, 0, 6); }
Value hardsigmoid(Value x) { return relu6_of(x + 3) / 6; }
Value hardswish(Value x) { return x * relu6_of(x + 3) / 6; }
Value hardsigmoid_gradient(Value dy, Value x) { return where(gt(x, -3) & lt(x, 3), dy * (1.0 / 6), zeros_like(dy)); }
Value hardswish_gradient(Value dy, Value x) {
  return where(le(x, -3), zeros_like(dy), where(lt(x, 3), dy * (x / 3 + 0.5), dy));
}

Value silu(Value x) { return is_complex(x.dtype()) ? x / (1 + exp(-x)) : x * logistic(x); }

// dy s (1 + x (1 - s)),  s = sigmoid(x)
Value silu_gradient(Value dy, Value x) {
  Value s = is_complex(x.dtype()) ? 1 / (1 + exp(-x)) : logistic(x);
  return dy * s * (1 + x * (1 - s));
}

Value conjugate(Value x) { return is_complex(x.dtype()) ? complex(real(x), -imag(x)) : x; }

Value sigmoid_gradient(Value dy, Value y) { return dy * conjugate((1 - y) * y); }
Value tanh_gradient(Value dy, Value y) { return dy * conjugate(1 - y * y); }

constexpr double kTanhScale = 0.7978845608028654;  // sqrt(2 / pi)
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
    {"mish", Rule::Same, mish},
    {"hardsigmoid", Rule::Same, hardsigmoid},
    {"hardswish", Rule::Same, hardswish},
});

TPU_LOWER_BINARY({
    {{"silu_backward"}, Rule::Same, silu_gradient},
    {{"sigmoid_backward"}, Rule::Same, sigmoid_gradient},
    {{"tanh_backward"}, Rule::Same, tanh_gradient},
    {{"mish_backward"}, Rule::Same, mish_gradient},
    {{"hardsigmoid_backward"}, Rule::Same, hardsigmoid_gradient},
    {{"hardswish_backward"}, Rule::Same, hardswish_gradient},
});

TPU_LOWER("gelu", [](Value x, std::string approximate) {
  const bool tanh_form = is_tanh_form(approximate);
  return pointwise(Rule::Same, {x}, [&](const Values& v) { return gelu(v[0], tanh_form); });
});

TPU_LOWER("gelu_backward", [](Value dy, Value x, std::string approximate) {
  const bool tanh_form = is_tanh_form(approximate);
  return pointwise(Rule::Same, {dy, x}, [&](const Values& v) { return gelu_gradient(v[0], v[1], tanh_form); });
});

// ---- Of pieces ---------------------------------------------------------------------------------

TPU_LOWER("threshold", [](Value x, Value threshold, Value value) {
  return where(le(x, number(threshold, x)), number(value, x), x);
});

// The gradient of relu too: there x is the result.
TPU_LOWER("threshold_backward",
          [](Value dy, Value x, Value threshold) { return where(le(x, number(threshold, x)), zeros_like(dy), dy); });

TPU_LOWER("hardtanh", [](Value x, Value low, Value high) { return clip(x, number(low, x), number(high, x)); });
TPU_LOWER("hardtanh_backward", [](Value dy, Value x, Value low, Value high) {
  return where(le(x, number(low, x)) | ge(x, number(high, x)), zeros_like(dy), dy);
});

TPU_LOWER("leaky_relu", [](Value self, Value slope) {
  return activation({self}, [&](const Values& v) { return where(gt(v[0], 0), v[0], v[0] * number(slope, v[0])); });
});
TPU_LOWER("leaky_relu_backward", [](Value grad, Value self, Value slope, bool) {
  return activation({grad, self},
                    [&](const Values& v) { return where(gt(v[1], 0), v[0], v[0] * number(slope, v[0])); });
});

// The weight is broadcast by the caller; its gradient is summed by the caller.
TPU_LOWER("_prelu_kernel", [](Value self, Value weight) {
  return activation({self, weight}, [](const Values& v) { return where(gt(v[0], 0), v[0], v[1] * v[0]); });
});
TPU_LOWER("_prelu_kernel_backward", [](Value grad, Value self, Value weight) {
  return std::tuple{
      activation({grad, self, weight}, [](const Values& v) { return where(gt(v[1], 0), v[0], v[2] * v[0]); }),
      activation({grad, self, weight},
                 [](const Values& v) { return where(gt(v[1], 0), zeros_like(v[1]), v[1] * v[0]); })};
});

// lambda is fixed in a model: its sign is checked here.
TPU_LOWER("hardshrink", [](Value x, double lambda) { return where(ge(x, -lambda) & le(x, lambda), zeros_like(x), x); });
TPU_LOWER({"hardshrink_backward", "softshrink_backward"},
          [](Value dy, Value x, double lambda) { return where(ge(x, -lambda) & le(x, lambda), zeros_like(dy), dy); });
TPU_LOWER("softshrink", [](Value self, double lambda) {
  TPU_CHECK(lambda >= 0, "lambda must be greater or equal to 0, but found to be ", lambda, ".");
  return activation({self}, [&](const Values& v) {
    Value x = v[0];
    return where(gt(x, lambda), x - lambda, where(lt(x, -lambda), x + lambda, x * 0));  // NaN stays
  });
});

// ---- Of exponentials ---------------------------------------------------------------------------

// scale x,  below 0: scale alpha (e^(input_scale x) - 1)
TPU_LOWER("elu", [](Value self, Value alpha, Value scale, Value input_scale) {
  return activation({self}, [&](const Values& v) {
    Value x = v[0], s = number(scale, x);
    return where(lt(x, 0), expm1(x * number(input_scale, x)) * (number(alpha, x) * s), x * s);
  });
});
TPU_LOWER("elu_backward", [](Value grad, double alpha, Value scale, Value input_scale, bool is_result, Value self) {
  TPU_CHECK(
      !is_result || alpha >= 0,
      "In-place elu backward calculation is triggered with a negative slope which is not supported. This is caused by "
      "calling in-place forward function with a negative slope, please call out-of-place version instead.");
  return activation({grad, self}, [&](const Values& v) {
    Value x = v[1], s = number(scale, x), i = number(input_scale, x), negative = s * alpha;
    Value slope = is_result ? i * (x + negative) : i * negative * exp(x * i);
    return v[0] * where(le(x, 0), slope, broadcast_to(s, x.dims()));
  });
});

// log(1 + e^(beta x)) / beta, where beta x > threshold: x
TPU_LOWER("softplus", [](Value self, Value beta, Value threshold) {
  return activation({self}, [&](const Values& v) {
    Value x = v[0], b = number(beta, x), bx = x * b;
    return where(gt(bx, number(threshold, x)), x, softplus_of(bx) / b);
  });
});
TPU_LOWER("softplus_backward", [](Value grad, Value self, Value beta, Value threshold) {
  return activation({grad, self}, [&](const Values& v) {
    Value bx = v[1] * number(beta, v[1]), z = exp(bx);
    return where(gt(bx, number(threshold, bx)), v[0], v[0] * z / (z + 1));
  });
});

// min(x, 0) - log(1 + e^-|x|). The buffer is what CPU PyTorch keeps for the gradient: e^-|x|.
TPU_LOWER("log_sigmoid_forward", [](Value self) {
  return std::tuple{activation({self}, [](const Values& v) { return minimum(v[0], 0) - log1p(exp(-abs(v[0]))); }),
                    result_type(1).numel() == 0 && self.numel() != 0
                        ? full(graph(), result_type(1), 0)
                        : activation({self}, [](const Values& v) { return exp(-abs(v[0])); })};
});
TPU_LOWER("log_sigmoid_backward", [](Value grad, Value self, Unused) {
  return activation({grad, self}, [](const Values& v) { return v[0] * logistic(-v[1]); });
});

// a sigmoid(b), where a and b are the halves of x along dim
TPU_LOWER("glu", [](Value self, Dim dim) {
  return activation({self}, [&](const Values& v) {
    const int64_t n = self.dim(dim) / 2;
    return slice_dim(v[0], dim, 0, n) * logistic(slice_dim(v[0], dim, n, 2 * n));
  });
});
TPU_LOWER("glu_backward", [](Value grad, Value self, int64_t dim) {
  return activation({grad, self}, [&](const Values& v) {
    const int64_t d = wrap_dim(dim, self.rank(), "glu_backward"), n = self.dim(d) / 2;
    Value dy = v[0], a = slice_dim(v[1], d, 0, n), s = logistic(slice_dim(v[1], d, n, 2 * n));
    return concat({dy * s, dy * a * s * (1 - s)}, d);
  });
});
TPU_LOWER("glu_jvp", [](Value glu, Value self, Value tangent, int64_t dim) {
  return activation({glu, self, tangent}, [&](const Values& v) {
    const int64_t d = wrap_dim(dim, self.rank(), "glu_jvp"), n = self.dim(d) / 2;
    Value s = logistic(slice_dim(v[1], d, n, 2 * n));
    return slice_dim(v[2], d, 0, n) * s + v[0] * (1 - s) * slice_dim(v[2], d, n, 2 * n);
  });
});

// log(x / (1 - x)), x clamped to [eps, 1 - eps]
TPU_LOWER("logit", [](Value self, std::optional<double> eps) {
  return pointwise(Rule::Float, {self}, [&](const Values& v) {
    Value x = eps && *eps >= 0 ? clip(v[0], *eps, 1 - *eps) : v[0];
    return log(x / (1 - x));
  });
});
TPU_LOWER("logit_backward", [](Value grad, Value self, std::optional<double> eps) {
  return activation({grad, self}, [&](const Values& v) {
    Value x = v[1], slope = v[0] / (x * (1 - x));
    const bool open = !eps || *eps < 0;  // outside the range: NaN, or 0 where x was clamped
    Value inside = open ? ge(x, 0) & le(x, 1) : ge(x, *eps) & le(x, 1 - *eps);
    return where(inside, slope, like(x, open ? std::nan("") : 0.0));
  });
});

}  // namespace tpu::lowering
