// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "lowering/promote.h"

// Batch, layer, group and RMS normalization with their gradients. All share two formulas:
//   y  = (x - mean) rstd w + b
//   dx = rstd (g - mean(g) - xhat mean(g xhat)),  g = dy w,  xhat = (x - mean) rstd
namespace tpu::lowering {
namespace {

using OptValue = std::optional<Value>;

double count_of(Value x, const Dims& dims) {
  return std::accumulate(dims.begin(), dims.end(), 1.0,
                         [&](double n, int64_t d) { return n * static_cast<double>(x.dim(d)); });
}

// Sum over `dims`, kept. The CPU plugin adds a row's elements one by one; in strips of 16 it uses
// vector registers.
Value sum_of(Value x, const Dims& dims) {
  constexpr int64_t kStrip = 16;
  const int64_t last = x.rank() - 1;
  if (!call().target->strip_sums || dims.empty() || dims.back() != last || x.numel() == 0) return sum(x, dims, keep);
  int64_t row = 1;
  size_t n = 0;
  while (n < dims.size() && dims[dims.size() - 1 - n] == last - static_cast<int64_t>(n))
    row *= x.dim(dims[dims.size() - 1 - n++]);
  if (row % kStrip != 0 || row == kStrip) return sum(x, dims, keep);
  Dims strips(x.dims().begin(), x.dims().end() - static_cast<int64_t>(n)),
      over(dims.begin(), dims.end() - static_cast<int64_t>(n));
  over.push_back(static_cast<int64_t>(strips.size()));
  strips.insert(strips.end(), {row / kStrip, kStrip});
  Value partial = sum(reshape(x, strips), over, keep);
  Dims kept = x.dims();
  for (int64_t d : dims) kept[static_cast<size_t>(d)] = 1;
  return reshape(sum(partial, partial.rank() - 1), kept);
}

Value mean_of(Value x, const Dims& dims) { return sum_of(x, dims) / count_of(x, dims); }

// bf16 and f16 inputs may come with f32 parameters; the statistics then are f32 too.
DType parameter_dtype(Value x, const std::vector<OptValue>& parameters) {
  std::optional<DType> found;
  for (const auto& p : parameters) {
    if (!p) continue;
    if (!found) found = p->dtype();
    if (*found == x.dtype()) {
      TPU_CHECK(p->dtype() == *found, "expected scalar type ", short_name(*found), " but found ",
                short_name(p->dtype()));
      continue;
    }
    TPU_CHECK(is_floating(x.dtype()) && byte_size(x.dtype()) == 2,
              "mixed dtype (CPU): all the parameters must have the same dtype as the input");
    TPU_CHECK(p->dtype() == F32, "mixed dtype (CPU): expect parameter to have scalar type of Float");
  }
  return found.value_or(x.dtype());
}

struct Moments {
  Value mean, variance;  // reduced dimensions kept
};
Moments moments(Value x, const Dims& dims) {
  Value mean = mean_of(x, dims);
  Value centred = x - mean;
  return {mean, mean_of(centred * centred, dims)};
}

Value like_scalar(Value number, Value x) { return convert(number, x.dtype()); }

Value input_gradient(Value g, Value xhat, Value rstd, const Dims& dims) {
  return rstd * (g - mean_of(g, dims) - xhat * mean_of(g * xhat, dims));
}

// ---- Batch normalization: statistics over everything but dimension 1 ---------------------------

Dims but_channels(Value x) {
  Dims dims = all_dims(x);
  dims.erase(dims.begin() + 1);
  return dims;
}

// A vector of channels beside x: [1, C, 1, ...].
Value channels(Value v, Value x) {
  Dims dims(static_cast<size_t>(x.rank()), 1);
  dims[1] = v.numel();
  return reshape(accumulate(v), dims);
}
Value as_vector(Value v, DType t) { return convert(reshape(v, {v.numel()}), t); }

Value scale_and_shift(Value xhat, const OptValue& weight, const OptValue& bias) {
  if (weight) xhat = xhat * channels(*weight, xhat);
  if (bias) xhat = xhat + channels(*bias, xhat);
  return xhat;
}

struct BatchNorm {
  Value y, mean, rstd;              // statistics empty in evaluation, as on the CPU
  Value running_mean, running_var;  // null: unchanged
};

// running = (1 - momentum) running + momentum new
Value running(Value old, Value fresh, Value momentum) {
  Value a = accumulate(old), m = like_scalar(momentum, a);
  return convert(a * (1 - m) + reshape(fresh, a.dims()) * m, old.dtype());
}

BatchNorm batch_norm(Value x, OptValue weight, OptValue bias, OptValue mean, OptValue var, bool training,
                     Value momentum, Value eps) {
  const DType t = parameter_dtype(x, {weight, bias, mean, var});
  Value a = accumulate(x);
  BatchNorm out;
  Moments m;
  if (training) {
    m = moments(a, but_channels(a));
    const double n = count_of(a, but_channels(a));
    if (mean) out.running_mean = running(*mean, m.mean, momentum);
    if (var) out.running_var = running(*var, m.variance * (n / (n - 1)), momentum);
  } else {
    TPU_CHECK(mean && var, "running_mean and running_var must be defined in evaluation mode");
    m = {channels(*mean, a), channels(*var, a)};
  }
  Value rstd = rsqrt(m.variance + like_scalar(eps, a));
  out.y = convert(scale_and_shift((a - m.mean) * rstd, weight, bias), x.dtype());
  out.mean = training ? as_vector(m.mean, t) : full(graph(), {t, {0}}, 0);
  out.rstd = training ? as_vector(rstd, t) : out.mean;
  return out;
}

Values batch_norm_backward(Value dy, Value x, OptValue weight, OptValue running_mean, OptValue running_var,
                           OptValue save_mean, OptValue save_rstd, bool train, Value eps,
                           const std::vector<bool>& mask) {
  const DType t = weight ? weight->dtype() : x.dtype();
  Value a = accumulate(x), g = accumulate(dy);
  const Dims dims = but_channels(a);
  Value mean = channels(train ? *save_mean : *running_mean, a);
  Value rstd = train ? channels(*save_rstd, a) : rsqrt(channels(*running_var, a) + like_scalar(eps, a));
  Value xhat = (a - mean) * rstd;
  // mean(g) and mean(g xhat) serve all three gradients.
  const double n = count_of(a, dims);
  Value dbias = sum_of(g, dims), dweight = sum_of(g * xhat, dims);
  Value dx = train ? g - dbias / n - xhat * (dweight / n) : g;
  dx = dx * (weight ? rstd * channels(*weight, a) : rstd);
  return {mask[0] ? convert(dx, x.dtype()) : Value(), mask[1] ? as_vector(dweight, t) : Value(),
          mask[2] ? as_vector(dbias, t) : Value()};
}

TPU_LOWER("native_batch_norm",
          [](Value x, OptValue weight, OptValue bias, OptValue mean, OptValue var, bool training, Value momentum,
             Value eps) {
            BatchNorm r = batch_norm(x, weight, bias, mean, var, training, momentum, eps);
            return Values{r.y, r.mean, r.rstd, r.running_mean, r.running_var};
          },
          {.writes = {3, 4}, .loose_meta = true});

TPU_LOWER("_native_batch_norm_legit",
          [](Value x, OptValue weight, OptValue bias, Value mean, Value var, bool training, Value momentum, Value eps) {
            BatchNorm r = batch_norm(x, weight, bias, mean, var, training, momentum, eps);
            return Values{r.y, r.mean, r.rstd, r.running_mean, r.running_var};
          },
          {.loose_meta = true});

// In evaluation the statistics' out= tensors stay as they are, as on the CPU.
Value unless_empty(Value v) { return v.numel() > 0 ? v : Value(); }

TPU_LOWER("native_batch_norm.out",
          [](Value x, OptValue weight, OptValue bias, OptValue mean, OptValue var, bool training, Value momentum,
             Value eps, Unused, Unused, Unused) {
            BatchNorm r = batch_norm(x, weight, bias, mean, var, training, momentum, eps);
            return Values{r.running_mean, r.running_var, r.y, unless_empty(r.mean), unless_empty(r.rstd)};
          },
          {.writes = {3, 4}, .no_meta = true});

TPU_LOWER("_native_batch_norm_legit.out",
          [](Value x, OptValue weight, OptValue bias, Value mean, Value var, bool training, Value momentum, Value eps,
             Unused, Unused, Unused) {
            BatchNorm r = batch_norm(x, weight, bias, mean, var, training, momentum, eps);
            return Values{r.running_mean, r.running_var, r.y, unless_empty(r.mean), unless_empty(r.rstd)};
          },
          {.no_meta = true});

TPU_LOWER("_native_batch_norm_legit.no_stats",
          [](Value x, OptValue weight, OptValue bias, bool training, Value momentum, Value eps) {
            BatchNorm r = batch_norm(x, weight, bias, {}, {}, training, momentum, eps);
            return Values{r.y, r.mean, r.rstd};
          },
          {.loose_meta = true});

// The reserve is cuDNN's; the CPU returns an empty one.
Value no_reserve() { return full(graph(), {U8, {0}}, 0); }

TPU_LOWER("_batch_norm_with_update",
          [](Value x, OptValue weight, OptValue bias, Value mean, Value var, Value momentum, Value eps) {
            BatchNorm r = batch_norm(x, weight, bias, mean, var, true, momentum, eps);
            return Values{r.y, r.mean, r.rstd, no_reserve(), r.running_mean, r.running_var};
          },
          {.loose_meta = true});

TPU_LOWER("_batch_norm_no_update",
          [](Value x, OptValue weight, OptValue bias, OptValue mean, OptValue var, Value momentum, Value eps) {
            BatchNorm r = batch_norm(x, weight, bias, mean, var, false, momentum, eps);
            return Values{r.y, r.mean, r.rstd, no_reserve()};
          },
          {.loose_meta = true});

TPU_LOWER("native_batch_norm_backward",
          [](Value dy, Value x, OptValue weight, OptValue running_mean, OptValue running_var, OptValue save_mean,
             OptValue save_rstd, bool train, Value eps, std::vector<bool> mask) {
            return batch_norm_backward(dy, x, weight, running_mean, running_var, save_mean, save_rstd, train, eps,
                                       mask);
          },
          {.loose_meta = true});

TPU_LOWER("batch_norm_backward",
          [](Value dy, Value x, Value weight, OptValue running_mean, OptValue running_var, OptValue save_mean,
             OptValue save_rstd, bool update, Value eps, std::vector<bool> mask, Unused) {
            return batch_norm_backward(dy, x, weight, running_mean, running_var, save_mean, save_rstd, update, eps,
                                       mask);
          },
          {.loose_meta = true});

TPU_LOWER("batch_norm_update_stats",
          [](Value x, OptValue mean, OptValue var, Value momentum) {
            const DType t = parameter_dtype(x, {mean, var});
            Value a = accumulate(x);
            Moments m = moments(a, but_channels(a));
            const double n = count_of(a, but_channels(a));
            return Values{as_vector(m.mean, t), as_vector(m.variance, t),
                          mean ? running(*mean, m.mean, momentum) : Value(),
                          var ? running(*var, m.variance * (n / (n - 1)), momentum) : Value()};
          },
          {.writes = {1, 2}, .no_meta = true});

// ---- Layer normalization: statistics over the last dimensions ----------------------------------

Dims last_dims(Value x, size_t count) {
  Dims dims = all_dims(x);
  return {dims.end() - static_cast<int64_t>(count), dims.end()};
}
Dims first_dims(Value x, size_t last) {
  Dims dims = all_dims(x);
  return {dims.begin(), dims.end() - static_cast<int64_t>(last)};
}

TPU_LOWER("native_layer_norm",
          [](Value x, Dims shape, OptValue weight, OptValue bias, Value eps) {
            const DType t = parameter_dtype(x, {weight, bias});
            Value a = accumulate(x);
            Moments m = moments(a, last_dims(a, shape.size()));
            Value rstd = rsqrt(m.variance + like_scalar(eps, a));
            Value y = (a - m.mean) * rstd;
            if (weight) y = y * accumulate(*weight);
            if (bias) y = y + accumulate(*bias);
            return Values{convert(y, x.dtype()), convert(m.mean, t), convert(rstd, t)};
          },
          {.loose_meta = true});

TPU_LOWER("native_layer_norm_backward",
          [](Value dy, Value x, Dims shape, Value mean, Value rstd, OptValue weight, OptValue bias,
             std::vector<bool> mask) {
            Value a = accumulate(x), g = accumulate(dy), r = accumulate(rstd);
            Value xhat = (a - accumulate(mean)) * r;
            const Dims outer = first_dims(a, shape.size());
            const DType t = weight ? weight->dtype() : x.dtype();
            Values out(3);
            if (mask[0]) {
              Value scaled = weight ? g * accumulate(*weight) : g;
              out[0] = convert(input_gradient(scaled, xhat, r, last_dims(a, shape.size())), x.dtype());
            }
            if (mask[1] && weight) out[1] = convert(sum(g * xhat, outer), t);
            if (mask[2] && bias) out[2] = convert(sum(g, outer), t);
            return out;
          },
          {.loose_meta = true});

// y = x rsqrt(mean(x^2) + eps) w
TPU_LOWER("_fused_rms_norm", [](Value x, Dims shape, OptValue weight, OptValue eps) {
  Value a = accumulate(x);
  const double smallest = a.dtype() == F64 ? 0x1p-52 : 0x1p-23;
  Value square = mean_of(a * a, last_dims(a, shape.size()));
  Value rstd = rsqrt(eps ? square + like_scalar(*eps, a) : square + smallest);
  Value y = a * rstd;
  if (weight) y = y * accumulate(*weight);
  return Values{convert(y, result_type(0).dtype), convert(rstd, result_type(1).dtype)};
});

// dx = rstd (g - xhat mean(g xhat))
TPU_LOWER("_fused_rms_norm_backward",
          [](Value dy, Value x, Dims shape, Value rstd, OptValue weight, std::vector<bool> mask) {
            Value a = accumulate(x), g = accumulate(dy), r = accumulate(rstd);
            Value xhat = a * r;
            Values out(2);
            if (mask[0]) {
              Value scaled = weight ? g * accumulate(*weight) : g;
              out[0] = convert(r * (scaled - xhat * mean_of(scaled * xhat, last_dims(a, shape.size()))), x.dtype());
            }
            if (mask[1] && weight) out[1] = convert(sum(g * xhat, first_dims(a, shape.size())), weight->dtype());
            return out;
          },
          {.loose_meta = true});

// ---- Group normalization: statistics over the channels and places of a group --------------------

// [N, G, C/G, HW]: a view in which weights are [1, G, C/G, 1] and statistics [N, G, 1, 1].
struct Groups {
  Dims dims;
  Value of(Value x) const { return reshape(accumulate(x), dims); }
  Value statistic(Value v) const { return reshape(accumulate(v), {dims[0], dims[1], 1, 1}); }
  Value weight(Value v) const { return reshape(accumulate(v), {1, dims[1], dims[2], 1}); }
};

TPU_LOWER("native_group_norm",
          [](Value x, OptValue weight, OptValue bias, int64_t n, int64_t c, int64_t hw, int64_t group, Value eps) {
            const DType t = parameter_dtype(x, {weight, bias});
            const Groups groups{{n, group, c / group, hw}};
            Value a = groups.of(x);
            Moments m = moments(a, {2, 3});
            Value rstd = rsqrt(m.variance + like_scalar(eps, a));
            Value y = (a - m.mean) * rstd;
            if (weight) y = y * groups.weight(*weight);
            if (bias) y = y + groups.weight(*bias);
            return Values{convert(reshape(y, x.dims()), x.dtype()), convert(reshape(m.mean, {n, group}), t),
                          convert(reshape(rstd, {n, group}), t)};
          },
          {.loose_meta = true});

TPU_LOWER("native_group_norm_backward",
          [](Value dy, Value x, Value mean, Value rstd, OptValue weight, int64_t n, int64_t c, int64_t hw,
             int64_t group, std::vector<bool> mask) {
            const Groups groups{{n, group, c / group, hw}};
            Value a = groups.of(x), g = groups.of(dy), r = groups.statistic(rstd);
            Value xhat = (a - groups.statistic(mean)) * r;
            const DType t = weight ? weight->dtype() : x.dtype();
            Values out(3);
            if (mask[0]) {
              Value scaled = weight ? g * groups.weight(*weight) : g;
              out[0] = convert(reshape(input_gradient(scaled, xhat, r, {2, 3}), x.dims()), x.dtype());
            }
            if (mask[1]) out[1] = convert(reshape(sum(g * xhat, {0, 3}), {c}), t);
            if (mask[2]) out[2] = convert(reshape(sum(g, {0, 3}), {c}), t);
            return out;
          },
          {.loose_meta = true});

// ---- Weight normalization -------------------------------------------------------------------------

// w = v g / |v|, with the norm over all dimensions but one:  dg = sum(dw v) / |v|,  dv = g / |v| (dw - v dg / |v|)
TPU_LOWER("_weight_norm_interface_backward", [](Value dw, Value v, Value g, Value norms, int64_t dim) {
  Value d = accumulate(dw), a = accumulate(v), n = accumulate(norms);
  Dims over;
  for (int64_t i = 0; i < v.rank(); ++i)
    if (i != dim) over.push_back(i);
  Value dg = sum_of(d * a, over) / n;
  return Values{convert(accumulate(g) / n * (d - a * (dg / n)), v.dtype()), convert(dg, g.dtype())};
});

}  // namespace
}  // namespace tpu::lowering
