// SPDX-License-Identifier: Apache-2.0
#include "lowering/promote.h"

// The cells that nn.LSTM and nn.GRU run at each step on this device.
namespace tpu::lowering {
namespace {

using Maybe = std::optional<Value>;

// Gates of one side, with its bias, in the compute dtype.
Value with_bias(Value gates, const Maybe& bias) {
  Value g = accumulate(gates);
  return bias ? g + accumulate(*bias) : g;
}

Values chunks(Value x, int64_t n) {
  Values out;
  const int64_t size = x.dim(1) / n;
  for (int64_t i = 0; i < n; ++i) out.push_back(slice_dim(x, 1, i * size, (i + 1) * size));
  return out;
}

// i, f, g, o = gates;  c' = s(f) c + s(i) tanh(g);  h' = s(o) tanh(c').  The workspace keeps the activated gates.
TPU_LOWER("_thnn_fused_lstm_cell",
          [](Value input_gates, Value hidden_gates, Value cx, Maybe input_bias, Maybe hidden_bias) {
            const DType t = cx.dtype();
            const Values gates = chunks(with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias), 4);
            Value i = logistic(gates[0]), f = logistic(gates[1]), g = tanh(gates[2]), o = logistic(gates[3]);
            Value cy = f * accumulate(cx) + i * g;
            return std::tuple(convert(o * tanh(cy), t), convert(cy, t), convert(concatenate({i, f, g, o}, 1), t));
          },
          {.no_meta = true});  // PyTorch's meta kernel needs biases

TPU_LOWER("_thnn_fused_lstm_cell_backward_impl",
          [](Maybe grad_hy, Maybe grad_cy, Value cx, Value cy, Value workspace, bool has_bias) {
            const DType t = cx.dtype();
            const Values w = chunks(accumulate(workspace), 4);
            Value i = w[0], f = w[1], g = w[2], o = w[3];
            Value tanh_c = tanh(accumulate(cy));
            Value dh = grad_hy ? accumulate(*grad_hy) : zeros_like(tanh_c);
            Value dc = dh * o * (1 - tanh_c * tanh_c);
            if (grad_cy) dc = dc + accumulate(*grad_cy);
            Value gates = concatenate({dc * g * (i * (1 - i)), dc * accumulate(cx) * (f * (1 - f)),
                                       dc * i * (1 - g * g), dh * tanh_c * (o * (1 - o))},
                                      1);
            return std::tuple(convert(gates, t), convert(dc * f, t), has_bias ? convert(sum(gates, 0), t) : Value());
          },
          {.no_meta = true});

// r, z = s(gates);  n = tanh(in + r hn);  h' = n + z (h - n).  The workspace keeps r, z, n, h, hn.
TPU_LOWER("_thnn_fused_gru_cell",
          [](Value input_gates, Value hidden_gates, Value hx, Maybe input_bias, Maybe hidden_bias) {
            const DType t = hx.dtype();
            const Values in = chunks(with_bias(input_gates, input_bias), 3),
                         hidden = chunks(with_bias(hidden_gates, hidden_bias), 3);
            Value r = logistic(in[0] + hidden[0]), z = logistic(in[1] + hidden[1]), h = accumulate(hx);
            Value n = tanh(in[2] + r * hidden[2]);
            return std::tuple(convert(n + z * (h - n), t), convert(concatenate({r, z, n, h, hidden[2]}, 1), t));
          },
          {.no_meta = true});

TPU_LOWER("_thnn_fused_gru_cell_backward",
          [](Value grad_hy, Value workspace, bool has_bias) {
            const DType t = grad_hy.dtype();
            const Values w = chunks(accumulate(workspace), 5);
            Value r = w[0], z = w[1], n = w[2], h = w[3], hn = w[4], dh = accumulate(grad_hy);
            Value dz = dh * (h - n) * (1 - z) * z;
            Value dn = dh * (1 - z) * (1 - n * n);
            Value dr = dn * hn * (1 - r) * r;
            Value input_gates = concatenate({dr, dz, dn}, 1), hidden_gates = concatenate({dr, dz, dn * r}, 1);
            const auto bias = [&](Value gates) { return has_bias ? convert(sum(gates, 0), t) : Value(); };
            return std::tuple(convert(input_gates, t), convert(hidden_gates, t), convert(dh * z, t), bias(input_gates),
                              bias(hidden_gates));
          },
          {.no_meta = true});

}  // namespace
}  // namespace tpu::lowering
