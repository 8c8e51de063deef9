// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "hlo/build.h"

namespace tpu::hlo {
using namespace build;
namespace {

bool contains(const Dims& dims, int64_t d) { return std::find(dims.begin(), dims.end(), d) != dims.end(); }

void require_product(std::string_view op, Value x, Value y, DType result) {
  require_same_dtype(op, x, y);
  TPU_CHECK(result != DType::PRED && x.dtype() != DType::PRED, op, ": needs numbers, got ", to_string(x.type()));
  TPU_CHECK(is_complex(result) == is_complex(x.dtype()), op, ": ", to_string(x.type()), " cannot give ",
            short_name(result));
}

void require_square(std::string_view op, Value a) {
  require(op, a, kFloat | kComplex);
  TPU_CHECK(a.rank() >= 2 && a.dim(a.rank() - 1) == a.dim(a.rank() - 2), op, ": needs square matrices, got ",
            to_string(a.type()));
}

// "[b, f, 0, 1]"
std::string conv_part(const char* one, int64_t one_at, const char* other, int64_t other_at, const Dims& spatial) {
  std::vector<std::string> names(spatial.size() + 2);
  names[static_cast<size_t>(one_at)] = one;
  names[static_cast<size_t>(other_at)] = other;
  for (size_t i = 0; i < spatial.size(); ++i) names[static_cast<size_t>(spatial[i])] = std::to_string(i);
  std::string out = "[";
  for (size_t i = 0; i < names.size(); ++i) out += (i == 0 ? "" : ", ") + names[i];
  return out + ']';
}

}  // namespace

Value cholesky(Value a, bool lower) {
  require_square("cholesky", a);
  return emit("cholesky", {a}, a.type(), "lower = " + flag(lower));
}

ConvDims conv_nchw(int64_t spatial_rank) {
  Dims spatial;
  for (int64_t i = 0; i < spatial_rank; ++i) spatial.push_back(i + 2);
  return {.input_spatial = spatial, .kernel_spatial = spatial, .output_spatial = spatial};
}

Value convolution(Value x, Value kernel, const ConvDims& dims, const ConvOptions& options, Precision precision) {
  return convolution(x, kernel, dims, options, precision, x.dtype());
}

Value convolution(Value x, Value kernel, const ConvDims& d, const ConvOptions& o, Precision precision, DType result) {
  constexpr std::string_view op = "convolution";
  require_product(op, x, kernel, result);
  TPU_CHECK(x.rank() == kernel.rank() && x.rank() >= 2, op, ": ranks of ", to_string(x.type()), " and ",
            to_string(kernel.type()));
  const int64_t n = x.rank() - 2;
  const auto check_part = [&](std::string_view part, int64_t a, int64_t b, const Dims& spatial) {
    require_size(op, part, spatial.size(), n);
    Dims all = spatial;
    all.push_back(a);
    all.push_back(b);
    require_dims(op, part, all, n + 2, false);
  };
  check_part("the input's dimension numbers", d.input_batch, d.input_feature, d.input_spatial);
  check_part("the kernel's dimension numbers", d.kernel_output_feature, d.kernel_input_feature, d.kernel_spatial);
  check_part("the output's dimension numbers", d.output_batch, d.output_feature, d.output_spatial);
  const Dims strides = ones_if_empty(o.strides, n), lhs_dilation = ones_if_empty(o.lhs_dilation, n),
             rhs_dilation = ones_if_empty(o.rhs_dilation, n);
  const Padding padding = zeros_if_empty(o.padding, n);
  const std::vector<bool> reversal = o.reversal.empty() ? std::vector<bool>(static_cast<size_t>(n)) : o.reversal;
  require_size(op, "strides", strides.size(), n);
  require_size(op, "lhs_dilation", lhs_dilation.size(), n);
  require_size(op, "rhs_dilation", rhs_dilation.size(), n);
  require_size(op, "padding", padding.size(), n);
  require_size(op, "reversal", reversal.size(), n);
  const int64_t batch = x.dim(d.input_batch), in = x.dim(d.input_feature), out = kernel.dim(d.kernel_output_feature);
  TPU_CHECK(o.feature_groups > 0 && o.batch_groups > 0 && (o.feature_groups == 1 || o.batch_groups == 1), op,
            ": feature groups ", o.feature_groups, ", batch groups ", o.batch_groups);
  TPU_CHECK(kernel.dim(d.kernel_input_feature) * o.feature_groups == in, op, ": input ", to_string(x.type()), " has ",
            in, " features, kernel ", to_string(kernel.type()), " takes ", kernel.dim(d.kernel_input_feature), " x ",
            o.feature_groups, " groups");
  TPU_CHECK(out % o.feature_groups == 0 && out % o.batch_groups == 0 && batch % o.batch_groups == 0, op,
            ": feature groups ", o.feature_groups, " and batch groups ", o.batch_groups, " do not divide ",
            to_string(x.type()), " and ", to_string(kernel.type()));
  Dims sizes(static_cast<size_t>(n) + 2);
  sizes[static_cast<size_t>(d.output_batch)] = batch / o.batch_groups;
  sizes[static_cast<size_t>(d.output_feature)] = out;
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    TPU_CHECK(strides[i] > 0 && lhs_dilation[i] > 0 && rhs_dilation[i] > 0, op, ": strides ", list(strides),
              " and dilations ", list(lhs_dilation), ", ", list(rhs_dilation), " must be positive");
    sizes[static_cast<size_t>(d.output_spatial[i])] =
        window_output(x.dim(d.input_spatial[i]), lhs_dilation[i], padding[i], kernel.dim(d.kernel_spatial[i]),
                      rhs_dilation[i], strides[i]);
  }
  Value y = emit(op, {x, kernel}, {result, std::move(sizes)},
                 "window_strides = " + array(strides) + ", padding = " + pairs(padding) +
                     ", lhs_dilation = " + array(lhs_dilation) + ", rhs_dilation = " + array(rhs_dilation) +
                     ", window_reversal = " + array(reversal) + ", dimension_numbers = #stablehlo.conv<" +
                     conv_part("b", d.input_batch, "f", d.input_feature, d.input_spatial) + "x" +
                     conv_part("o", d.kernel_output_feature, "i", d.kernel_input_feature, d.kernel_spatial) + "->" +
                     conv_part("b", d.output_batch, "f", d.output_feature, d.output_spatial) + ">" +
                     text(", feature_group_count = ", o.feature_groups, " : i64, batch_group_count = ", o.batch_groups,
                          " : i64, ") +
                     precision_config(precision));
  // Zeros that a dilation of the input puts in are no work.
  y.node()->flops = 2.0 * static_cast<double>(y.numel()) * static_cast<double>(kernel.numel()) /
                    static_cast<double>(std::max<int64_t>(out, 1));
  for (int64_t hole : lhs_dilation) y.node()->flops /= static_cast<double>(hole);
  return y;
}

Value dot_general(Value x, Value y, const DotDims& dims, Precision precision) {
  return dot_general(x, y, dims, precision, x.dtype());
}

Value dot_general(Value x, Value y, const DotDims& d, Precision precision, DType result) {
  constexpr std::string_view op = "dot_general";
  require_product(op, x, y, result);
  require_size(op, "rhs_batching", d.rhs_batching.size(), static_cast<int64_t>(d.lhs_batching.size()));
  require_size(op, "rhs_contracting", d.rhs_contracting.size(), static_cast<int64_t>(d.lhs_contracting.size()));
  Dims lhs = d.lhs_batching, rhs = d.rhs_batching;
  lhs.insert(lhs.end(), d.lhs_contracting.begin(), d.lhs_contracting.end());
  rhs.insert(rhs.end(), d.rhs_contracting.begin(), d.rhs_contracting.end());
  require_dims(op, "lhs dimensions", lhs, x.rank(), false);
  require_dims(op, "rhs dimensions", rhs, y.rank(), false);
  Dims sizes;
  double summed = 1;
  for (int64_t i : d.lhs_contracting) summed *= static_cast<double>(x.dim(i));
  for (size_t i = 0; i < lhs.size(); ++i) {
    TPU_CHECK(x.dim(lhs[i]) == y.dim(rhs[i]), op, ": dimension ", lhs[i], " of ", to_string(x.type()),
              " does not fit dimension ", rhs[i], " of ", to_string(y.type()));
    if (i < d.lhs_batching.size()) sizes.push_back(x.dim(lhs[i]));
  }
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (!contains(lhs, i)) sizes.push_back(x.dim(i));
  }
  for (int64_t i = 0; i < y.rank(); ++i) {
    if (!contains(rhs, i)) sizes.push_back(y.dim(i));
  }
  Value out = emit(op, {x, y}, {result, std::move(sizes)},
                   "dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = " + list(d.lhs_batching) +
                       ", rhs_batching_dimensions = " + list(d.rhs_batching) + ", lhs_contracting_dimensions = " +
                       list(d.lhs_contracting) + ", rhs_contracting_dimensions = " + list(d.rhs_contracting) + ">, " +
                       precision_config(precision));
  out.node()->flops = 2 * summed * static_cast<double>(out.numel());
  return out;
}

Value fft(Value x, FftType type, const Dims& length) {
  static constexpr const char* kNames[] = {"FFT", "IFFT", "RFFT", "IRFFT"};
  const std::string_view name = kNames[static_cast<int>(type)];
  const auto n = static_cast<int64_t>(length.size());
  TPU_CHECK(n >= 1 && n <= 3 && x.rank() >= n, "fft: length ", list(length), " for ", to_string(x.type()));
  Type result = x.type();
  Dims expected = x.dims();
  const auto last = static_cast<size_t>(x.rank()) - 1;
  for (size_t i = 0; i < length.size(); ++i) expected[expected.size() - length.size() + i] = length[i];
  if (type == FftType::RFFT) {
    TPU_CHECK(x.dtype() == DType::F32 || x.dtype() == DType::F64, "fft RFFT: needs f32 or f64, got ",
              to_string(x.type()));
    result.dtype = complex_of(x.dtype());
    result.dims[last] = length.back() == 0 ? 0 : length.back() / 2 + 1;
  } else {
    TPU_CHECK(is_complex(x.dtype()), "fft ", name, ": needs complex, got ", to_string(x.type()));
  }
  if (type == FftType::IRFFT) {
    expected[last] = length.back() == 0 ? 0 : length.back() / 2 + 1;
    result.dtype = real_of(x.dtype());
    result.dims[last] = length.back();
  }
  TPU_CHECK(x.dims() == expected, "fft ", name, ": length ", list(length), " needs dims ", list(expected), ", got ",
            to_string(x.type()));
  return emit("fft", {x}, std::move(result),
              text("fft_type = #stablehlo<fft_type ", name, ">, fft_length = ", array(length)));
}

Value triangular_solve(Value a, Value b, bool left_side, bool lower, bool unit_diagonal, Transpose transpose_a) {
  static constexpr const char* kNames[] = {"NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"};
  constexpr std::string_view op = "triangular_solve";
  require_square(op, a);
  require_same_dtype(op, a, b);
  const int64_t r = a.rank();
  const bool fits = b.rank() == r && std::equal(a.dims().begin(), a.dims().end() - 2, b.dims().begin()) &&
                    a.dim(r - 1) == b.dim(left_side ? r - 2 : r - 1);
  TPU_CHECK(fits, op, ": ", to_string(a.type()), " does not fit ", to_string(b.type()), " on the ",
            left_side ? "left" : "right");
  return emit(
      op, {a, b}, b.type(),
      text("left_side = ", flag(left_side), ", lower = ", flag(lower), ", unit_diagonal = ", flag(unit_diagonal),
           ", transpose_a = #stablehlo<transpose ", kNames[static_cast<int>(transpose_a)], ">"));
}

}  // namespace tpu::hlo
