// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "lowering/promote.h"

// The optimizers' fused steps: every parameter of a group in one program.
namespace tpu::lowering {
namespace {

// A step's gradient: unscaled (and then written back), and turned to ascend for `maximize`.
struct Gradient {
  Value used;     // in the compute dtype
  Value written;  // null: unchanged
};
Gradient gradient(Value grad, DType t, bool maximize, const std::optional<Value>& grad_scale) {
  Gradient g{convert(grad, t), Value()};
  if (grad_scale) {
    g.used = g.used / convert(reshape(*grad_scale, {}), t);
    g.written = convert(g.used, grad.dtype());
  }
  if (maximize) g.used = -g.used;
  return g;
}

// grad + decay * x, and grad itself where there is no decay, also beside an infinite x.
Value with_decay(Value grad, Value x, Value decay) { return where(eq(decay, 0), grad, grad + x * decay); }

// What all fused steps share: an overflow found while unscaling leaves everything as it was.
class Step {
 public:
  explicit Step(const std::optional<Value>& found_inf) {
    if (found_inf) skip_ = eq(reshape(*found_inf, {}), 1);
  }
  void write(Values& list, Value old, Value now) const {
    if (now.node() == nullptr) {
      list.push_back(now);
      return;
    }
    Value v = convert(now, old.dtype());
    list.push_back(skip_ ? where(skip_, old, v) : v);
  }

 private:
  Value skip_;
};

Values joined(std::initializer_list<Values> lists) {
  Values out;
  for (const Values& list : lists) out.insert(out.end(), list.begin(), list.end());
  return out;
}

// m = lerp(m, g, 1 - b1),  v = b2 v + (1 - b2) g^2,  x -= lr / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + eps)
// beta2 is static: 1 - 0.999 keeps too few digits in float32. 1 - b^t is -expm1(t ln b) for the same reason.
Values adam(bool decoupled, const Values& self, const Values& grads, const Values& exp_avgs, const Values& exp_avg_sqs,
            const Values& max_exp_avg_sqs, const Values& steps, Value lr, Value beta1, double beta2, Value weight_decay,
            Value eps, bool amsgrad, bool maximize, const std::optional<Value>& grad_scale,
            const std::optional<Value>& found_inf) {
  const Step step(found_inf);
  Values xs, gs, ms, vs, tops;
  for (size_t i = 0; i < self.size(); ++i) {
    const DType t = compute_dtype(self[i].dtype());
    const auto to = [&](Value v) { return convert(v, t); };
    const auto number = [&](Value v) { return convert(reshape(v, {}), t); };
    Value x = to(self[i]), rate = number(lr), b1 = number(beta1), count = number(steps.at(i)),
          decay = number(weight_decay);
    Gradient g = gradient(grads.at(i), t, maximize, grad_scale);
    if (decoupled)
      x = where(eq(decay, 0), x, x - x * (rate * decay));
    else
      g.used = with_decay(g.used, x, decay);
    Value m = to(exp_avgs.at(i));
    m = m + (g.used - m) * (1 - b1);
    Value v = to(exp_avg_sqs.at(i)) * beta2 + g.used * g.used * (1 - beta2);
    Value bias1 = where(eq(b1, 0), like(b1, 1), -expm1(count * log(b1)));
    Value bias2 = beta2 == 0 ? like(count, 1) : -expm1(count * std::log(beta2));
    Value top = v;
    if (amsgrad) top = maximum(to(max_exp_avg_sqs.at(i)), v);
    x = x - m / (sqrt(top) / sqrt(bias2) + number(eps)) * (rate / bias1);
    step.write(xs, self[i], x);
    step.write(gs, grads[i], g.written);
    step.write(ms, exp_avgs[i], m);
    step.write(vs, exp_avg_sqs[i], v);
    if (amsgrad) step.write(tops, max_exp_avg_sqs[i], top);
  }
  if (!amsgrad) tops.assign(max_exp_avg_sqs.size(), Value());
  return joined({xs, gs, ms, vs, tops});
}

template <bool decoupled>
Values fused_adam(Values self, Values grads, Values m, Values v, Values tops, Values steps, Value lr, Value beta1,
                  double beta2, Value weight_decay, Value eps, bool amsgrad, bool maximize,
                  std::optional<Value> grad_scale, std::optional<Value> found_inf) {
  return adam(decoupled, self, grads, m, v, tops, steps, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize,
              grad_scale, found_inf);
}
TPU_LOWER("_fused_adam_", &fused_adam<false>);
TPU_LOWER("_fused_adam_.tensor_lr", &fused_adam<false>, {.host_scalars = true, .no_meta = true});
TPU_LOWER("_fused_adamw_", &fused_adam<true>);
TPU_LOWER("_fused_adamw_.tensor_lr", &fused_adam<true>, {.host_scalars = true, .no_meta = true});

// b = mu b + (1 - dampening) g (g in the first step),  x -= lr (b, or g + mu b for nesterov)
TPU_LOWER({"_fused_sgd_", "_fused_sgd_.tensor_lr"},
          [](Values self, Values grads, Values buffers, Value weight_decay, Value momentum, Value lr, Value dampening,
             bool nesterov, bool maximize, bool is_first_step, std::optional<Value> grad_scale,
             std::optional<Value> found_inf) {
            const Step step(found_inf);
            Values xs, gs, bs;
            for (size_t i = 0; i < self.size(); ++i) {
              const DType t = compute_dtype(self[i].dtype());
              const auto number = [&](Value v) { return convert(reshape(v, {}), t); };
              Value x = convert(self[i], t), mu = number(momentum);
              Gradient g = gradient(grads.at(i), t, maximize, grad_scale);
              Value d = with_decay(g.used, x, number(weight_decay));
              if (!buffers.empty()) {
                Value b = is_first_step ? d : convert(buffers.at(i), t) * mu + d * (1 - number(dampening));
                d = nesterov ? d + b * mu : b;
                step.write(bs, buffers[i], b);
              }
              step.write(xs, self[i], x - d * number(lr));
              step.write(gs, grads[i], g.written);
            }
            return joined({xs, gs, bs});
          },
          {.host_scalars = true, .no_meta = true});

// s += g^2,  x -= lr / (1 + (t - 1) lr_decay) * g / (sqrt(s) + eps)
Values adagrad(const Values& self, const Values& grads, const Values& sums, const Values& steps, Value lr,
               Value lr_decay, Value weight_decay, Value eps, bool maximize, const std::optional<Value>& grad_scale,
               const std::optional<Value>& found_inf) {
  const Step step(found_inf);
  Values xs, gs, ss;
  for (size_t i = 0; i < self.size(); ++i) {
    const DType t = compute_dtype(self[i].dtype());
    const auto number = [&](Value v) { return convert(reshape(v, {}), t); };
    Value x = convert(self[i], t);
    Gradient g = gradient(grads.at(i), t, maximize, grad_scale);
    Value d = with_decay(g.used, x, number(weight_decay));
    Value s = convert(sums.at(i), t) + d * d;
    Value rate = number(lr) / (1 + (number(steps.at(i)) - 1) * number(lr_decay));
    step.write(xs, self[i], x - d / (sqrt(s) + number(eps)) * rate);
    step.write(gs, grads[i], g.written);
    step.write(ss, sums[i], s);
  }
  return joined({xs, gs, ss});
}
TPU_LOWER("_fused_adagrad_",
          [](Values self, Values grads, Values sums, Values steps, Value lr, Value lr_decay, Value weight_decay,
             Value eps, bool maximize, std::optional<Value> grad_scale, std::optional<Value> found_inf) {
            Values out =
                adagrad(self, grads, sums, steps, lr, lr_decay, weight_decay, eps, maximize, grad_scale, found_inf);
            out.resize(out.size() + steps.size());  // the schema has the steps written too; they are not
            return out;
          },
          {.no_meta = true});
TPU_LOWER("_fused_adagrad_.tensor_lr",
          [](Values self, Values grads, Values sums, Values steps, Value lr, Value lr_decay, Value weight_decay,
             Value eps, bool maximize, std::optional<Value> grad_scale, std::optional<Value> found_inf) {
            return adagrad(self, grads, sums, steps, lr, lr_decay, weight_decay, eps, maximize, grad_scale, found_inf);
          },
          {.host_scalars = true, .no_meta = true});

}  // namespace
}  // namespace tpu::lowering
