// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "lowering/promote.h"

// Connectionist temporal classification. The labels of a sample, with a blank around each, make a
// row of states s = 0 .. 2S; alpha_t(s) and beta_t(s) are the logarithms of the probability of all
// paths that reach state s at time t, and of all that go on from it. Lengths are run-time operands.
namespace tpu::lowering {
namespace {

const double kMinusInf = -std::numeric_limits<double>::infinity();

struct Problem {
  int64_t times, samples, symbols, states;
  Value log_probs;                  // [t, n, symbols]
  Value labels;                     // [n, states] S32, blanks included
  Value jump;                       // [n, states] PRED: state s may follow s - 2
  Value at_labels;                  // [t, n, states]: log_probs of each state's symbol
  Value input_lengths, last_state;  // [n] S32; last_state = 2 * target length
};

// sum of logarithms a of n, with -inf where there is no probability
Value log_sum(const Values& terms) {
  Value top = terms[0];
  for (Value v : terms) top = maximum(top, v);
  Value safe = where(eq(top, kMinusInf), 0, top);
  Value total = zeros_like(top);
  for (Value v : terms) total = total + exp(v - safe);
  return log(total) + safe;
}

Value lengths_of(const Values& values, int64_t samples, const char* name) {
  Value v = values.size() == 1 && values[0].rank() == 1 ? values[0] : Value();
  if (v.node() == nullptr) {
    Values parts;
    for (Value each : values) parts.push_back(reshape(each, {1}));
    v = parts.empty() ? full(graph(), {S64, {0}}, 0) : concatenate(parts, 0);
  }
  TPU_CHECK(v.dim(0) == samples, name, " must be of size batch_size");
  return convert(v, S32);
}

Problem make_problem(Value log_probs, Value targets, const Values& input_lengths, const Values& target_lengths,
                     int64_t blank) {
  TPU_CHECK(log_probs.rank() == 3, "Expected 3-dimensional tensor, but got ", log_probs.rank(),
            "-dimensional tensor for argument #1 'log_probs' (while checking arguments for ctc_loss)");
  TPU_CHECK(targets.rank() >= 1 && targets.rank() <= 2, "targets must be 1- or 2-dimensional");
  Problem p;
  p.log_probs = log_probs;
  p.times = log_probs.dim(0), p.samples = log_probs.dim(1), p.symbols = log_probs.dim(2);
  TPU_CHECK(blank >= 0 && blank < p.symbols, "blank must be in label range");
  p.input_lengths = lengths_of(input_lengths, p.samples, "input_lengths");
  Value target_length = lengths_of(target_lengths, p.samples, "target_lengths");
  check_range(p.input_lengths, 0, p.times + 1, ErrorKind::Runtime, [t = p.times](int64_t v) {
    return v < 0 ? text("Expected input_lengths to have value at least 0, but got value ", v)
                 : text("Expected input_lengths to have value at most ", t, ", but got value ", v);
  });
  // A path of t steps spells t labels at most, so that concatenated targets need no more states.
  const bool packed = targets.rank() == 1;
  const int64_t labels = packed ? std::min(targets.dim(0), p.times) : targets.dim(1);
  if (!packed) {
    TPU_CHECK(targets.dim(0) == p.samples, "Expected tensor to have size ", p.samples, " at dimension 0, but got size ",
              targets.dim(0), " for argument #2 'targets' (while checking arguments for ctc_loss)");
    check_range(target_length, 0, labels + 1, ErrorKind::Runtime, [labels](int64_t v) {
      return text("Expected tensor to have size at least ", v, " at dimension 1, but got size ", labels,
                  " for argument #2 'targets' (while checking arguments for ctc_loss)");
    });
  }
  p.states = 2 * labels + 1;
  p.last_state = target_length * 2;
  Value blanks = full(graph(), {S32, {p.samples, labels + 1}}, blank);
  p.labels = slice_dim(blanks, 1, 0, 1);
  if (labels > 0) {
    Value rows = convert(targets, S32);
    if (packed) {
      Value first = cumulative(target_length, 0, Scan::Sum) - target_length;
      Value at = expand_dims(first, 1) + iota(graph(), {S32, {p.samples, labels}}, 1);
      rows = take(rows, clip(at, 0, targets.dim(0) - 1), 0);
    }
    Value pairs = reshape(stack({slice_dim(blanks, 1, 0, labels), rows}, 2), {p.samples, 2 * labels});
    p.labels = clip(concatenate({pairs, p.labels}, 1), 0, p.symbols - 1);
  }
  Value two_back = p.states > 2 ? pad_dim(slice_dim(p.labels, 1, 0, p.states - 2), 1, 2, 0, -1) : like(p.labels, -1);
  p.jump = ne(p.labels, two_back) & ge(iota_like(p.labels, 1, S32), 2);
  p.at_labels = take_along(log_probs, broadcast_to(expand_dims(p.labels, 0), {p.times, p.samples, p.states}), 2);
  return p;
}

// Rows moved along the states: by n > 0 to later ones, by n < 0 to earlier ones.
Value shifted(Value row, int64_t n) {
  const int64_t size = row.dim(1), keep_size = std::max<int64_t>(size - std::abs(n), 0);
  if (keep_size == 0) return like(row, kMinusInf);
  return n > 0 ? pad_dim(slice_dim(row, 1, 0, keep_size), 1, n, 0, kMinusInf)
               : pad_dim(slice_dim(row, 1, -n, size), 1, 0, -n, kMinusInf);
}

Value row_at(Value x, Value t) {
  Value zero = scalar(graph(), S32, 0);
  return reshape(dynamic_slice(x, {t, zero, zero}, {1, x.dim(1), x.dim(2)}), {x.dim(1), x.dim(2)});
}
Value with_row(Value x, Value row, Value t) {
  Value zero = scalar(graph(), S32, 0);
  return dynamic_update_slice(x, expand_dims(row, 0), {t, zero, zero});
}

// alpha_0 = first two states; alpha_t(s) = lp_t(s) + log_sum(alpha_{t-1}(s), (s-1), and (s-2) where it may jump)
Value alphas(const Problem& p) {
  const Type type{p.log_probs.dtype(), {p.times, p.samples, p.states}};
  Value first = where(le(iota_like(p.labels, 1, S32), 1), row_at(p.at_labels, scalar(graph(), S32, 0)), kMinusInf);
  Value start = with_row(full(graph(), type, kMinusInf), first, scalar(graph(), S32, 0));
  const Values out = while_(
      {scalar(graph(), S32, 1), first, start}, [&](const Values& s) { return lt(s[0], p.times); },
      [&](const Values& s) {
        Value a = s[1];
        Value row = log_sum({a, shifted(a, 1), where(p.jump, shifted(a, 2), kMinusInf)}) + row_at(p.at_labels, s[0]);
        return Values{s[0] + 1, row, with_row(s[2], row, s[0])};
      });
  return out[2];
}

// PRED [n, states]: where a path may end. A target too long for its row ends nowhere.
Value ends(const Problem& p) {
  Value s = iota_like(p.labels, 1, S32), last = expand_dims(p.last_state, 1);
  return (eq(s, last) | eq(s, last - 1)) & lt(last, p.states);
}

// beta_t(s) without the symbol of time t itself, so that alpha + beta - total is a posterior.
Value betas(const Problem& p) {
  const Type type{p.log_probs.dtype(), {p.times, p.samples, p.states}};
  Value last = where(ends(p), full(graph(), {type.dtype, p.labels.dims()}, 0), kMinusInf);
  Value none = like(last, kMinusInf);
  const Values out = while_(
      {scalar(graph(), S32, p.times - 1), none, full(graph(), type, kMinusInf)},
      [&](const Values& s) { return ge(s[0], 0); },
      [&](const Values& s) {
        Value next = s[1] + row_at(p.at_labels, minimum(s[0] + 1, p.times - 1));
        Value jumps = where(p.jump, next, kMinusInf);
        Value row = log_sum({next, shifted(next, -1), shifted(jumps, -2)});
        Value left = expand_dims(p.input_lengths, 1) - 1;  // the last time of each sample
        row = where(eq(s[0], left), last, where(lt(s[0], left), row, none));
        return Values{s[0] - 1, row, with_row(s[2], row, s[0])};
      });
  return out[2];
}

std::tuple<Value, Value> forward(Value log_probs, Value targets, Values input_lengths, Values target_lengths,
                                 int64_t blank, bool) {
  const Problem p = make_problem(log_probs, targets, input_lengths, target_lengths, blank);
  Value alpha = p.times == 0 ? full(graph(), {log_probs.dtype(), {0, p.samples, p.states}}, kMinusInf) : alphas(p);
  Value empty = where(eq(p.last_state, 0), full(graph(), {log_probs.dtype(), {p.samples}}, 0), -kMinusInf);
  if (p.times == 0) return {empty, transpose(alpha, {1, 0, 2})};
  // alpha of each sample's last time
  Value at = broadcast_to(reshape(maximum(p.input_lengths - 1, 0), {1, p.samples, 1}), {1, p.samples, p.states});
  Value final = squeeze(take_along(alpha, at, 0), 0);
  final = where(ends(p), final, kMinusInf);
  Value top = max(final, 1, keep);
  Value safe = where(eq(top, kMinusInf), 0, top);
  Value loss = -(log(sum(exp(final - safe), 1)) + squeeze(safe, 1));
  return {where(eq(p.input_lengths, 0), empty, loss), transpose(alpha, {1, 0, 2})};
}

// d loss / d log_probs, for log_probs that come from log_softmax: p - posterior of the symbol.
Value backward(Value grad, Value log_probs, Value targets, Values input_lengths, Values target_lengths, Value loss,
               Value log_alpha, int64_t blank, bool zero_infinity) {
  const Problem p = make_problem(log_probs, targets, input_lengths, target_lengths, blank);
  if (log_probs.numel() == 0) return zeros_like(log_probs);
  Value posterior = exp(transpose(log_alpha, {1, 0, 2}) + betas(p) + reshape(loss, {1, p.samples, 1}));  // [t, n, s]
  Value hot = convert(eq(iota(graph(), {S32, {p.samples, p.states, p.symbols}}, 2), expand_dims(p.labels, 2)),
                      log_probs.dtype());
  // sum over states: [t, n, s] x [n, s, c] -> [n, t, c]
  Value symbols = dot_general(posterior, hot, {{1}, {0}, {2}, {1}}, Precision::HIGHEST);
  Value g = (exp(log_probs) - transpose(symbols, {1, 0, 2})) * reshape(grad, {1, p.samples, 1});
  Value used = lt(iota(graph(), {S32, log_probs.dims()}, 0), reshape(p.input_lengths, {1, p.samples, 1}));
  if (zero_infinity) used = used & reshape(ne(loss, -kMinusInf), {1, p.samples, 1});
  return where(used, g, 0);
}

const Options kOptions{.host_tensors = true, .no_meta = true};

TPU_LOWER("_ctc_loss", &forward, kOptions);
TPU_LOWER(
    "_ctc_loss.Tensor",
    [](Value log_probs, Value targets, Value input_lengths, Value target_lengths, int64_t blank, bool zero_infinity) {
      return forward(log_probs, targets, {input_lengths}, {target_lengths}, blank, zero_infinity);
    },
    kOptions);
TPU_LOWER("_ctc_loss_backward", &backward, kOptions);
TPU_LOWER(
    "_ctc_loss_backward.Tensor",
    [](Value grad, Value log_probs, Value targets, Value input_lengths, Value target_lengths, Value loss,
       Value log_alpha, int64_t blank, bool zero_infinity) {
      return backward(grad, log_probs, targets, {input_lengths}, {target_lengths}, loss, log_alpha, blank,
                      zero_infinity);
    },
    kOptions);

}  // namespace
}  // namespace tpu::lowering
