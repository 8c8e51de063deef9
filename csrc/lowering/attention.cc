// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
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
  bool is_block = false;  // q is a block of the query's rows,
  int64_t first_row = 0;  // from this one on

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
      Value row = iota_like(s, -2, S32) + first_row, column = iota_like(s, -1, S32);
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

// Query rows in blocks, each with the keys that causality lets it see: a product and a softmax of
// half the size. Empty where that doesn't pay.
std::vector<Attention> causal_blocks(const Attention& a) {
  constexpr int64_t kBlocks = 8, kSmallest = 128;
  const int64_t rows = a.length(), keys = a.k.dim(a.k.rank() - 2);
  const int64_t step = std::max(kSmallest, (rows + kBlocks - 1) / kBlocks);
  std::vector<Attention> blocks;
  if (call().target->any_size || !a.is_causal || a.is_block || a.bias || a.dropout_p > 0 || rows < 2 * step)
    return blocks;
  for (int64_t first = 0; first < rows; first += step) {
    const int64_t last = std::min(rows, first + step), seen = std::min(keys, last);
    Attention block = a;
    block.q = slice_dim(a.q, -2, first, last);
    block.k = slice_dim(a.k, -2, 0, seen);
    block.v = slice_dim(a.v, -2, 0, seen);
    block.is_block = true;
    block.first_row = first;
    blocks.push_back(block);
  }
  return blocks;
}

// o [..., H, L, F]; lse = log sum_j e^s_j
std::pair<Value, Value> forward(const Attention& a) {
  if (const auto blocks = causal_blocks(a); !blocks.empty()) {
    Values outputs, sums;
    for (const Attention& block : blocks) {
      const auto [o, lse] = forward(block);
      outputs.push_back(o);
      sums.push_back(lse);
    }
    return {concat(outputs, -2), concat(sums, -1)};
  }
  Value s = a.scores();
  Value highest = finite(max(s, -1, keep));
  Value e = exp(s - highest);
  Value total = sum(e, -1, keep);
  Value p = e / where(eq(total, 0), 1, total);
  if (a.dropout_p > 0) p = p * a.keep_factor(p);
  Value o = a.split(Attention::product_nn(a.grouped(convert(p, a.v.dtype())), a.v));
  return {convert(o, a.q.dtype()), squeeze(highest + log(total), -1)};
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

// With m the dropout's factor and D_i = sum_f do_if o_if = sum_j dp_ij p_ij:
//   dv = (p m)^T do      dp = m (do v^T)      ds = p (dp - D)      dq = scale ds k      dk = scale ds^T q
struct Gradients {
  Value q, k, v, s;
};
Gradients backward(const Attention& a, Value grad, Value o, Value lse) {
  if (const auto blocks = causal_blocks(a); !blocks.empty()) {
    Values dq;
    Gradients total;
    const int64_t keys = a.k.dim(a.k.rank() - 2);
    for (const Attention& block : blocks) {
      const auto rows = [&](Value v, int64_t dim) {
        return slice_dim(v, dim, block.first_row, block.first_row + block.length());
      };
      const Gradients part = backward(block, rows(grad, -2), rows(o, -2), rows(lse, -1));
      dq.push_back(part.q);
      const auto add_keys = [&](Value sum, Value more) {
        more = pad_dim(more, -2, 0, keys - more.dim(more.rank() - 2));
        return sum ? sum + more : more;
      };
      total.k = add_keys(total.k, part.k);
      total.v = add_keys(total.v, part.v);
    }
    total.q = concat(dq, -2);
    return total;
  }
  const DType t = a.q.dtype();
  Value p = exp(a.scores() - finite(expand_dims(lse, -1)));
  Value dp = a.split(Attention::product_nt(a.grouped(grad), a.v));
  Value dropped = p;
  if (a.dropout_p > 0) {
    Value m = a.keep_factor(p);
    dropped = p * m;
    dp = dp * m;
  }
  Value dv = Attention::product_tn(a.grouped(convert(dropped, t)), a.grouped(grad));
  Value ds = p * (dp - sum(accumulate(grad) * accumulate(o), -1, keep));
  Value scaled = a.grouped(convert(ds * a.scale, t));
  return {a.split(Attention::product_nn(scaled, a.k)), Attention::product_tn(scaled, a.grouped(a.q)), dv, ds};
}

Value laid_out(Value o, bool heads_inside) { return heads_inside ? swap_dims(o, -3, -2) : o; }

}  // namespace

// heads_inside: the output comes as [..., L, H, F].
TPU_LOWER("tpu::attention",
          [](Value q, Value k, Value v, std::optional<Value> bias, bool is_causal, double scale, bool heads_inside) {
            const auto [o, lse] = forward({q, k, v, bias, is_causal, scale});
            return std::tuple(laid_out(o, heads_inside), lse);
          },
          {.products = true, .no_meta = true});

TPU_LOWER("tpu::attention_dropout",
          [](Value q, Value k, Value v, std::optional<Value> bias, bool is_causal, double scale, bool heads_inside,
             double dropout_p, Random random) {
            const auto [o, lse] = forward({q, k, v, bias, is_causal, scale, dropout_p, random});
            return std::tuple(laid_out(o, heads_inside), lse, random.seed, random.offset);
          },
          {.products = true, .no_meta = true});

// Each gradient comes in the layout of its input, as heads_inside says.
TPU_LOWER("tpu::attention_backward",
          [](Value grad, Value q, Value k, Value v, std::optional<Value> bias, Value o, Value lse,
             std::optional<Value> seed, std::optional<Value> offset, bool is_causal, double scale, double dropout_p,
             bool bias_grad, std::vector<bool> heads_inside) {
            const Attention a{q, k, v, bias, is_causal, scale, dropout_p, seed ? Random{*seed, *offset} : Random{}};
            const Gradients g = backward(a, grad, o, lse);
            const DType t = q.dtype();
            Value dbias = bias_grad ? convert(sum_to(g.s, bias->dims()), bias->dtype()) : Value();
            return std::tuple(laid_out(convert(g.q, t), heads_inside[0]), laid_out(convert(g.k, t), heads_inside[1]),
                              laid_out(convert(g.v, t), heads_inside[2]), dbias);
          },
          {.products = true, .no_meta = true});

}  // namespace tpu::lowering
