// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "lowering/promote.h"

namespace tpu::lowering {
namespace {

constexpr int64_t kNone = 0, kMean = 1;  // at::Reduction; 2 is the sum

// All elements' losses to what `reduction` asks for. The mean of nothing is NaN.
Value reduced(Value loss, int64_t reduction) {
  if (reduction == kNone) return loss;
  Value total = sum(loss, all_dims(loss));
  return reduction == kMean ? total / static_cast<double>(loss.numel()) : total;
}
Value result(Value loss, int64_t reduction) { return convert(reduced(loss, reduction), result_type().dtype); }

// The gradient that reaches each element.
Value spread(Value grad, Value x, int64_t reduction) {
  Value g = accumulate(grad);
  if (reduction == kMean) g = g / static_cast<double>(x.numel());
  return convert(g, x.dtype());
}

// Both sides in the dtype that the loss is computed in, broadcast.
std::pair<Value, Value> operands(Value self, Value target) {
  const DType t = compute_dtype(common_dtype({self, target}));
  return broadcast_pair("loss", convert(self, t), convert(target, t));
}

// PyTorch's meta kernels of the gradients divide by the number of elements, be it 0: not asked.
const Options kGradient{.no_meta = true};

// ---- Element by element ------------------------------------------------------------------------

// (x - y)^2
TPU_LOWER("mse_loss", [](Value self, Value target, int64_t reduction) {
  auto [x, y] = operands(self, target);
  Value d = x - y;
  return result(d * d, reduction);
});
TPU_LOWER(
    "mse_loss_backward",
    [](Value grad, Value self, Value target, int64_t reduction) {
      auto [x, y] = operands(self, target);
      return convert(spread(grad, x, reduction) * 2 * (x - y), common_dtype({self, target}));
    },
    kGradient);

// |d| < beta: d^2 / 2 beta, else |d| - beta / 2
TPU_LOWER("smooth_l1_loss", [](Value self, Value target, int64_t reduction, double beta) {
  auto [x, y] = operands(self, target);
  Value d = abs(x - y);
  if (beta == 0) return result(d, reduction);
  return result(where(lt(d, beta), d * d * 0.5 / beta, d - 0.5 * beta), reduction);
});
TPU_LOWER(
    "smooth_l1_loss_backward",
    [](Value grad, Value self, Value target, int64_t reduction, double beta) {
      auto [x, y] = operands(self, target);
      Value d = x - y, g = spread(grad, x, reduction);
      Value inner = beta == 0 ? g * d : g * d / beta;
      return convert(where(le(d, -beta), -g, where(ge(d, beta), g, inner)), common_dtype({self, target}));
    },
    kGradient);

// |d| <= delta: d^2 / 2, else delta (|d| - delta / 2)
TPU_LOWER("huber_loss", [](Value self, Value target, int64_t reduction, double delta) {
  auto [x, y] = operands(self, target);
  Value d = abs(x - y);
  return result(where(le(d, delta), d * d * 0.5, (d - 0.5 * delta) * delta), reduction);
});
TPU_LOWER(
    "huber_loss_backward",
    [](Value grad, Value self, Value target, int64_t reduction, double delta) {
      auto [x, y] = operands(self, target);
      Value d = x - y, g = spread(grad, x, reduction);
      return convert(where(le(d, -delta), g * -delta, where(ge(d, delta), g * delta, g * d)),
                     common_dtype({self, target}));
    },
    kGradient);

// ln(1 + e^(-x y))
TPU_LOWER("soft_margin_loss", [](Value self, Value target, int64_t reduction) {
  auto [x, y] = operands(self, target);
  return result(log1p(exp(-x * y)), reduction);
});
TPU_LOWER(
    "soft_margin_loss_backward",
    [](Value grad, Value self, Value target, int64_t reduction) {
      auto [x, y] = operands(self, target);
      Value z = exp(-x * y);
      return convert(-y * z / (z + 1) * spread(grad, x, reduction), common_dtype({self, target}));
    },
    kGradient);

// -w (y ln x + (1 - y) ln(1 - x)), logarithms not below -100
TPU_LOWER("binary_cross_entropy", [](Value self, Value target, std::optional<Value> weight, int64_t reduction) {
  auto [x, y] = operands(self, target);
  check_not(any(!(ge(x, 0) & le(x, 1)), all_dims(x)), ErrorKind::Runtime,
            "all elements of input should be between 0 and 1");
  Value loss = (y - 1) * maximum(log1p(-x), -100) - y * maximum(log(x), -100);
  if (weight) loss = loss * convert(*weight, x.dtype());
  return result(loss, reduction);
});
TPU_LOWER(
    "binary_cross_entropy_backward",
    [](Value grad, Value self, Value target, std::optional<Value> weight, int64_t reduction) {
      auto [x, y] = operands(self, target);
      Value g = spread(grad, x, reduction) * (x - y) / maximum((1 - x) * x, 1e-12);
      return convert(weight ? g * convert(*weight, x.dtype()) : g, common_dtype({self, target}));
    },
    kGradient);

// (1 - y) x - p ln s(x), p = 1 + (pos_weight - 1) y
TPU_LOWER("binary_cross_entropy_with_logits", [](Value self, Value target, std::optional<Value> weight,
                                                 std::optional<Value> pos_weight, int64_t reduction) {
  auto [x, y] = operands(self, target);
  Value log_sigmoid = minimum(x, 0) - log1p(exp(-abs(x)));
  if (pos_weight) log_sigmoid = log_sigmoid * ((convert(*pos_weight, x.dtype()) - 1) * y + 1);
  Value loss = (1 - y) * x - log_sigmoid;
  if (weight) loss = loss * convert(*weight, x.dtype());
  return result(loss, reduction);
});

// ---- By class ----------------------------------------------------------------------------------

struct Classes {
  int64_t dim;  // of the classes: 1, or 0 of a single sample
  int64_t count;
  Value target;   // S32, in range
  Value counted;  // PRED: not ignored
  Value weight;   // of each sample; 0 where ignored
};

Classes classes(Value x, Value target, std::optional<Value> weight, int64_t ignore_index) {
  Classes c;
  c.dim = x.rank() == 1 ? 0 : 1;
  c.count = x.dim(c.dim);
  Value index = convert(target, S64);
  if (x.rank() == 1) index = reshape(index, {});
  c.counted = ne(index, ignore_index);
  check_range(where(c.counted, index, 0), 0, c.count, ErrorKind::Index,
              [](int64_t t) { return text("Target ", t, " is out of bounds."); });
  c.target = convert(clip(index, 0, std::max<int64_t>(c.count - 1, 0)), S32);
  Value w = like(convert(c.counted, x.dtype()), 1);
  if (weight && c.count > 0) w = take(convert(*weight, x.dtype()), c.target, 0);
  c.weight = where(c.counted, w, 0);
  return c;
}

// -w_t x_t
std::tuple<Value, Value> nll_forward(Value self, Value target, std::optional<Value> weight, int64_t reduction,
                                     int64_t ignore_index) {
  Value x = accumulate(self);
  const Classes c = classes(x, target, weight, ignore_index);
  const auto to = [&](Value v) { return convert(v, self.dtype()); };
  Value picked =
      x.numel() == 0 ? zeros_like(c.weight) : squeeze(take_along(x, expand_dims(c.target, c.dim), c.dim), c.dim);
  Value loss = where(c.counted, -picked * c.weight, 0);
  Value total = sum(c.weight, all_dims(c.weight));
  if (reduction == kNone) return {to(loss), x.rank() == 1 ? to(total) : to(zeros_like(total))};
  Value all = sum(loss, all_dims(loss));
  return {to(reduction == kMean ? all / total : all), to(total)};
}

Value nll_backward(Value grad, Value self, Value target, std::optional<Value> weight, int64_t reduction,
                   int64_t ignore_index, Value total) {
  Value x = accumulate(self);
  const Classes c = classes(x, target, weight, ignore_index);
  Value g = accumulate(grad);
  if (x.rank() == 1) g = reshape(g, {});
  if (reduction == kMean) g = g / accumulate(total);
  Value each = where(c.counted, -c.weight * g, 0);
  Value hit = eq(iota_like(x, c.dim, S32), expand_dims(c.target, c.dim));
  return convert(where(hit, expand_dims(each, c.dim), 0), self.dtype());
}

TPU_LOWER({"nll_loss_forward", "nll_loss2d_forward"}, nll_forward);
TPU_LOWER({"nll_loss_backward", "nll_loss2d_backward"}, nll_backward);

// ---- Margins -----------------------------------------------------------------------------------

Value as_rows(Value x) { return x.rank() == 0 ? reshape(x, {1, 1}) : x.rank() == 1 ? expand_dims(x, 0) : x; }

struct Margin {
  Value x, hit, z, active, weight;  // [n, c]; active: other classes within the margin; weight: [n, 1]
};
Margin margins(Value self, Value target, double margin, std::optional<Value> weight) {
  Margin m;
  m.x = as_rows(accumulate(self));
  Value t = reshape(convert(target, S64), {m.x.dim(0), 1});
  check_range(t, 0, m.x.dim(1), ErrorKind::Runtime, [](int64_t) { return "target out of range"; });
  m.hit = eq(iota_like(m.x, 1, S64), t);
  Value own = sum(where(m.hit, m.x, 0), 1, keep);
  m.z = m.x - own + margin;
  m.active = gt(m.z, 0) & !m.hit;
  m.weight = weight ? reshape(take(convert(*weight, m.x.dtype()), reshape(t, {m.x.dim(0)}), 0), {m.x.dim(0), 1})
                    : like(own, 1);
  return m;
}

void check_power(double p) { TPU_CHECK(p == 1 || p == 2, "only p == 1 and p == 2 supported"); }

// sum over the other classes of w_t max(0, margin - x_t + x_j)^p / c
TPU_LOWER("multi_margin_loss",
          [](Value self, Value target, double p, double margin, std::optional<Value> weight, int64_t reduction) {
            check_power(p);
            const Margin m = margins(self, target, margin, weight);
            Value each = where(m.active, (p == 1 ? m.z : m.z * m.z) * m.weight, 0);
            Value loss = sum(each, 1) / static_cast<double>(m.x.dim(1));
            if (reduction == kNone) return convert(reshape(loss, result_type().dims), self.dtype());
            return convert(reduced(loss, reduction), self.dtype());
          });
TPU_LOWER("multi_margin_loss_backward",
          [](Value grad, Value self, Value target, double p, double margin, std::optional<Value> weight,
             int64_t reduction) {
            check_power(p);
            const Margin m = margins(self, target, margin, weight);
            const auto n = static_cast<double>(m.x.dim(0)), c = static_cast<double>(m.x.dim(1));
            Value g = accumulate(grad) / (reduction == kMean ? n * c : c);
            if (reduction == kNone)
              g = reshape(g, {m.x.dim(0), 1});
            else
              g = reshape(g, {});
            Value each = where(m.active, (p == 1 ? like(m.z, 1) : m.z * 2) * m.weight * g, 0);
            Value own = sum(each, 1, keep);
            return convert(reshape(where(m.hit, -own, each), self.dims()), self.dtype());
          },
          {.no_meta = true});

struct Labels {
  Value x;          // [n, c]
  Value hit;        // [n, j, c]: label j is there and is class c
  Value is_target;  // [n, c]
  Value z;          // [n, j, c]: 1 - x_label + x_c where that is a violated pair, else 0
};
Labels labels(Value self, Value target) {
  Labels l;
  l.x = as_rows(accumulate(self));
  Value t = as_rows(convert(target, S32));
  // The first negative label ends the list.
  Value valid = eq(cumulative(convert(lt(t, 0), S32), 1, Scan::Sum), 0);
  const Dims cube{l.x.dim(0), t.dim(1), l.x.dim(1)};
  Value c = iota(graph(), {S32, cube}, 2);
  l.hit = eq(c, expand_dims(t, 2)) & expand_dims(valid, 2);
  l.is_target = any(l.hit, 1);
  Value wide = broadcast_to(expand_dims(l.x, 1), cube);
  Value own = sum(where(l.hit, wide, 0), 2, keep);
  Value z = 1 - own + wide;
  Value pair = expand_dims(valid, 2) & !expand_dims(l.is_target, 1) & gt(z, 0);
  l.z = where(pair, z, 0);
  return l;
}

// sum over labels j and other classes c of max(0, 1 - x_j + x_c) / c
TPU_LOWER("multilabel_margin_loss_forward",
          [](Value self, Value target, int64_t reduction) {
            TPU_CHECK(self.rank() == 0 || (self.rank() <= 2 && self.dim(self.rank() - 1) != 0),
                      "Expected non-empty vector or matrix with optional 0-dim batch size, but got: ",
                      to_string(self.type()));
            TPU_CHECK(target.dims() == self.dims(), "inconsistent target size: ", to_string(target.type()),
                      " for input of size: ", to_string(self.type()));
            const Labels l = labels(self, target);
            Value loss = sum(l.z, {1, 2}) / static_cast<double>(l.x.dim(1));
            Value out = reduction != kNone ? reduced(loss, reduction) : self.rank() == 2 ? loss : reshape(loss, {});
            return std::tuple(convert(out, self.dtype()), convert(reshape(l.is_target, target.dims()), self.dtype()));
          },
          {.no_meta = true});
TPU_LOWER("multilabel_margin_loss_backward",
          [](Value grad, Value self, Value target, int64_t reduction, Unused) {
            const Labels l = labels(self, target);
            const auto n = static_cast<double>(l.x.dim(0)), c = static_cast<double>(l.x.dim(1));
            Value g = accumulate(grad) / (reduction == kMean ? n * c : c);
            g = reduction == kNone ? reshape(g, {l.x.dim(0), 1}) : reshape(g, {});
            Value pair = convert(gt(l.z, 0), l.x.dtype());
            Value others = sum(pair, 1), own = sum(where(l.hit, sum(pair, 2, keep), 0), 1);
            return convert(reshape((others - own) * g, self.dims()), self.dtype());
          },
          {.no_meta = true});

}  // namespace
}  // namespace tpu::lowering
