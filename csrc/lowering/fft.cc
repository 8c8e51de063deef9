// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "lowering/fft_by_products.h"
#include "lowering/promote.h"

namespace tpu::lowering {
namespace {

Dims wrapped(const Dims& dims, int64_t rank) {
  Dims out;
  for (int64_t d : dims) out.push_back(wrap_dim(d, rank, "fft"));
  return out;
}

// Transforms along `dims` in their order (at most three, as StableHLO has it): they go to the end and back.
Value transform(Value x, const Dims& dims, FftType type, const Dims& length) {
  Dims order;
  for (int64_t d = 0; d < x.rank(); ++d) {
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) order.push_back(d);
  }
  order.insert(order.end(), dims.begin(), dims.end());
  Dims back(order.size());
  for (size_t i = 0; i < order.size(); ++i) back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  const bool wide = x.dtype() == F64 || x.dtype() == C128;
  const auto transformed = wide && !call().target->double_transforms ? fft_by_products : fft;
  return transpose(transformed(transpose(x, order), type, length), back);
}

// The complex transform along all of `dims`. StableHLO divides the inverse by its length, PyTorch does not.
Value complex_transform(Value x, Dims dims, bool forward) {
  while (!dims.empty()) {
    const size_t n = std::min<size_t>(dims.size(), 3);
    const Dims group(dims.end() - static_cast<std::ptrdiff_t>(n), dims.end());
    Dims length;
    for (int64_t d : group) length.push_back(x.dim(d));
    x = transform(x, group, forward ? FftType::FFT : FftType::IFFT, length);
    dims.resize(dims.size() - n);
  }
  return x;
}

Value scaled(Value x, double factor) {
  if (factor == 1) return x;
  if (!is_complex(x.dtype())) return x * factor;
  return complex(real(x) * factor, imag(x) * factor);
}

// normalization: 0 none, 1 by the root of the length, 2 by the length.
double norm(int64_t normalization, double length) {
  return normalization == 1 ? 1 / std::sqrt(length) : normalization == 2 ? 1 / length : 1;
}

double length_of(Value x, const Dims& dims) {
  double n = 1;
  for (int64_t d : dims) n *= static_cast<double>(x.dim(d));
  return n;
}

Value to_complex(Value x) { return complex(x, zeros_like(x)); }

TPU_LOWER("_fft_c2c", [](Value x, Dims dim, int64_t normalization, bool forward) {
  const Dims dims = wrapped(dim, x.rank());
  const double n = length_of(x, dims);
  if (x.numel() == 0) return x;
  return scaled(complex_transform(x, dims, forward), norm(normalization, n) * (forward ? 1 : n));
});

// The last of `dim` is halved unless both sides are wanted.
TPU_LOWER("_fft_r2c", [](Value x, Dims dim, int64_t normalization, bool onesided) {
  Dims dims = wrapped(dim, x.rank());
  const double factor = norm(normalization, length_of(x, dims));
  if (x.numel() == 0 || dims.empty()) return full(graph(), result_type(), 0);
  if (!onesided) return scaled(complex_transform(to_complex(x), dims, true), factor);
  const int64_t last = dims.back();
  dims.pop_back();
  Value half = transform(x, {last}, FftType::RFFT, {x.dim(last)});
  return scaled(complex_transform(half, dims, true), factor);
});

TPU_LOWER("_fft_c2r", [](Value x, Dims dim, int64_t normalization, int64_t last_size) {
  Dims dims = wrapped(dim, x.rank());
  const int64_t last = dims.back();
  dims.pop_back();
  const double n = length_of(x, dims) * static_cast<double>(last_size);
  if (x.numel() == 0) return full(graph(), result_type(), 0);
  Value half = complex_transform(x, dims, false);
  const int64_t needed = last_size / 2 + 1;
  if (half.dim(last) > needed) half = slice_dim(half, last, 0, needed);
  return scaled(transform(half, {last}, FftType::IRFFT, {last_size}), norm(normalization, n) * n);
});

}  // namespace
}  // namespace tpu::lowering
