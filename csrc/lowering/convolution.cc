// SPDX-License-Identifier: Apache-2.0
#include "lowering/convolution.h"

#include "lowering/promote.h"

namespace tpu::lowering {
namespace {

// Makes the window's padding such that its results fill `out`.
Padding padding_for(const Dims& in, const Dims& low, const Dims& out, const Dims& stride, const Dims& window,
                    const Dims& window_dilation, const Dims& base_dilation) {
  Padding padding;
  for (size_t i = 0; i < in.size(); ++i) {
    const int64_t dilated = in[i] == 0 ? 0 : (in[i] - 1) * base_dilation[i] + 1;
    const int64_t reach = (out[i] - 1) * stride[i] + (window[i] - 1) * window_dilation[i] + 1;
    padding.emplace_back(low[i], reach - dilated - low[i]);
  }
  return padding;
}

// One convolution of real values: bf16 and f16 products add up in f32.
Value product(Value x, Value w, const ConvDims& dims, const ConvOptions& options) {
  const DType t = x.dtype();
  if (is_complex(t)) {
    const auto part = [&](Value a, Value b) { return convolution(a, b, dims, options, call().precision); };
    return complex(part(real(x), real(w)) - part(imag(x), imag(w)), part(real(x), imag(w)) + part(imag(x), real(w)));
  }
  if ((t == S64 || t == U64) && !call().target->int64_products) return convolution_by_sums(x, w, dims, options);
  return convolution(x, w, dims, options, call().precision, compute_dtype(t));
}

// [g i, o, ...] -> [g o, i, ...]: the kernel of the transposed convolution of each group.
Value swap_in_groups(Value w, int64_t groups) {
  const int64_t i = w.dim(0) / groups, o = w.dim(1);
  Dims split = w.dims(), joined = w.dims();
  split.erase(split.begin());
  split.insert(split.begin(), {groups, i});
  joined[0] = groups * o;
  joined[1] = i;
  return reshape(swap_dims(reshape(w, split), 1, 2), joined);
}

Value zeros(DType t, int64_t batch, int64_t features, const Dims& spatial) {
  Dims dims{batch, features};
  dims.insert(dims.end(), spatial.begin(), spatial.end());
  return full(graph(), {compute_dtype(t), dims}, 0);
}

}  // namespace

Value convolve(Value x, Value w, const ConvGeometry& g, const Dims& out) {
  if (x.numel() == 0 || w.numel() == 0) return zeros(x.dtype(), x.dim(0), w.dim(0), out);
  const Dims ones(out.size(), 1);
  ConvOptions options{.strides = g.stride, .rhs_dilation = g.dilation, .feature_groups = g.groups};
  options.padding = padding_for(spatial_dims(x), g.padding, out, g.stride, spatial_dims(w), g.dilation, ones);
  return product(x, w, conv_nchw(x.rank() - 2), options);
}

Value convolve_input_gradient(Value dy, Value w, const ConvGeometry& g, const Dims& in) {
  if (dy.numel() == 0 || w.numel() == 0) return zeros(dy.dtype(), dy.dim(0), w.dim(1) * g.groups, in);
  const Dims ones(in.size(), 1);
  ConvOptions options{.lhs_dilation = g.stride, .rhs_dilation = g.dilation, .feature_groups = g.groups};
  Dims low, spatial;
  for (int64_t d = 2; d < dy.rank(); ++d) spatial.push_back(d);
  for (size_t i = 0; i < in.size(); ++i) low.push_back(g.dilation[i] * (spatial_dims(w)[i] - 1) - g.padding[i]);
  options.padding = padding_for(spatial_dims(dy), low, in, ones, spatial_dims(w), g.dilation, g.stride);
  ConvDims dims = conv_nchw(dy.rank() - 2);
  if (call().target->flipped_kernels) return product(dy, swap_in_groups(flip(w, spatial), g.groups), dims, options);
  options.reversal.assign(in.size(), true);
  if (g.groups == 1) {
    std::swap(dims.kernel_input_feature, dims.kernel_output_feature);
  } else {
    w = swap_in_groups(w, g.groups);
  }
  return product(dy, w, dims, options);
}

Value convolve_weight_gradient(Value dy, Value x, const ConvGeometry& g, const Dims& kernel) {
  if (dy.numel() == 0 || x.numel() == 0) return zeros(x.dtype(), dy.dim(1), x.dim(1) / g.groups, kernel);
  const Dims ones(kernel.size(), 1);
  // Channels are the batch, the batch is what is summed over.
  ConvOptions options{.strides = g.dilation, .rhs_dilation = g.stride, .batch_groups = g.groups};
  options.padding = padding_for(spatial_dims(x), g.padding, kernel, g.dilation, spatial_dims(dy), g.stride, ones);
  ConvDims dims = conv_nchw(x.rank() - 2);
  std::swap(dims.input_batch, dims.input_feature);
  std::swap(dims.kernel_input_feature, dims.kernel_output_feature);
  std::swap(dims.output_batch, dims.output_feature);
  return product(x, dy, dims, options);
}

namespace {

// CPU PyTorch's checks of check_shape_forward, in its order.
void check_geometry(Value x, Value w, const std::optional<Value>& bias, const ConvGeometry& g,
                    const Dims& output_padding, bool transposed) {
  const int64_t k = w.rank();
  TPU_CHECK(x.dtype() == w.dtype(), "Input type (", short_name(x.dtype()), ") and weight type (", short_name(w.dtype()),
            ") should be the same");
  if (bias) {
    TPU_CHECK(bias->dtype() == x.dtype(), "Input type (", short_name(x.dtype()), ") and bias type (",
              short_name(bias->dtype()), ") should be the same");
  }
  const auto none = [](const Dims& dims, int64_t below) {
    for (int64_t d : dims)
      if (d < below) return false;
    return true;
  };
  TPU_CHECK(none(g.padding, 0), "negative padding is not supported");
  TPU_CHECK(none(output_padding, 0), "negative output_padding is not supported");
  TPU_CHECK(none(g.stride, 1), "non-positive stride is not supported");
  TPU_CHECK(none(g.dilation, 1), "dilation should be greater than zero");
  TPU_CHECK(g.groups > 0, "expected groups to be greater than 0, but got groups=", g.groups);
  TPU_CHECK(k == x.rank(), "Expected ", k, "-dimensional input for ", k, "-dimensional weight [", join(w.dims(), ", "),
            "], but got ", x.rank(), "-dimensional input of size [", join(x.dims(), ", "), "] instead");
  TPU_CHECK(w.dim(0) >= g.groups, "Given groups=", g.groups, ", expected weight to be at least ", g.groups,
            " at dimension 0, but got weight of size [", join(w.dims(), ", "), "] instead");
  TPU_CHECK(w.dim(0) % g.groups == 0, "Given groups=", g.groups, ", expected weight to be divisible by ", g.groups,
            " at dimension 0, but got weight of size [", join(w.dims(), ", "), "] instead");
  const int64_t channels = transposed ? w.dim(0) : w.dim(1) * g.groups;
  const char* what = transposed ? "Given transposed=1, weight of size [" : "";
  if (transposed) {
    TPU_CHECK(x.dim(1) == channels, what, join(w.dims(), ", "), "], expected input[", join(x.dims(), ", "),
              "] to have ", channels, " channels, but got ", x.dim(1), " channels instead");
    TPU_CHECK(!bias || (bias->rank() == 1 && bias->dim(0) == w.dim(1) * g.groups),
              "Given transposed=1, weight of size [", join(w.dims(), ", "),
              "], expected bias to be 1-dimensional with ", w.dim(1) * g.groups, " elements, but got bias of size [",
              bias ? join(bias->dims(), ", ") : "", "] instead");
    return;
  }
  TPU_CHECK(x.dim(1) == channels, "Given groups=", g.groups, ", weight of size [", join(w.dims(), ", "),
            "], expected input[", join(x.dims(), ", "), "] to have ", channels, " channels, but got ", x.dim(1),
            " channels instead");
  TPU_CHECK(!bias || (bias->rank() == 1 && bias->dim(0) == w.dim(0)), "Given weight of size [", join(w.dims(), ", "),
            "], expected bias to be 1-dimensional with ", w.dim(0), " elements, but got bias of size [",
            bias ? join(bias->dims(), ", ") : "", "] instead");
  Dims padded, reach;
  bool fits = true;
  for (int64_t i = 2; i < k; ++i) {
    padded.push_back(x.dim(i) + 2 * g.padding[at(i - 2)]);
    reach.push_back(g.dilation[at(i - 2)] * (w.dim(i) - 1) + 1);
    fits = fits && padded.back() >= reach.back();
  }
  TPU_CHECK(fits, "Calculated padded input size per channel: (", join(padded, " x "), "). Kernel size: (",
            join(reach, " x "), "). Kernel size can't be greater than actual input size");
}

// Transposed: the input gradient of the convolution that would lead back.
TPU_LOWER("convolution",
          [](Value x, Value w, std::optional<Value> bias, Dims stride, Dims padding, Dims dilation, bool transposed,
             Dims output_padding, int64_t groups) {
            const size_t n = at(w.rank()) - 2;
            const ConvGeometry g{expanded(stride, n), expanded(padding, n), expanded(dilation, n), groups};
            output_padding = expanded(output_padding, n);
            check_geometry(x, w, bias, g, output_padding, transposed);
            Dims out;
            for (size_t i = 0; i < n; ++i) {
              const int64_t in = spatial_dims(x)[i], reach = g.dilation[i] * (spatial_dims(w)[i] - 1) + 1;
              out.push_back(transposed ? (in - 1) * g.stride[i] - 2 * g.padding[i] + reach + output_padding[i]
                                       : (in + 2 * g.padding[i] - reach) / g.stride[i] + 1);
              TPU_CHECK(out.back() >= 0, "Given input size per channel: [", join(spatial_dims(x), ", "),
                        "]. Calculated output size per channel: [", join(out, ", "), "]. Output size is too small");
            }
            Value y = transposed ? convolve_input_gradient(x, w, g, out) : convolve(x, w, g, out);
            if (bias) y = y + reshape(accumulate(*bias), channel_dims(y));
            return convert(y, x.dtype());
          },
          {.products = true, .no_meta = true});

}  // namespace
}  // namespace tpu::lowering
