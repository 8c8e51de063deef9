// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "lowering/matmul.h"
#include "lowering/promote.h"
#include "lowering/random.h"

// Scaled dot product attention; csrc/aten/attention.cc defines these operators and calls them.
//
//   s = scale q k^T + bias      p = softmax(s)      o = dropout(p) v
//
// q [..., H, L, E], k [..., G, S, E], v [..., G, S, F]: H/G query heads share a key head. A row that
// is -inf everywhere attends to nothing: its p and o are 0.
namespace tpu::lowering {
namespace {

struct Attention {
  Value q, k, v;
  std::optional<Value> bias;
  bool is_causal;
  double scale;
  double dropout_p = 0;
  Random random = {};

  Dims dims(int64_t heads, int64_t rows, int64_t columns) const {
    Dims out(q.dims().begin(), q.dims().end() - 3);
    out.insert(out.end(), {heads, rows, columns});
    return out;
  }
  int64_t heads() const { return q.dim(q.rank() - 3); }
  int64_t shared_heads() const { return k.dim(k.rank() - 3); }
  int64_t length() const { return q.dim(q.rank() - 2); }

  // [..., H, L, X] <-> [..., G, H/G L, X]: the query heads of a group are rows of one product.
  Value grouped(Value x) const {
    return reshape(x, dims(shared_heads(), heads() / shared_heads() * length(), x.dim(x.rank() - 1)));
  }
  Value split(Value x) const { return reshape(x, dims(heads(), length(), x.dim(x.rank() - 1))); }

  // [..., H, L, S] in f32
  Value scores() const {
    Value s = split(product_nt(grouped(q), k)) * scale;
    if (bias) s = s + convert(*bias, s.dtype());
    if (is_causal) {
      Value row = iota_like(s, -2, S32), column = iota_like(s, -1, S32);
      s = where(ge(row, column), s, -std::numeric_limits<double>::infinity());
    }
    return s;
  }

  // What p is multiplied by: 0 with probability dropout_p, else 1 / (1 - dropout_p).
  Value keep_factor(Value p) const {
    Value uniform = convert(Stream(random).uniform(F32, p.dims()), p.dtype());
    const double factor = dropout_p < 1 ? 1 / (1 - dropout_p) : 0;
    return convert(ge(uniform, dropout_p), p.dtype()) * factor;
  }

  // a b^T, a b and a^T b of the last two dimensions
  static Value contract(Value a, Value b, int64_t from_end_a, int64_t from_end_b) {
    const int64_t r = a.rank();
    Dims batch = all_dims(a);
    batch.resize(static_cast<size_t>(r) - 2);
    return product(a, b, {batch, batch, {r - from_end_a}, {r - from_end_b}});
  }
  static Value product_nt(Value a, Value b) { return contract(a, b, 1, 1); }
  static Value product_nn(Value a, Value b) { return contract(a, b, 1, 2); }
  static Value product_tn(Value a, Value b) { return contract(a, b, 2, 2); }
};

// -inf, the mark of rows that attend to nothing, replaced by 0
Value finite(Value x) { return where(is_neg_inf(x), 0, x); }

// o with the heads inside, [..., L, H, F]; lse = log sum_j e^s_j
std::pair<Value, Value> forward(const Attention& a) {
  Value s = a.scores();
  Value highest = finite(max(s, -1, keep));
  Value e = exp(s - highest);
  Value total = sum(e, -1, keep);
  Value p = e / where(eq(total, 0), 1, total);
  if (a.dropout_p > 0) p = p * a.keep_factor(p);
  Value o = a.split(Attention::product_nn(a.grouped(convert(p, a.v.dtype())), a.v));
  return {swap_dims(convert(o, a.q.dtype()), -3, -2), squeeze(highest + log(total), -1)};
}

// Sums x over what `shape` had been broadcast along.
Value sum_to(Value x, const Dims& shape) {
  Dims dims;
  const int64_t extra = x.rank() - static_cast<int64_t>(shape.size());
  for (int64_t d = 0; d < x.rank(); ++d) {
    if (d < extra || (shape[static_cast<size_t>(d - extra)] == 1 && x.dim(d) != 1)) dims.push_back(d);
  }
  return reshape(sum(x, dims), shape);
}

}  // namespace

TPU_LOWER("tpu::attention", [](Value q, Value k, Value v, std::optional<Value> bias, bool is_causal, double scale) {
  const auto [o, lse] = forward({q, k, v, bias, is_causal, scale});
  return std::tuple(o, lse);
}, {.products = true, .no_meta = true});

TPU_LOWER("tpu::attention_dropout", [](Value q, Value k, Value v, std::optional<Value> bias, bool is_causal, double scale,
                                       double dropout_p, Random random) {
  const auto [o, lse] = forward({q, k, v, bias, is_causal, scale, dropout_p, random});
  return std::tuple(o, lse, random.seed, random.offset);
}, {.products = true, .no_meta = true});

// With m the dropout's factor and D_i = sum_f do_if o_if = sum_j dp_ij p_ij:
//   dv = (p m)^T do      dp = m (do v^T)      ds = p (dp - D)      dq = scale ds k      dk = scale ds^T q
TPU_LOWER("tpu::attention_backward", [](Value grad, Value q, Value k, Value v, std::optional<Value> bias, Value o, Value lse,
                                        std::optional<Value> seed, std::optional<Value> offset, bool is_causal, double scale,
                                        double dropout_p, bool bias_grad) {
  Attention a{q, k, v, bias, is_causal, scale, dropout_p, seed ? Random{*seed, *offset} : Random{}};
  const DType t = q.dtype();
  Value p = exp(a.scores() - finite(expand_dims(lse, -1)));
  Value dp = a.split(Attention::product_nt(a.grouped(grad), v));
  Value dropped = p;
  if (dropout_p > 0) {
    Value m = a.keep_factor(p);
    dropped = p * m;
    dp = dp * m;
  }
  Value dv = Attention::product_tn(a.grouped(convert(dropped, t)), a.grouped(grad));
  Value ds = p * (dp - sum(accumulate(grad) * accumulate(o), -1, keep));
  Value scaled = a.grouped(convert(ds * scale, t));
  Value dq = a.split(Attention::product_nn(scaled, k));
  Value dk = Attention::product_tn(scaled, a.grouped(q));
  Value dbias = bias_grad ? convert(sum_to(ds, bias->dims()), bias->dtype()) : Value();
  return std::tuple(convert(dq, t), convert(dk, t), convert(dv, t), dbias);
}, {.products = true, .no_meta = true});

}  // namespace tpu::lowering
